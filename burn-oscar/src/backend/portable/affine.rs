//! Affine groups: `x = scale * code + offset`, an f16 pair per group.

use burn::backend::Backend;

use super::tensor::{Ints, Real};
use crate::quantizer::{ChannelBits, PageSpec, Rounding};

/// The smallest range that OSCAR divides by (its code's epsilon).
pub const SMALLEST_RANGE: f32 = 1e-8;
/// Integers up to here are exact in f32.
pub const LARGEST_ZERO: f32 = 16_777_216.0;

/// `[n, kv_heads, token groups, tokens, channel groups, channels]`.
fn grouped(spec: &PageSpec, n: usize, kv_heads: usize) -> [usize; 6] {
    let (tokens, channels) = (spec.token_group(), spec.channel_group());
    [
        n,
        kv_heads,
        spec.page_tokens / tokens,
        tokens,
        spec.head_dim / channels,
        channels,
    ]
}

fn top_code(spec: &PageSpec) -> f32 {
    match spec.quantizer.bits {
        ChannelBits::Uniform(bits) => ((1u32 << bits) - 1) as f32,
        ChannelBits::Segments(_) => unreachable!("segments have mid-rise codes"),
    }
}

/// Codes `[n, kv_heads, page_tokens, head_dim]` and pairs `[n, kv_heads, pair_numbers]` (f32
/// holding f16 numbers) of f32 vectors `[n, kv_heads, page_tokens, head_dim]`.
pub fn encode<B: Backend>(spec: &PageSpec, x: Real<B>) -> (Ints<B>, Real<B>) {
    let [n, kv_heads, tokens, head_dim] = x.dims()[..] else {
        unreachable!("four dimensions by construction")
    };
    let top = top_code(spec);
    let x = x.reshape(&grouped(spec, n, kv_heads));
    let min = x.clone().min_dim(3).min_dim(5);
    let max = x.clone().max_dim(3).max_dim(5);

    let (code, scale, offset) = match spec.quantizer.rounding {
        Rounding::HalfUp => {
            let range = max.sub(min.clone()).max_scalar(SMALLEST_RANGE);
            let scale = range.div_scalar(top);
            let zero = min.clone().neg().div(scale.clone());
            let code = x.div(scale.clone()).add(zero).add_scalar(0.5).floor();
            (code, scale, min)
        }
        Rounding::HalfEven => {
            let scale = max.sub(min.clone()).div_scalar(top).through_f16();
            let min = min.through_f16();
            // A scale that rounds to 0 marks a constant group: every code is then 0.
            let divisor = scale
                .clone()
                .fill_where_not_positive(scale.clone(), f32::MAX);
            let code = x.sub(min.clone()).div(divisor).round();
            (code, scale, min)
        }
        Rounding::HalfEvenIntegerZero => {
            // A group of zeros is coded in the range -1 to 1, which holds 0 exactly.
            let magnitude = max
                .clone()
                .max_pair(min.clone().neg())
                .max_pair(max.clone().neg());
            let max = max.fill_where_not_positive(magnitude.clone(), 1.0);
            let min = min.fill_where_not_positive(magnitude, -1.0);
            let scale = max.sub(min.clone()).div_scalar(top);
            // Constant groups, and groups so narrow that the zero is no exact integer in f32, are
            // coded 0 around their minimum.
            let narrow = min.clone().abs().mul_scalar(1.0 / LARGEST_ZERO);
            let usable = scale.clone().sub(narrow.max_scalar(f32::MIN_POSITIVE));
            let scale = scale.fill_where_not_positive(usable.clone(), 0.0);
            let divisor = scale
                .clone()
                .fill_where_not_positive(usable.clone(), f32::MAX);
            let zero = min.clone().neg().div(divisor.clone()).round();
            let code = x.div(divisor).add(zero.clone()).round();
            let code_usable = usable.clone().expand_like(&code);
            let code = code.fill_where_not_positive(code_usable, 0.0);
            let offset = zero.mul(scale.clone()).neg();
            let offset = offset.replace_where_not_positive(usable, min);
            (code, scale, offset)
        }
        Rounding::MidRise => unreachable!("mid-rise codes have no pairs"),
    };

    let code = code
        .clamp(0.0, top)
        .reshape(&[n, kv_heads, tokens, head_dim]);
    let pairs = Real::cat(vec![scale, offset], 5).through_f16().reshape(&[
        n,
        kv_heads,
        spec.pair_numbers(),
    ]);
    (code.into_u32(), stored_order(spec, pairs))
}

/// Between the order of groups and the order in a page; its own inverse.
fn stored_order<B: Backend>(spec: &PageSpec, pairs: Real<B>) -> Real<B> {
    match spec.token_group() {
        1 => pairs.swap_rows(spec.pair_numbers() / spec.page_tokens),
        _ => pairs,
    }
}

/// The inverse of [`encode`], in f32.
pub fn decode<B: Backend>(spec: &PageSpec, codes: Ints<B>, pairs: Real<B>) -> Real<B> {
    let [n, kv_heads, tokens, head_dim] = codes.dims()[..] else {
        unreachable!("four dimensions by construction")
    };
    let shape = grouped(spec, n, kv_heads);
    let pairs = stored_order(spec, pairs)
        .f32()
        .reshape(&[n, kv_heads, shape[2], 1, shape[4], 2]);
    let scale = pairs.clone().narrow(5, 0, 1);
    let offset = pairs.narrow(5, 1, 1);
    codes
        .into_f32()
        .reshape(&shape)
        .mul(scale)
        .add(offset)
        .reshape(&[n, kv_heads, tokens, head_dim])
}
