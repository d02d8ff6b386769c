//! A lane's share of a chunk of 64 tokens in registers: codes and parameters of both sides.
//!
//! ```text
//! keys        one 16-byte load per step of 32 virtual channels
//! values      two per block of 64
//! parameters  of the lane's row of tokens (t % 8 = lane / 4, eight of them): pairs of each part,
//!             or the bytes of each part; per-channel pairs are read where they are used
//! ```

use cubecl::prelude::*;

use super::field::half_at;
use super::spec::{PackedSide, Parameters};

pub type W4 = Vector<u32, Const<4>>;

/// 16-byte loads of codes.
pub fn code_loads(side: &PackedSide) -> usize {
    side.virtual_channels / 32
}

/// 16-byte loads of parameters.
pub fn parameter_loads(side: &PackedSide) -> usize {
    match side.parameters {
        Parameters::TokenPairs => 2 * side.parts.len(),
        Parameters::Scales => side.parts.len(),
        Parameters::ChannelPairs { .. } => 0,
    }
}

/// All loads of a lane: codes and parameters of keys, then of values.
pub fn loads(key: &PackedSide, value: &PackedSide) -> usize {
    code_loads(key) + code_loads(value) + parameter_loads(key) + parameter_loads(value)
}

/// First load of the keys' parameters.
pub fn key_parameters_at(key: &PackedSide) -> usize {
    code_loads(key)
}

/// First load of the values' codes.
pub fn value_codes_at(key: &PackedSide) -> usize {
    code_loads(key) + parameter_loads(key)
}

/// First load of the values' parameters.
pub fn value_parameters_at(key: &PackedSide, value: &PackedSide) -> usize {
    value_codes_at(key) + code_loads(value)
}

/// Loads a chunk; `row` is page times KV heads plus KV head.
#[cube]
pub fn load(
    key_words: &[W4],
    key_pairs: &[W4],
    value_words: &[W4],
    value_pairs: &[W4],
    row: usize,
    chunk: usize,
    lane: usize,
    out: &mut Array<W4>,
    #[comptime] key: PackedSide,
    #[comptime] value: PackedSide,
) {
    load_codes(
        key_words,
        row,
        chunk,
        lane,
        out,
        0usize,
        comptime!(key.clone()),
    );
    let first = comptime!(value_codes_at(&key));
    load_codes(
        value_words,
        row,
        chunk,
        lane,
        out,
        first,
        comptime!(value.clone()),
    );
    let first = comptime!(key_parameters_at(&key));
    load_parameters(
        key_words,
        key_pairs,
        row,
        chunk,
        lane,
        out,
        first,
        comptime!(key.clone()),
    );
    let first = comptime!(value_parameters_at(&key, &value));
    load_parameters(
        value_words,
        value_pairs,
        row,
        chunk,
        lane,
        out,
        first,
        comptime!(value.clone()),
    );
}

#[cube]
fn load_codes(
    words: &[W4],
    row: usize,
    chunk: usize,
    lane: usize,
    out: &mut Array<W4>,
    #[comptime] first: usize,
    #[comptime] side: PackedSide,
) {
    let base =
        row * comptime!(side.row_words() / 4) + chunk * comptime!(side.chunk_words() / 4) + lane;
    #[unroll]
    for i in 0..comptime!(code_loads(&side)) {
        out[first + i] = words[base + i * 32];
    }
}

#[cube]
fn load_parameters(
    words: &[W4],
    pairs: &[W4],
    row: usize,
    chunk: usize,
    lane: usize,
    out: &mut Array<W4>,
    #[comptime] first: usize,
    #[comptime] side: PackedSide,
) {
    let g = lane / 4;
    if comptime!(side.parameters == Parameters::TokenPairs) {
        let count = comptime!(2 * side.parts.len());
        let base = row * comptime!(side.row_pairs() / 4) + (chunk * 8 + g) * count;
        #[unroll]
        for i in 0..count {
            out[first + i] = pairs[base + i];
        }
    } else if comptime!(side.parameters == Parameters::Scales) {
        let scales = comptime!(side.chunks() * side.chunk_words() / 4);
        let base = row * comptime!(side.row_words() / 4) + scales + chunk * 4 + g / 2;
        #[unroll]
        for i in 0..comptime!(side.parts.len()) {
            out[first + i] = words[base + i * comptime!(side.page_tokens / 16)];
        }
    }
}

