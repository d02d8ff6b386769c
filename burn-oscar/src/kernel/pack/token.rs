//! Groups within one token: a few lanes hold the token in registers, each its share of the quads,
//! and reduce by shuffles. Codes go to shared memory, one word of four 8-bit codes per quad.

use cubecl::prelude::*;

use super::arithmetic::{
    Quad, affine_code, affine_group, bytes_of, count_lanes, inverse, max_lanes, max_quad,
    midrise_code, midrise_level, pair_word, scale8_byte, scale8_value, sum_lanes, sum_quad,
};
use super::recipe::{Group, Recipe};
use crate::backend::portable::{CANDIDATES, gaussian_step};

/// Whether a quad belongs to a group. Known when the kernel is compiled if all lanes agree.
#[cube]
fn inside(quad: usize, #[comptime] group: Group, #[comptime] even: bool) -> bool {
    if comptime!(even) {
        true.runtime()
    } else {
        quad >= group.first && quad < group.end
    }
}

/// Clamps a token to the quantile of its magnitudes: the one at place `clip` of their order,
/// found by bisection on the bits of floats, which are ordered like the floats.
#[cube]
pub fn clip_token(y: &mut Array<Quad>, lane: usize, #[comptime] recipe: Recipe) {
    let lanes = comptime!(recipe.lanes);
    let unroll = comptime!(lanes > 1);
    let place = comptime!(recipe.clip.unwrap_or(0) as u32);
    let zero_bits = comptime!(recipe.zero_bits);
    let whole = comptime!(recipe.quads.is_multiple_of(lanes));
    let mut low = 0u32;
    let mut high = comptime!(0x7f80_0000u32 >> zero_bits).runtime();
    for _ in 0..comptime!(31 - zero_bits) {
        let middle = (low + high) / 2u32;
        let limit = middle << zero_bits;
        let mut count = 0u32;
        #[unroll(unroll)]
        for j in 0..comptime!(recipe.share()) {
            let quad = j * lanes + lane;
            if whole || quad < comptime!(recipe.quads) {
                let bits = Vector::<u32, Const<4>>::reinterpret(y[j].abs());
                #[unroll]
                for i in 0..4usize {
                    count += select(bits.extract(i) <= limit, 1u32, 0u32);
                }
            }
        }
        if count_lanes(count, lanes) > place {
            high = middle;
        } else {
            low = middle + 1u32;
        }
    }
    let limit = Quad::new(f32::reinterpret(high << zero_bits));
    #[unroll(unroll)]
    for j in 0..comptime!(recipe.share()) {
        y[j] = y[j].min(limit).max(Quad::new(0.0f32) - limit);
    }
}

/// Affine groups of channels of one token.
#[cube]
pub fn affine_token(
    y: &Array<Quad>,
    lane: usize,
    token: usize,
    slot: usize,
    tile: &mut Shared<[u32]>,
    parameters: &mut Shared<[u32]>,
    #[comptime] recipe: Recipe,
) {
    let lanes = comptime!(recipe.lanes);
    let unroll = comptime!(lanes > 1);
    let rounding = comptime!(recipe.rounding);
    let count = comptime!(recipe.groups.len());
    #[unroll]
    for g in 0..count {
        let group = comptime!(recipe.groups[g]);
        let even = comptime!(recipe.even(group));
        let first = comptime!(group.first / lanes);
        let end = comptime!(group.end.div_ceil(lanes));
        let mut low = Quad::new(f32::MAX);
        let mut high = Quad::new(-f32::MAX);
        #[unroll(unroll)]
        for j in first..end {
            if inside(j * lanes + lane, group, even) {
                low = low.min(y[j]);
                high = high.max(y[j]);
            }
        }
        let low = 0.0f32 - max_lanes(max_quad(Quad::new(0.0f32) - low), lanes);
        let high = max_lanes(max_quad(high), lanes);
        let affine = affine_group(low, high, rounding, comptime!(group.bits));
        if lane == 0 {
            parameters[slot * count + g] = pair_word(affine.scale, affine.offset);
        }
        #[unroll(unroll)]
        for j in first..end {
            let quad = j * lanes + lane;
            if inside(quad, group, even) {
                let x = y[j];
                let mut codes = Quad::new(0.0f32);
                #[unroll]
                for i in 0..4usize {
                    let code = affine_code(x.extract(i), &affine, rounding, comptime!(group.bits));
                    codes.insert(i, code);
                }
                tile[token * comptime!(recipe.stride()) + quad] = bytes_of(codes);
            }
        }
    }
}

