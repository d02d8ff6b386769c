//! The formulas of the portable bodies (`backend/portable/{affine,midrise}.rs`), one group or one
//! quad of channels at a time. Where rounding decides a code, the order of operations is theirs.

use cubecl::prelude::*;
use half::f16;

use crate::backend::portable::{LARGEST_ZERO, SMALLEST_RANGE};
use crate::quantizer::{Rounding, SCALE8_MAX};

/// Four neighbouring channels.
pub type Quad = Vector<f32, Const<4>>;

/// Between the byte of a scale and the top of an f32: the difference of the exponents' biases.
const SCALE8_BIAS: u32 = (127 - 8) << 4;
/// The smallest scale whose byte has an exponent, 2^-7.
const SCALE8_NORMAL: f32 = 0.007_812_5;

/// Rounds half to even, whatever the runtime's `round` does.
#[cube]
pub fn round_even(x: f32) -> f32 {
    let down = x.floor();
    let rest = x - down;
    let odd = down - 2.0f32 * (down * 0.5f32).floor();
    let up = rest > 0.5f32 || (rest == 0.5f32 && odd == 1.0f32);
    select(up, down + 1.0f32, down)
}

/// Added to a number of less than half its size, it leaves the number rounded, half to even, in the
/// low bits of the sum: a conversion takes eight times as long.
const ROUND: f32 = 12_582_912.0;

/// A code from what it is before it is rounded, half to even. `plain_sums`: the device adds as it is
/// told.
#[cube]
fn nearest_code(x: f32, #[comptime] bits: u32, #[comptime] plain_sums: bool) -> u32 {
    let top = comptime!(((1u32 << bits) - 1) as f32);
    if comptime!(plain_sums) {
        u32::reinterpret(f32::clamp(x, 0.0f32, top) + ROUND) & 255u32
    } else {
        u32::cast_from(f32::clamp(round_even(x), 0.0f32, top))
    }
}

/// The largest integer up to each of four numbers, of magnitudes below 2^22.
#[cube]
fn floor_quad(x: Quad, #[comptime] plain_sums: bool) -> Quad {
    if comptime!(plain_sums) {
        let near = (x + Quad::new(ROUND)) - Quad::new(ROUND);
        let mut floor = near;
        #[unroll]
        for i in 0..4usize {
            let n = near.extract(i);
            floor.insert(i, select(n > x.extract(i), n - 1.0f32, n));
        }
        floor
    } else {
        x.floor()
    }
}

/// The sum of a quad.
#[cube]
pub fn sum_quad(x: Quad) -> f32 {
    (x.extract(0usize) + x.extract(1usize)) + (x.extract(2usize) + x.extract(3usize))
}

/// The largest of a quad.
#[cube]
pub fn max_quad(x: Quad) -> f32 {
    f32::max(
        f32::max(x.extract(0usize), x.extract(1usize)),
        f32::max(x.extract(2usize), x.extract(3usize)),
    )
}

/// The sum over the lanes of a token.
#[cube]
pub fn sum_lanes(x: f32, #[comptime] lanes: usize) -> f32 {
    let mut sum = x;
    #[unroll]
    for bit in 0..comptime!(lanes.ilog2()) {
        sum += plane_shuffle_xor(sum, comptime!(1u32 << bit));
    }
    sum
}

/// The largest over the lanes of a token.
#[cube]
pub fn max_lanes(x: f32, #[comptime] lanes: usize) -> f32 {
    let mut largest = x;
    #[unroll]
    for bit in 0..comptime!(lanes.ilog2()) {
        largest = f32::max(largest, plane_shuffle_xor(largest, comptime!(1u32 << bit)));
    }
    largest
}

/// The sum over the lanes of a token, of counts.
#[cube]
pub fn count_lanes(x: u32, #[comptime] lanes: usize) -> u32 {
    let mut sum = x;
    #[unroll]
    for bit in 0..comptime!(lanes.ilog2()) {
        sum += plane_shuffle_xor(sum, comptime!(1u32 << bit));
    }
    sum
}

