//! Floats rounded to 16 bits, and their bytes put together.

use cubecl::prelude::*;

/// Added to a number below 2^16, it leaves the number rounded in the low bits of the sum: cheaper
/// than a conversion.
pub const ROUND: f32 = 8_388_608.0;

/// Cancels the exponent that [`ROUND`] leaves in the upper half of a word, where the number comes
/// into the upper half of another: 0x4b00 + WRAP = 2^16.
const WRAP: f32 = 46_336.0;

/// Units of the rest that rounding to 16 bits leaves, in one unit of the 16 bits.
pub const FINE: f32 = 254.0;

/// What rounding `x` left, where the low 16 bits of `rounded` are the result and `above` more: its
/// low byte is signed.
#[cube]
pub fn rest(x: f32, rounded: u32, #[comptime] above: f32) -> u32 {
    let left = x - (f32::cast_from(rounded & 0xffffu32) - above);
    u32::reinterpret(left * FINE + comptime!(ROUND + 32768.0))
}

/// What makes `largest` a number from `half_top` to twice as much, and what a unit is worth then.
/// It takes the exponent alone, where a division takes ten operations.
#[cube]
pub fn power_of(largest: f32, #[comptime] half_top: f32) -> (f32, f32) {
    let power = u32::reinterpret(largest) & 0x7f80_0000u32;
    let ratio = comptime!(half_top.to_bits() + 1.0f32.to_bits()).runtime() - power;
    (
        f32::reinterpret(ratio),
        f32::reinterpret(power) * comptime!(1.0 / half_top),
    )
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
    /// Four of `x` from `first` on, times `ratio` and plus `above`, rounded; the results are from 0
    /// to 65535.
    pub fn rounded(
        x: &Array<f32>,
        ratio: f32,
        #[comptime] first: usize,
        #[comptime] above: f32,
    ) -> Four {
        let low = comptime!(ROUND + above);
        let high = comptime!(ROUND + above + WRAP);
        let a = u32::reinterpret(x[first] * ratio + low);
        let b = u32::reinterpret(x[comptime!(first + 1)] * ratio + low);
        let c = u32::reinterpret(x[comptime!(first + 2)] * ratio + high);
        let d = u32::reinterpret(x[comptime!(first + 3)] * ratio + high);
        Four {
            even: a + (c << 16u32),
            odd: b + (d << 16u32),
        }
    }

    /// The low 16 bits of each, whatever is above them.
    pub fn new(a: u32, b: u32, c: u32, d: u32) -> Four {
        Four {
            even: (a & 0xffffu32) | (c << 16u32),
            odd: (b & 0xffffu32) | (d << 16u32),
        }
    }

    /// Their low bytes.
    pub fn low(&self) -> u32 {
        (self.even & 0x00ff_00ffu32) | ((self.odd << 8u32) & 0xff00_ff00u32)
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
