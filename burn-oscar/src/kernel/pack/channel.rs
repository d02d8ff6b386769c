//! Reductions along the tokens: groups of tokens of one channel, and means of pages. A unit takes
//! one quad of channels and an eighth of the tokens; the eighths meet in shared memory.

use cubecl::prelude::*;

use super::arithmetic::{
    Affine, Quad, affine_code, affine_group, bytes_of, pair_word, through_f16,
};
use super::recipe::{PARTS, Recipe};

/// The quad at `at` of the input, without its page's mean and divided by its token's norm.
#[cube]
pub fn load<F: Float>(
    x: &Tensor<Vector<F, Const<4>>>,
    at: usize,
    mean: &Shared<[Quad]>,
    quad: usize,
    norm: f32,
    #[comptime] recipe: Recipe,
) -> Quad {
    let mut y = Quad::cast_from(x[at]);
    if comptime!(recipe.page_mean) {
        y -= mean[quad];
    }
    if comptime!(recipe.token_norm) {
        y /= Quad::new(norm);
    }
    y
}

/// The means of a page over its tokens into `mean`, rounded to f16. Ends with a barrier.
#[cube]
pub fn mean_of_page<F: Float>(
    x: &Tensor<Vector<F, Const<4>>>,
    base: usize,
    step: usize,
    partial: &mut Shared<[Quad]>,
    mean: &mut Shared<[Quad]>,
    #[comptime] recipe: Recipe,
) {
    let quads = comptime!(recipe.quads);
    let tokens = comptime!(recipe.page_tokens);
    let share = comptime!(tokens / PARTS);
    let mut item = UNIT_POS as usize;
    while item < comptime!(PARTS * quads) {
        let quad = item % quads;
        let mut at = base + item / quads * share * step + quad;
        let mut sum = Quad::new(0.0f32);
        for _ in 0..share {
            // Scaled down before the sum, so that large activations do not overflow.
            sum += Quad::cast_from(x[at]) * Quad::new(comptime!(1.0 / tokens as f32));
            at += step;
        }
        partial[item] = sum;
        item += CUBE_DIM as usize;
    }
    sync_cube();
    let mut quad = UNIT_POS as usize;
    while quad < quads {
        let mut sum = partial[quad];
        for part in 1..PARTS {
            sum += partial[part * quads + quad];
        }
        let mut rounded = Quad::new(0.0f32);
        #[unroll]
        for i in 0..4usize {
            rounded.insert(i, through_f16(sum.extract(i)));
        }
        mean[quad] = rounded;
        quad += CUBE_DIM as usize;
    }
    sync_cube();
}

/// Ranges of the parts of a chunk. The caller puts a barrier between this and [`code_channels`].
#[cube]
pub fn range_of_channels<F: Float>(
    x: &Tensor<Vector<F, Const<4>>>,
    base: usize,
    step: usize,
    norms: &Shared<[f32]>,
    mean: &Shared<[Quad]>,
    low: &mut Shared<[Quad]>,
    high: &mut Shared<[Quad]>,
    #[comptime] recipe: Recipe,
) {
    let quads = comptime!(recipe.quads);
    let mut item = UNIT_POS as usize;
    while item < comptime!(PARTS * quads) {
        let quad = item % quads;
        let token = item / quads * 8;
        let mut least = Quad::new(f32::MAX);
        let mut most = Quad::new(-f32::MAX);
        for i in 0..8usize {
            let at = base + (token + i) * step + quad;
            let norm = norm_of(norms, token + i, recipe.clone());
            let y = load::<F>(x, at, mean, quad, norm, recipe.clone());
            least = least.min(y);
            most = most.max(y);
        }
        low[item] = least;
        high[item] = most;
        item += CUBE_DIM as usize;
    }
}

/// Codes and parameters of a chunk from the ranges of its parts.
#[cube]
pub fn code_channels<F: Float>(
    x: &Tensor<Vector<F, Const<4>>>,
    base: usize,
    step: usize,
    norms: &Shared<[f32]>,
    mean: &Shared<[Quad]>,
    low: &Shared<[Quad]>,
    high: &Shared<[Quad]>,
    tile: &mut Shared<[u32]>,
    parameters: &mut Shared<[u32]>,
    #[comptime] recipe: Recipe,
) {
    let quads = comptime!(recipe.quads);
    let rounding = comptime!(recipe.rounding);
    let bits = comptime!(recipe.groups[0].bits);
    let plain_sums = comptime!(recipe.plain_sums);
    let group_parts = comptime!(recipe.token_group / 8);
    let mut item = UNIT_POS as usize;
    while item < comptime!(PARTS * quads) {
        let quad = item % quads;
        let part = item / quads;
        let group = part / group_parts;
        let mut least = low[group * group_parts * quads + quad];
        let mut most = high[group * group_parts * quads + quad];
        for i in 1..group_parts {
            least = least.min(low[(group * group_parts + i) * quads + quad]);
            most = most.max(high[(group * group_parts + i) * quads + quad]);
        }
        let mut divisor = Quad::new(1.0f32);
        let mut inverse = Quad::new(1.0f32);
        let mut shift = Quad::new(0.0f32);
        #[unroll]
        for i in 0..4usize {
            let affine = affine_group(least.extract(i), most.extract(i), rounding, bits);
            divisor.insert(i, affine.divisor);
            inverse.insert(i, affine.inverse);
            shift.insert(i, affine.shift);
            if part == group * group_parts {
                parameters[(group * quads + quad) * 4 + i] = pair_word(affine.scale, affine.offset);
            }
        }
        for t in 0..8usize {
            let token = part * 8 + t;
            let norm = norm_of(norms, token, recipe.clone());
            let at = base + token * step + quad;
            let y = load::<F>(x, at, mean, quad, norm, recipe.clone());
            let mut codes = Vector::<u32, Const<4>>::new(0u32);
            #[unroll]
            for i in 0..4usize {
                let affine = Affine {
                    scale: 0.0f32,
                    offset: 0.0f32,
                    divisor: divisor.extract(i),
                    inverse: inverse.extract(i),
                    shift: shift.extract(i),
                };
                codes.insert(
                    i,
                    affine_code(y.extract(i), &affine, rounding, bits, plain_sums),
                );
            }
            tile[token * comptime!(recipe.stride()) + quad] = bytes_of(codes);
        }
        item += CUBE_DIM as usize;
    }
}

/// The norm of a token of the chunk, 1 where norms are not used.
#[cube]
pub fn norm_of(norms: &Shared<[f32]>, token: usize, #[comptime] recipe: Recipe) -> f32 {
    if comptime!(recipe.token_norm) {
        norms[token]
    } else {
        f32::new(1.0)
    }
}