/// Whether it is so anywhere in the plane, so that all go on together; `x` where a token is one
/// unit's.
#[cube]
pub fn any_lanes(x: bool, #[comptime] lanes: usize) -> bool {
    if comptime!(lanes > 1) {
        plane_any(x)
    } else {
        x
    }
}

/// Four codes as the bytes of a word.
#[cube]
pub fn bytes_of(codes: Vector<u32, Const<4>>) -> u32 {
    codes.extract(0usize)
        | (codes.extract(1usize) << 8u32)
        | (codes.extract(2usize) << 16u32)
        | (codes.extract(3usize) << 24u32)
}

/// The same of codes that are floats.
#[cube]
pub fn bytes_of_floats(codes: Quad, #[comptime] plain_sums: bool) -> u32 {
    if comptime!(plain_sums) {
        let rounded = Vector::<u32, Const<4>>::reinterpret(codes + Quad::new(ROUND));
        bytes_of(rounded & Vector::new(255u32))
    } else {
        bytes_of(Vector::cast_from(codes))
    }
}

/// Rounds through f16.
#[cube]
pub fn through_f16(x: f32) -> f32 {
    f32::cast_from(f16::cast_from(x))
}

/// A (scale, offset) pair as a word.
#[cube]
pub fn pair_word(scale: f32, offset: f32) -> u32 {
    let mut pair = Vector::<f16, Const<2>>::new(f16::cast_from(scale));
    pair.insert(1usize, f16::cast_from(offset));
    u32::reinterpret(pair)
}

/// What an affine group stores and how its codes are computed.
#[derive(CubeType, Clone, Copy)]
pub struct Affine {
    /// Stored, rounded to f16.
    pub scale: f32,
    /// Stored, rounded to f16.
    pub offset: f32,
    /// Values are divided by it.
    pub divisor: f32,
    /// One over the divisor.
    pub inverse: f32,
    /// Taken off before the division (`HalfEven`) or added after it.
    pub shift: f32,
}

/// The parameters of a group between `low` and `high`.
#[cube]
pub fn affine_group(
    low: f32,
    high: f32,
    #[comptime] rounding: Rounding,
    #[comptime] bits: u32,
) -> Affine {
    let top = comptime!(((1u32 << bits) - 1) as f32);
    if comptime!(rounding == Rounding::HalfUp) {
        let scale = f32::max(high - low, SMALLEST_RANGE) / top;
        Affine {
            scale,
            offset: low,
            divisor: scale,
            inverse: 1.0f32 / scale,
            shift: (0.0f32 - low) / scale,
        }
    } else if comptime!(rounding == Rounding::HalfEven) {
        // A scale that rounds to 0 marks a constant group: every code is then 0.
        let scale = through_f16((high - low) / top);
        let low = through_f16(low);
        let divisor = select(scale > 0.0f32, scale, f32::MAX);
        Affine {
            scale,
            offset: low,
            divisor,
            inverse: 1.0f32 / divisor,
            shift: low,
        }
    } else {
        // A group of zeros is coded in the range -1 to 1, which holds 0 exactly.
        let empty =
            f32::max(high, 0.0f32 - low) <= 0.0f32 && f32::max(high, 0.0f32 - high) <= 0.0f32;
        let high = select(empty, 1.0f32, high);
        let low = select(empty, -1.0f32, low);
        let scale = (high - low) / top;
        // Constant groups, and groups so narrow that the zero is no exact integer in f32, are
        // coded 0 around their minimum.
        let narrow = f32::max(
            low.abs() * comptime!(1.0f32 / LARGEST_ZERO),
            f32::MIN_POSITIVE,
        );
        let usable = scale > narrow;
        let divisor = select(usable, scale, f32::MAX);
        let scale = select(usable, scale, 0.0f32);
        let zero = round_even((0.0f32 - low) / divisor);
        Affine {
            scale,
            offset: select(usable, 0.0f32 - zero * scale, low),
            divisor,
            inverse: 1.0f32 / divisor,
            shift: zero,
        }
    }
}

