//! Mid-rise codes: `x = scale (code - (2^bits - 1) / 2)`, one 8-bit scale per token and segment.

use burn::backend::Backend;

use super::tensor::{Ints, Real};
use crate::quantizer::{PageSpec, SCALE8_MAX, SegmentSpec, decode_scale8};

/// The uniform step that codes Gaussian numbers of variance 1 with the least squared error (Max,
/// 1960), where bits are few; with many the range decides.
pub fn gaussian_step(bits: u8) -> Option<f32> {
    match bits {
        1 => Some(1.596),
        2 => Some(0.9957),
        3 => Some(0.586),
        4 => Some(0.335),
        _ => None,
    }
}

/// Steps tried, in units of the first guess.
pub const CANDIDATES: [f32; 5] = [0.8, 0.9, 1.0, 1.12, 1.25];

/// Rounds scales to what is stored: the bytes, and the scales they stand for.
pub type Grid<B> = fn(Real<B>) -> (Ints<B>, Real<B>);

/// The product's grid, see [`encode_scale8`](crate::quantizer::encode_scale8).
pub fn scale8<B: Backend>(scale: Real<B>) -> (Ints<B>, Real<B>) {
    let shape = scale.dims();
    let scale = scale.clamp(0.0, SCALE8_MAX);
    // A floor that is off by one at a power of two is set right by the carry of the mantissa.
    let exponent = scale
        .clone()
        .max_scalar(f32::MIN_POSITIVE)
        .log()
        .mul_scalar(std::f32::consts::LOG2_E)
        .floor()
        .clamp(-7.0, 7.0)
        .add_scalar(7.0);
    let powers: Vec<f32> = (0..15).map(|e| 2f32.powi(11 - e)).collect();
    let sixteenths = scale
        .mul(lookup(&powers, exponent.clone().into_u32(), &shape))
        .round();
    let bytes = exponent.mul_scalar(16.0).add(sixteenths).into_u32();
    let scale = decode8(bytes.clone());
    (bytes, scale)
}

/// Scales of bytes.
pub fn decode8<B: Backend>(bytes: Ints<B>) -> Real<B> {
    let shape = bytes.dims();
    let table: Vec<f32> = (0..=255).map(decode_scale8).collect();
    lookup(&table, bytes, &shape)
}

fn lookup<B: Backend>(table: &[f32], index: Ints<B>, shape: &[usize]) -> Real<B> {
    let flat = index.reshape(&[shape.iter().product()]);
    let like = flat.clone().into_f32();
    Real::from_vec(table.to_vec(), &[table.len()], &like.0)
        .rows(flat)
        .reshape(shape)
}

/// Levels `code - (2^bits - 1) / 2` and codes of `y / scale`; a scale of 0 gives the middle.
fn code<B: Backend>(y: Real<B>, scale: Real<B>, bits: u8) -> Real<B> {
    let levels = (1u32 << bits) as f32;
    let divisor = scale.clone().fill_where_not_positive(scale, f32::MAX);
    y.div(divisor)
        .add_scalar(levels / 2.0)
        .floor()
        .clamp(0.0, levels - 1.0)
}

fn level<B: Backend>(code: Real<B>, bits: u8) -> Real<B> {
    code.add_scalar(-(((1u32 << bits) - 1) as f32) / 2.0)
}

fn dot<B: Backend>(a: Real<B>, b: Real<B>) -> Real<B> {
    let last = a.dims().len() - 1;
    a.mul(b).sum_dim(last)
}

