//! How large a problem is.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Query heads.
pub const HEADS: usize = 32;
/// KV heads.
pub const KV_HEADS: usize = 8;
/// Channels of a head.
pub const HEAD_DIM: usize = 128;

/// Sequences, and tokens that each holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shape {
    /// Sequences.
    pub batch: usize,
    /// Tokens of each.
    pub context: usize,
}

impl Shape {
    /// The shapes that are measured unless others are given: one sequence from short to long,
    /// and many.
    pub const ALL: &'static [Self] = &[
        Self::new(1, 2 << 10),
        Self::new(1, 8 << 10),
        Self::new(1, 32 << 10),
        Self::new(1, 128 << 10),
        Self::new(8, 32 << 10),
        Self::new(32, 8 << 10),
        Self::new(16, 64 << 10),
    ];

    /// `batch` sequences of `context` tokens.
    pub const fn new(batch: usize, context: usize) -> Self {
        Self { batch, context }
    }

    /// Bytes of query, output, and the step's own keys and values, in a 16-bit dtype.
    pub fn step_bytes(&self) -> usize {
        2 * HEAD_DIM * self.batch * (2 * HEADS + 2 * KV_HEADS)
    }

    /// Bytes that attention over a 16-bit cache must move.
    pub fn exact_bytes(&self) -> usize {
        2 * 2 * HEAD_DIM * KV_HEADS * self.batch * self.context + self.step_bytes()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch, context } = self;
        if context % 1024 == 0 {
            write!(f, "{batch}x{}K", context / 1024)
        } else {
            write!(f, "{batch}x{context}")
        }
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let (digits, unit) = match text.strip_suffix(['k', 'K']) {
                Some(digits) => (digits, 1024),
                None => (text, 1),
            };
            let number = digits.parse::<usize>().ok()?.checked_mul(unit)?;
            (number > 0).then_some(number)
        };
        text.split_once(['x', 'X'])
            .and_then(|(batch, context)| Some(Self::new(number(batch)?, number(context)?)))
            .ok_or_else(|| {
                format!("`{text}` is no shape: write BATCHxCONTEXT, as in 8x32768 or 8x32K")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::Shape;

    #[test]
    fn shapes_read_as_they_are_written() {
        for shape in Shape::ALL {
            assert_eq!(shape.to_string().parse(), Ok(*shape));
        }
        assert_eq!("3x100".parse(), Ok(Shape::new(3, 100)));
        for wrong in [
            "",
            "8",
            "x8",
            "8x",
            "0x8",
            "8x0",
            "axb",
            "8x8x8",
            "1x99999999999999999999",
        ] {
            assert!(wrong.parse::<Shape>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn bytes_of_a_16_bit_cache() {
        let shape = Shape::new(2, 1024);
        assert_eq!(shape.exact_bytes() - shape.step_bytes(), 2 * 1024 * 8 * 512);
        assert_eq!(shape.step_bytes(), 2 * (2 * 32 + 2 * 8) * 256);
    }
}
