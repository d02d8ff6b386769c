//! One stored number of a page, for any recipe: the portable kernels read pages through here.
//!
//! Only integer operations and f32 arithmetic: an f16 is decoded from its bits, so that runtimes
//! without 16-bit floats read the same pages.

use cubecl::prelude::*;

use super::spec::{PackedSide, Parameters};

/// An f16 in the low half of a word, finite by construction.
#[cube]
pub fn half_bits(bits: u32) -> f32 {
    let exponent = (bits >> 10u32) & 31u32;
    let mantissa = bits & 1023u32;
    let normal = f32::reinterpret(((exponent + 112u32) << 23u32) | (mantissa << 13u32));
    let small = f32::cast_from(mantissa) * 5.960_464_5e-8;
    let magnitude = select(exponent == 0u32, small, normal);
    select((bits & 0x8000u32) == 0u32, magnitude, -magnitude)
}

/// The f16 at an index of an array that is bound as words.
#[cube]
pub fn half_at(words: &[u32], index: usize) -> f32 {
    let word = words[index / 2];
    half_bits((word >> (16u32 * (index % 2) as u32)) & 0xffffu32)
}

/// The scale of a byte, see [`decode_scale8`](crate::quantizer::decode_scale8).
#[cube]
pub fn scale8(byte: u32) -> f32 {
    let small = f32::cast_from(byte) * 4.882_812_5e-4;
    let normal = f32::reinterpret((byte + 1904u32) << 19u32);
    select(byte < 16u32, small, normal)
}

/// The word and the bit of a two-bit field of a chunk, as in
/// [`layout`](crate::quantizer::layout).
#[cube]
pub fn field(token: u32, channel: u32, #[comptime] side: PackedSide) -> (u32, u32) {
    if comptime!(side.is_key) {
        let word = (((channel / 32u32) * 8u32 + token % 8u32) * 4u32 + (channel / 4u32) % 4u32)
            * 4u32
            + 2u32 * ((channel / 16u32) % 2u32)
            + (token / 8u32) % 2u32;
        (word, 8u32 * (channel % 4u32) + 2u32 * (token / 16u32))
    } else {
        let whole = comptime!((side.virtual_channels / 64 * 4) as u32);
        let tile = channel / 16u32;
        let step = token % 2u32;
        let in_block = tile < whole;
        let lead = select(in_block, (tile / 4u32) * 2u32 + step, whole / 2u32);
        let place = select(in_block, tile % 4u32, 2u32 * step + tile - whole);
        let word = ((lead * 8u32 + channel % 8u32) * 4u32 + (token / 2u32) % 4u32) * 4u32
            + 2u32 * (token / 32u32)
            + (channel / 8u32) % 2u32;
        (word, 8u32 * ((token / 8u32) % 4u32) + 2u32 * place)
    }
}

/// The code of a channel; 0 where the channel has no bits.
#[cube]
pub fn code(
    words: &[u32],
    chunk_base: usize,
    token: u32,
    channel: u32,
    #[comptime] side: PackedSide,
) -> u32 {
    let mut code = 0u32;
    #[unroll]
    for i in 0..comptime!(side.planes.len()) {
        let plane = comptime!(side.planes[i]);
        let start = comptime!(plane.start as u32);
        let end = comptime!((plane.start + plane.channels) as u32);
        if channel >= start && channel < end {
            let index = channel - start;
            if comptime!(plane.width == 2) {
                let (word, bit) = field(
                    token,
                    index + comptime!(plane.first as u32),
                    comptime!(side.clone()),
                );
                let bits = (words[chunk_base + word as usize] >> bit) & 3u32;
                code = code | (bits << comptime!(plane.shift as u32));
            } else {
                // Two channels share a field of one-bit planes: the first half has the low bits.
                let half = comptime!(plane.channels.div_ceil(2) as u32);
                let (word, bit) = field(
                    token,
                    index % half + comptime!(plane.first as u32),
                    comptime!(side.clone()),
                );
                let bits = (words[chunk_base + word as usize] >> (bit + index / half)) & 1u32;
                code = code | (bits << comptime!(plane.shift as u32));
            }
        }
    }
    code
}

/// Where a page's parts stand: all indices count elements of their arrays.
#[derive(CubeType, Clone, Copy)]
pub struct PagePlace {
    /// First word of the page and KV head.
    pub words: usize,
    /// First word of the pairs.
    pub pairs: usize,
    /// First f16 of the norms.
    pub norms: usize,
    /// First f16 of the means.
    pub means: usize,
    /// Chunk of the page.
    pub chunk: usize,
}

/// The place of a chunk.
#[cube]
pub fn place(
    page: usize,
    chunk: usize,
    head: usize,
    kv_heads: usize,
    #[comptime] side: PackedSide,
) -> PagePlace {
    let row = page * kv_heads + head;
    PagePlace {
        words: row * comptime!(side.row_words()),
        pairs: row * comptime!(side.row_pairs()),
        norms: page * comptime!(side.page_tokens),
        means: row * comptime!(side.head_dim),
        chunk,
    }
}

/// The stored number of a token of a chunk and a channel, still transformed.
#[cube]
pub fn number(
    words: &[u32],
    pairs: &[u32],
    norms: &[u32],
    means: &[u32],
    at: &PagePlace,
    token: u32,
    channel: u32,
    #[comptime] side: PackedSide,
) -> f32 {
    let chunk_base = at.words + at.chunk * comptime!(side.chunk_words());
    let code = f32::cast_from(code(
        words,
        chunk_base,
        token,
        channel,
        comptime!(side.clone()),
    ));
    // Tokens stand in row order, see `layout::token_slot`.
    let slot = ((token % 8u32) * 8u32 + token / 8u32) as usize;
    let mut y = f32::new(0.0);
    if comptime!(matches!(side.parameters, Parameters::ChannelPairs { .. })) {
        let tokens = comptime!(match side.parameters {
            Parameters::ChannelPairs { tokens } => tokens,
            _ => 64,
        });
        let group = (at.chunk * 64 + token as usize) / tokens;
        let pair = pairs[at.pairs + group * comptime!(side.head_dim) + channel as usize];
        y = half_bits(pair & 0xffffu32) * code + half_bits(pair >> 16u32);
    } else {
        #[unroll]
        for i in 0..comptime!(side.parts.len()) {
            let part = comptime!(side.parts[i]);
            let start = comptime!(part.start as u32);
            let end = comptime!((part.start + part.channels) as u32);
            if channel >= start && channel < end {
                if comptime!(side.parameters == Parameters::Scales) {
                    let middle = comptime!(((1u32 << part.bits) - 1) as f32 / 2.0);
                    let first =
                        comptime!(side.chunks() * side.chunk_words() + i * side.page_tokens / 4);
                    let byte = at.chunk * 64 + slot;
                    let word = words[at.words + first + byte / 4];
                    let scale = scale8((word >> (8u32 * (byte % 4) as u32)) & 255u32);
                    y = scale * (code - middle);
                } else {
                    let count = comptime!(side.parts.len());
                    let pair = pairs[at.pairs + (at.chunk * 64 + slot) * count + i];
                    y = half_bits(pair & 0xffffu32) * code + half_bits(pair >> 16u32);
                }
            }
        }
    }
    if comptime!(side.norms) {
        y *= half_at(norms, at.norms + at.chunk * 64 + token as usize);
    }
    if comptime!(side.means) {
        y += half_at(means, at.means + channel as usize);
    }
    y
}