/// Codes of one segment `[..., channels]`, the stored bytes `[..., 1]` and their scales.
///
/// Five steps are tried; each is refined once by least squares, recoded with the rounded scale,
/// and the one with the least squared error is kept. The gain then multiplies the scale by
/// `<y, y> / <y, y'>`, at least 1: codes of least squared error shrink the vector (by 12 % at 2
/// bits), which would lower every quantised score against the exact ones.
fn encode_segment<B: Backend>(y: Real<B>, bits: u8, grid: Grid<B>) -> (Real<B>, Ints<B>, Real<B>) {
    let channels = *y.dims().last().unwrap_or(&1);
    let energy = dot(y.clone(), y.clone());
    let base = match gaussian_step(bits) {
        Some(step) => (energy.clone().div_scalar(channels as f32).sqrt()).mul_scalar(step),
        None => {
            let last = y.dims().len() - 1;
            let largest = y.clone().abs().max_dim(last);
            largest.mul_scalar(2.0 / (1u32 << bits) as f32)
        }
    };

    let mut best: Option<(Real<B>, Real<B>, Real<B>)> = None;
    for factor in CANDIDATES {
        let coarse = code(y.clone(), base.clone().mul_scalar(factor), bits);
        let levels = level(coarse, bits);
        let fit = dot(y.clone(), levels.clone()).div(dot(levels.clone(), levels));
        let (_, scale) = grid(fit);
        let codes = code(y.clone(), scale.clone(), bits);
        let rest = y.clone().sub(level(codes.clone(), bits).mul(scale.clone()));
        let error = dot(rest.clone(), rest);
        best = Some(match best {
            None => (codes, scale, error),
            Some((old_codes, old_scale, old_error)) => (
                old_codes.replace_where_less(
                    error.clone().expand_like(&y),
                    old_error.clone().expand_like(&y),
                    codes,
                ),
                old_scale.replace_where_less(error.clone(), old_error.clone(), scale),
                old_error
                    .clone()
                    .replace_where_less(error.clone(), old_error, error),
            ),
        });
    }
    let Some((codes, scale, _)) = best else {
        unreachable!("there are candidates")
    };
    let decoded = level(codes.clone(), bits).mul(scale.clone());
    let product = dot(y, decoded);
    let product = product.clone().fill_where_not_positive(product, f32::MAX);
    let gain = energy.div(product).max_scalar(1.0);
    let (bytes, scale) = grid(scale.mul(gain));
    (codes, bytes, scale)
}

/// Codes `[n, kv_heads, page_tokens, head_dim]` (0 where no bits are stored) and scale bytes
/// `[n, kv_heads, segments, page_tokens]` of f32 vectors `[n, kv_heads, page_tokens, head_dim]`.
pub fn encode<B: Backend>(spec: &PageSpec, y: Real<B>, grid: Grid<B>) -> (Ints<B>, Ints<B>) {
    let [n, kv_heads, tokens, head_dim] = y.dims()[..] else {
        unreachable!("four dimensions by construction")
    };
    let (mut codes, mut bytes) = (Vec::new(), Vec::new());
    let mut channels = 0;
    let gap = |from: usize, to: usize| y.clone().narrow(3, 0, to - from).mul_scalar(0.0).into_u32();
    for segment in &spec.segments {
        if segment.start > channels {
            codes.push(gap(channels, segment.start));
        }
        let part = y.clone().narrow(3, segment.start, segment.channels);
        let (code, byte, _) = encode_segment(part, segment.bits, grid);
        codes.push(code.into_u32());
        bytes.push(byte.reshape(&[n, kv_heads, 1, tokens]));
        channels = segment.start + segment.channels;
    }
    if channels < head_dim {
        codes.push(gap(channels, head_dim));
    }
    (Ints::cat(codes, 3), Ints::cat(bytes, 2))
}

/// The inverse of [`encode`]; channels without bits are 0.
pub fn decode<B: Backend>(spec: &PageSpec, codes: Ints<B>, scales: Real<B>) -> Real<B> {
    let [n, kv_heads, tokens, head_dim] = codes.dims()[..] else {
        unreachable!("four dimensions by construction")
    };
    let codes = codes.into_f32();
    let mut parts = Vec::new();
    let mut channels = 0;
    let zeros = |count| codes.clone().narrow(3, 0, count).mul_scalar(0.0);
    for (
        i,
        &SegmentSpec {
            start,
            channels: length,
            bits,
        },
    ) in spec.segments.iter().enumerate()
    {
        if start > channels {
            parts.push(zeros(start - channels));
        }
        let scale = scales
            .clone()
            .narrow(2, i, 1)
            .reshape(&[n, kv_heads, tokens, 1]);
        parts.push(level(codes.clone().narrow(3, start, length), bits).mul(scale));
        channels = start + length;
    }
    if channels < head_dim {
        parts.push(zeros(head_dim - channels));
    }
    Real::cat(parts, 3)
}