/// Clears the pairs of tokens from `limit` on, which may be anything, before they become floats.
#[cube]
pub fn mask_parameters(
    loaded: &mut Array<W4>,
    limit: i32,
    lane: usize,
    #[comptime] key: PackedSide,
    #[comptime] value: PackedSide,
) {
    let first = comptime!(key_parameters_at(&key));
    mask_side(loaded, limit, lane, first, comptime!(key.clone()));
    let first = comptime!(value_parameters_at(&key, &value));
    mask_side(loaded, limit, lane, first, comptime!(value.clone()));
}

#[cube]
fn mask_side(
    loaded: &mut Array<W4>,
    limit: i32,
    lane: usize,
    #[comptime] first: usize,
    #[comptime] side: PackedSide,
) {
    if comptime!(side.parameters == Parameters::TokenPairs) {
        let parts = comptime!(side.parts.len());
        #[unroll]
        for e in 0..8usize {
            let inside = ((8 * e + lane / 4) as i32) < limit;
            #[unroll]
            for i in 0..parts {
                let place = comptime!(first + (e * parts + i) / 4);
                let k = comptime!((e * parts + i) % 4);
                let mut vector = loaded[place];
                let word = vector.extract(k);
                vector.insert(k, select(inside, word, 0u32));
                loaded[place] = vector;
            }
        }
    }
}

/// Two f16 of a word.
#[cube]
pub fn half2(word: u32) -> (f32, f32) {
    let halves = Vector::<half::f16, Const<2>>::reinterpret(word);
    (
        f32::cast_from(halves.extract(0usize)),
        f32::cast_from(halves.extract(1usize)),
    )
}

/// The (scale, offset) pair of the lane's token `e` in a part.
#[cube]
pub fn pair(
    loaded: &Array<W4>,
    #[comptime] e: usize,
    #[comptime] part: usize,
    #[comptime] first: usize,
    #[comptime] side: PackedSide,
) -> (f32, f32) {
    let flat = comptime!(e * side.parts.len() + part);
    half2(loaded[comptime!(first + flat / 4)].extract(comptime!(flat % 4)))
}

/// What [`scales`] leaves out: its results are this much smaller than the stored scales.
pub const SCALE8_UNIT: f32 = 128.0;

/// The eight 8-bit scales of the lane's tokens in a part, divided by [`SCALE8_UNIT`].
#[cube]
pub fn scales(
    loaded: &Array<W4>,
    lane: usize,
    out: &mut Array<f32>,
    #[comptime] part: usize,
    #[comptime] first: usize,
) {
    let four = loaded[comptime!(first + part)];
    let odd = (lane / 4) % 2 == 1;
    #[unroll]
    for i in 0..2usize {
        let word = select(odd, four.extract(comptime!(2 + i)), four.extract(i));
        // A byte is the top of an f16 without its sign.
        let (a, b) = half2(((word & 0xffu32) << 6u32) | ((word & 0xff00u32) << 14u32));
        let (c, d) = half2(((word >> 10u32) & 0x3fc0u32) | ((word >> 2u32) & 0x3fc0_0000u32));
        out[comptime!(4 * i)] = a;
        out[comptime!(4 * i + 1)] = b;
        out[comptime!(4 * i + 2)] = c;
        out[comptime!(4 * i + 3)] = d;
    }
}

/// Multiplies the scores with the norms of the lane's tokens.
#[cube]
pub fn apply_norms(norms: &[u32], first: usize, limit: i32, lane: usize, scores: &mut Array<f32>) {
    #[unroll]
    for e in 0..8usize {
        let token = 8 * e + lane / 4;
        let mut norm = f32::new(0.0);
        if (token as i32) < limit {
            norm = half_at(norms, first + token);
        }
        scores[e] *= norm;
    }
}