/// `x / divisor`, rounded as the division is (Markstein: the quotient by the rounded inverse, and
/// one correction), for a third of the instructions.
#[cube]
fn divided(x: f32, group: &Affine) -> f32 {
    let quotient = x * group.inverse;
    let rest = fma(0.0f32 - quotient, group.divisor, x);
    fma(rest, group.inverse, quotient)
}

/// The code of one value. Where the divisor is the largest float, the code is 0 by itself.
#[cube]
pub fn affine_code(
    x: f32,
    group: &Affine,
    #[comptime] rounding: Rounding,
    #[comptime] bits: u32,
    #[comptime] plain_sums: bool,
) -> u32 {
    if comptime!(rounding == Rounding::HalfUp) {
        let top = comptime!(((1u32 << bits) - 1) as f32);
        let up = f32::clamp(divided(x, group) + group.shift + 0.5f32, 0.0f32, top);
        if comptime!(plain_sums) {
            // What it is rounded up to is one too many.
            let near = up + ROUND;
            let over = near - ROUND > up;
            (u32::reinterpret(near) - select(over, 1u32, 0u32)) & 255u32
        } else {
            u32::cast_from(up.floor())
        }
    } else if comptime!(rounding == Rounding::HalfEven) {
        nearest_code(divided(x - group.shift, group), bits, plain_sums)
    } else {
        nearest_code(divided(x, group) + group.shift, bits, plain_sums)
    }
}

/// The byte nearest to a scale, see [`encode_scale8`](crate::quantizer::encode_scale8): an f32
/// rounded to four bits of mantissa, half to even.
#[cube]
pub fn scale8_byte(scale: f32) -> u32 {
    let scale = f32::clamp(scale, 0.0f32, SCALE8_MAX);
    let bits = u32::reinterpret(scale);
    let normal = ((bits + 0x3_ffffu32 + ((bits >> 19u32) & 1u32)) >> 19u32) - SCALE8_BIAS;
    let small = u32::cast_from(round_even(scale * 2048.0f32));
    select(scale >= SCALE8_NORMAL, normal, small)
}

/// The scale of a byte.
#[cube]
pub fn scale8_value(byte: u32) -> f32 {
    let normal = f32::reinterpret((byte + SCALE8_BIAS) << 19u32);
    let small = f32::cast_from(byte) * 0.000_488_281_25f32;
    select(byte >= 16u32, normal, small)
}

/// 1 / x, or 0 where there is none.
#[cube]
pub fn inverse(x: f32) -> f32 {
    let divisor = select(x > 0.0f32, x, f32::MAX);
    1.0f32 / divisor
}

/// Magnitudes of the mid-rise levels of a quad. Levels are symmetric, so that signs do not matter
/// for dot products and errors.
#[cube]
pub fn midrise_level(
    y: Quad,
    inverse: f32,
    #[comptime] bits: u32,
    #[comptime] plain_sums: bool,
) -> Quad {
    if comptime!(bits == 2) {
        let mut level = Quad::new(0.5f32);
        #[unroll]
        for i in 0..4usize {
            let outer = y.extract(i).abs() * inverse >= 1.0f32;
            level.insert(i, select(outer, 1.5f32, 0.5f32));
        }
        level
    } else {
        let top = comptime!(((1u32 << bits) / 2 - 1) as f32);
        let steps = (y.abs() * Quad::new(inverse)).min(Quad::new(top));
        floor_quad(steps, plain_sums) + Quad::new(0.5f32)
    }
}

/// The mid-rise codes of a quad.
#[cube]
pub fn midrise_code(
    y: Quad,
    inverse: f32,
    #[comptime] bits: u32,
    #[comptime] plain_sums: bool,
) -> Quad {
    let levels = comptime!((1u32 << bits) as f32);
    let codes = y * Quad::new(inverse) + Quad::new(comptime!(levels / 2.0));
    let codes = codes
        .max(Quad::new(0.0f32))
        .min(Quad::new(comptime!(levels - 1.0)));
    floor_quad(codes, plain_sums)
}
