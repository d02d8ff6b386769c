//! A lane's share of a chunk of 64 tokens in registers: codes and parameters of one side.
//!
//! ```text
//! codes       one 16-byte load per 32 virtual channels
//! parameters  of the lane's row of tokens (t % 8 = lane / 4, eight of them): pairs of each part,
//!             or the bytes of each part; of per-channel keys, quads of half of the channels
//! ```

use cubecl::prelude::*;

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
        // Quads of half of the channels, of each group of tokens.
        Parameters::ChannelPairs { tokens } => 64 / tokens * side.head_dim / 32,
    }
}

/// All loads of a lane for a side.
pub fn loads(side: &PackedSide) -> usize {
    code_loads(side) + parameter_loads(side)
}

/// Loads a lane's share of a chunk of one side; `row` is page times KV heads plus KV head.
#[cube]
pub fn load(
    words: &[W4],
    pairs: &[W4],
    row: usize,
    chunk: usize,
    lane: usize,
    out: &mut Array<W4>,
    #[comptime] side: PackedSide,
) {
    load_codes(words, row, chunk, lane, out, comptime!(side.clone()));
    load_parameters(words, pairs, row, chunk, lane, out, comptime!(side.clone()));
}

#[cube]
fn load_codes(
    words: &[W4],
    row: usize,
    chunk: usize,
    lane: usize,
    out: &mut Array<W4>,
    #[comptime] side: PackedSide,
) {
    let base =
        row * comptime!(side.row_words() / 4) + chunk * comptime!(side.chunk_words() / 4) + lane;
    #[unroll]
    for i in 0..comptime!(code_loads(&side)) {
        out[i] = words[base + i * 32];
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
    #[comptime] side: PackedSide,
) {
    let first = comptime!(code_loads(&side));
    let count = comptime!(parameter_loads(&side));
    if comptime!(side.parameters == Parameters::Scales) {
        let scales = comptime!(side.chunks() * side.chunk_words() / 4);
        let base = row * comptime!(side.row_words() / 4) + scales + chunk * 4 + lane / 8;
        #[unroll]
        for i in 0..count {
            out[first + i] = words[base + i * comptime!(side.page_tokens / 16)];
        }
    } else if comptime!(side.parameters == Parameters::TokenPairs) {
        let base = row * comptime!(side.row_pairs() / 4) + (chunk * 8 + lane / 4) * count;
        #[unroll]
        for i in 0..count {
            out[first + i] = pairs[base + i];
        }
    } else {
        // Two lanes share a head: one makes bytes of the lower half of the channels, one of the
        // upper.
        let quarter = comptime!(side.head_dim / 32);
        let upper = (lane / 4) % 2 * (4 * quarter);
        let base = row * comptime!(side.row_pairs() / 4) + chunk * (8 * count) + upper + lane % 4;
        #[unroll]
        for i in 0..count {
            out[first + i] = pairs[base + comptime!(i / quarter * (8 * quarter) + i % quarter * 4)];
        }
    }
}

/// Clears a side's pairs of tokens from `limit` on, which may be anything, before they become
/// floats.
#[cube]
pub fn mask_parameters(
    loaded: &mut Array<W4>,
    limit: i32,
    lane: usize,
    #[comptime] side: PackedSide,
) {
    if comptime!(side.parameters == Parameters::TokenPairs) {
        let first = comptime!(code_loads(&side));
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

/// The f16 of a word for an even or an odd `index`.
#[cube]
pub fn half_of(word: u32, index: usize) -> f32 {
    let (half, _) = half2(word >> (index % 2 * 16) as u32);
    half
}

/// The (scale, offset) pair of the lane's token `e` in a part.
#[cube]
pub fn pair(
    loaded: &Array<W4>,
    #[comptime] e: usize,
    #[comptime] part: usize,
    #[comptime] side: PackedSide,
) -> (f32, f32) {
    let flat = comptime!(e * side.parts.len() + part);
    half2(loaded[comptime!(code_loads(&side) + flat / 4)].extract(comptime!(flat % 4)))
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
    #[comptime] side: PackedSide,
) {
    let four = loaded[comptime!(code_loads(&side) + part)];
    let odd = (lane / 4) % 2 == 1;
    #[unroll]
    for i in 0..2usize {
        let word = select(odd, four.extract(comptime!(2 + i)), four.extract(i));
        // A byte is the top of an f16 without its sign.
        let (a, c) = half2((word & 0x00ff_00ffu32) << 6u32);
        let (b, d) = half2((word >> 2u32) & 0x3fc0_3fc0u32);
        out[comptime!(4 * i)] = a;
        out[comptime!(4 * i + 1)] = b;
        out[comptime!(4 * i + 2)] = c;
        out[comptime!(4 * i + 3)] = d;
    }
}

/// A lane's two of the chunk's 64 norms, from number `first` on.
#[cube]
pub fn load_norms(norms: &[u32], first: usize, lane: usize) -> u32 {
    norms[first / 2 + lane]
}

/// Multiplies the scores with the norms of the lane's tokens.
#[cube]
pub fn apply_norms(norms: u32, lane: usize, scores: &mut Array<f32>) {
    #[unroll]
    for e in 0..8usize {
        let word = plane_shuffle(norms, (4 * e + lane / 8) as u32);
        scores[e] *= half_of(word, lane / 4);
    }
}
