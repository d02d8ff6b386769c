//! Groups within one token: a few lanes hold the token in registers, each its share of the quads,
//! and reduce by shuffles. Codes go to shared memory, one word of four 8-bit codes per quad.

use cubecl::prelude::*;

use super::arithmetic::{
    Quad, affine_code, affine_group, any_lanes, bytes_of, bytes_of_floats, count_lanes, inverse,
    max_lanes, max_quad, midrise_code, midrise_level, pair_word, scale8_byte, scale8_value,
    sum_lanes, sum_quad,
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
/// found by bisection on the bits of floats, which are ordered like the floats. The first look is
/// at an eighth of the largest, where the quantile seldom lies below; the last few steps are spared
/// once a single magnitude is left.
#[cube]
pub fn clip_token(y: &mut Array<Quad>, lane: usize, #[comptime] recipe: Recipe) {
    let lanes = comptime!(recipe.lanes);
    let unroll = comptime!(lanes > 1);
    let place = comptime!(recipe.clip.unwrap_or(0) as u32);
    let zero_bits = comptime!(recipe.zero_bits);
    let eighth = comptime!((3u32 << 23) >> zero_bits);
    let mut high = u32::reinterpret(largest_up_to(
        y,
        lane,
        comptime!(f32::MAX.to_bits()).runtime(),
        recipe.clone(),
    )) >> zero_bits;
    let mut low = 0u32;
    // Magnitudes below `low`, and up to `high`.
    let mut below = 0u32;
    let mut upto = comptime!(4 * recipe.quads as u32).runtime();
    let mut middle = select(high > eighth, high - eighth, high / 2u32);
    let mut more = any_lanes(low < high && upto - below > 1u32, lanes);
    while more {
        let limit = middle << zero_bits;
        let mut count = 0u32;
        #[unroll(unroll)]
        for j in 0..comptime!(recipe.share()) {
            if held(j * lanes + lane, recipe.clone()) {
                let bits = Vector::<u32, Const<4>>::reinterpret(y[j].abs());
                #[unroll]
                for i in 0..4usize {
                    count += select(bits.extract(i) <= limit, 1u32, 0u32);
                }
            }
        }
        let count = count_lanes(count, lanes);
        if count > place {
            high = middle;
            upto = count;
        } else {
            low = middle + 1u32;
            below = count;
        }
        middle = (low + high) / 2u32;
        more = any_lanes(low < high && upto - below > 1u32, lanes);
    }
    let ones = comptime!((1u32 << zero_bits) - 1);
    let limit = Quad::new(largest_up_to(
        y,
        lane,
        (high << zero_bits) | ones,
        recipe.clone(),
    ));
    #[unroll(unroll)]
    for j in 0..comptime!(recipe.share()) {
        y[j] = y[j].min(limit).max(Quad::new(0.0f32) - limit);
    }
}

/// The largest magnitude of a token whose bits are at most `limit`.
#[cube]
fn largest_up_to(y: &mut Array<Quad>, lane: usize, limit: u32, #[comptime] recipe: Recipe) -> f32 {
    let lanes = comptime!(recipe.lanes);
    let unroll = comptime!(lanes > 1);
    let mut largest = f32::new(0.0);
    #[unroll(unroll)]
    for j in 0..comptime!(recipe.share()) {
        if held(j * lanes + lane, recipe.clone()) {
            let size = y[j].abs();
            #[unroll]
            for i in 0..4usize {
                let x = size.extract(i);
                let counts = u32::reinterpret(x) <= limit;
                largest = f32::max(largest, select(counts, x, 0.0f32));
            }
        }
    }
    max_lanes(largest, lanes)
}

/// Whether a quad belongs to the token: known when the kernel is compiled where all lanes have as
/// many.
#[cube]
fn held(quad: usize, #[comptime] recipe: Recipe) -> bool {
    if comptime!(recipe.quads.is_multiple_of(recipe.lanes)) {
        true.runtime()
    } else {
        quad < comptime!(recipe.quads)
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
    let plain_sums = comptime!(recipe.plain_sums);
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
        // By all lanes, since a branch could keep one from the next shuffle.
        parameters[slot * count + g] = pair_word(affine.scale, affine.offset);
        #[unroll(unroll)]
        for j in first..end {
            let quad = j * lanes + lane;
            if inside(quad, group, even) {
                let x = y[j];
                let mut codes = Vector::<u32, Const<4>>::new(0u32);
                #[unroll]
                for i in 0..4usize {
                    let code = affine_code(
                        x.extract(i),
                        &affine,
                        rounding,
                        comptime!(group.bits),
                        plain_sums,
                    );
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
    let plain_sums = comptime!(recipe.plain_sums);
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
                    let level = midrise_level(y[j], step, bits, plain_sums);
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
                    let level = midrise_level(y[j], step, bits, plain_sums);
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
                let codes = midrise_code(y[j], step, bits, plain_sums);
                let decoded = (codes - Quad::new(middle)) * Quad::new(best);
                product += y[j] * decoded;
                tile[token * comptime!(recipe.stride()) + quad] =
                    bytes_of_floats(codes, plain_sums);
            }
        }
        let product = sum_lanes(sum_quad(product), lanes);
        let gain = f32::max(energy * inverse(product), 1.0f32);
        // By all lanes, since a branch could keep one from the next shuffle.
        parameters[g * 64 + slot] = scale8_byte(best * gain);
    }
}