/// Mid-rise codes of one token, segment by segment; see the portable body for the search.
#[allow(
    clippy::needless_range_loop,
    reason = "the loop is unrolled by its counter"
)]
#[cube]
pub fn midrise_token(
    y: &Array<Quad>,
    lane: usize,
    token: usize,
    slot: usize,
    tile: &mut Shared<[u32]>,
    parameters: &mut Shared<[u32]>,
    #[comptime] recipe: Recipe,
) {
    let lanes = comptime!(recipe.lanes);
    let unroll = comptime!(lanes > 1);
    #[unroll]
    for g in 0..comptime!(recipe.groups.len()) {
        let group = comptime!(recipe.groups[g]);
        let even = comptime!(recipe.even(group));
        let bits = comptime!(group.bits);
        let first = comptime!(group.first / lanes);
        let end = comptime!(group.end.div_ceil(lanes));

        let mut square = Quad::new(0.0f32);
        let mut largest = Quad::new(0.0f32);
        #[unroll(unroll)]
        for j in first..end {
            if inside(j * lanes + lane, group, even) {
                square += y[j] * y[j];
                largest = largest.max(y[j].abs());
            }
        }
        let energy = sum_lanes(sum_quad(square), lanes);
        let gaussian = comptime!(gaussian_step(bits as u8));
        let base = if comptime!(gaussian.is_some()) {
            let channels = comptime!(((group.end - group.first) * 4) as f32);
            (energy / channels).sqrt() * comptime!(gaussian.unwrap_or(0.0))
        } else {
            max_lanes(max_quad(largest), lanes) * comptime!(2.0 / (1u32 << bits) as f32)
        };

        let mut best = f32::new(0.0);
        let mut best_error = f32::new(f32::MAX);
        #[unroll]
        for c in 0..comptime!(CANDIDATES.len()) {
            let step = inverse(base * comptime!(CANDIDATES[c]));
            let mut product = Quad::new(0.0f32);
            let mut square = Quad::new(0.0f32);
            #[unroll(unroll)]
            for j in first..end {
                if inside(j * lanes + lane, group, even) {
                    let level = midrise_level(y[j], step, bits);
                    product += y[j].abs() * level;
                    square += level * level;
                }
            }
            let fit = sum_lanes(sum_quad(product), lanes) / sum_lanes(sum_quad(square), lanes);
            let scale = scale8_value(scale8_byte(fit));

            let step = inverse(scale);
            let mut error = Quad::new(0.0f32);
            #[unroll(unroll)]
            for j in first..end {
                if inside(j * lanes + lane, group, even) {
                    let level = midrise_level(y[j], step, bits);
                    let rest = y[j].abs() - level * Quad::new(scale);
                    error += rest * rest;
                }
            }
            let error = sum_lanes(sum_quad(error), lanes);
            if comptime!(c == 0) {
                best = scale;
                best_error = error;
            } else {
                best = select(error < best_error, scale, best);
                best_error = f32::min(error, best_error);
            }
        }

        let step = inverse(best);
        let middle = comptime!(((1u32 << bits) - 1) as f32 / 2.0);
        let mut product = Quad::new(0.0f32);
        #[unroll(unroll)]
        for j in first..end {
            let quad = j * lanes + lane;
            if inside(quad, group, even) {
                let codes = midrise_code(y[j], step, bits);
                let decoded = (codes - Quad::new(middle)) * Quad::new(best);
                product += y[j] * decoded;
                tile[token * comptime!(recipe.stride()) + quad] = bytes_of(codes);
            }
        }
        let product = sum_lanes(sum_quad(product), lanes);
        let gain = f32::max(energy * inverse(product), 1.0f32);
        if lane == 0 {
            parameters[g * 64 + slot] = scale8_byte(best * gain);
        }
    }
}
