//! Floats rounded to 16 bits, and their bytes put together.

use cubecl::prelude::*;

/// Added to a number below 2^16, it leaves the number rounded in the low bits of the sum: cheaper
/// than a conversion.
pub const ROUND: f32 = 8_388_608.0;

/// Units of the rest that rounding to 16 bits leaves, in one unit of the 16 bits.
pub const FINE: f32 = 254.0;

/// What rounding `x` left, where the low 16 bits of `rounded` are the result and `above` more: its
/// low byte is signed.
#[cube]
pub fn rest(x: f32, rounded: u32, #[comptime] above: f32) -> u32 {
    let left = x - (f32::cast_from(rounded & 0xffffu32) - above);
    u32::reinterpret(left * FINE + comptime!(ROUND + 32768.0))
}

/// Four 16-bit numbers, as pairs in a word: half of the work of one by one.
#[derive(CubeType, Clone, Copy)]
pub struct Four {
    /// The first and the third.
    even: u32,
    /// The second and the fourth.
    odd: u32,
}

#[cube]
impl Four {
    /// The low 16 bits of each, whatever is above them.
    pub fn new(a: u32, b: u32, c: u32, d: u32) -> Four {
        Four {
            even: (a & 0xffffu32) | (c << 16u32),
            odd: (b & 0xffffu32) | (d << 16u32),
        }
    }

    /// Their low bytes.
    pub fn low(&self) -> u32 {
        (self.even & 0x00ff_00ffu32) | ((self.odd & 0x00ff_00ffu32) << 8u32)
    }

    /// Their high bytes.
    pub fn high(&self) -> u32 {
        ((self.even >> 8u32) & 0x00ff_00ffu32) | (self.odd & 0xff00_ff00u32)
    }

    /// High bytes of numbers that are 32768 too large, as signed bytes: with the low bytes, which
    /// then are signed as well, they make up the numbers.
    pub fn signed_high(&self) -> u32 {
        let carried = Four {
            even: self.even + 0x0080_0080u32,
            odd: self.odd + 0x0080_0080u32,
        };
        carried.high() ^ 0x8080_8080u32
    }
}
