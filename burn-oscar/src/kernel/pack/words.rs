//! Words from the codes of a chunk in shared memory, in the order of
//! [`layout`](crate::quantizer::layout). One word of shared memory holds the codes of four
//! channels of a token, so four fields move at a time.

use cubecl::prelude::*;

use super::recipe::Recipe;
use crate::quantizer::Role;

/// Where four virtual channels come from: their quad, the lowest bit of their plane, and which
/// bits to keep (none past the last plane).
#[derive(CubeType, Clone, Copy)]
struct Origin {
    quad: usize,
    shift: u32,
    mask: u32,
}

#[cube]
fn origin(stored: usize, #[comptime] recipe: Recipe) -> Origin {
    let mut quad = 0usize;
    let mut shift = 0u32;
    let mut mask = 0u32;
    #[unroll]
    for p in 0..comptime!(recipe.planes.len()) {
        let plane = comptime!(recipe.planes[p]);
        if stored >= plane.stored && stored < comptime!(plane.stored + plane.quads) {
            quad = stored - plane.stored + plane.first;
            shift = plane.shift.runtime();
            mask = 0x0303_0303u32.runtime();
        }
    }
    Origin { quad, shift, mask }
}

/// The fields of four channels of a token, one in each byte.
#[cube]
fn fields(tile: &Shared<[u32]>, token: usize, origin: &Origin, #[comptime] recipe: Recipe) -> u32 {
    (tile[token * comptime!(recipe.stride()) + origin.quad] >> origin.shift) & origin.mask
}

/// All words of a chunk, from `base` on.
#[cube]
pub fn write_words(
    tile: &Shared<[u32]>,
    words: &mut Tensor<u32>,
    base: usize,
    #[comptime] recipe: Recipe,
) {
    if comptime!(recipe.role == Role::Key) {
        let mut i = UNIT_POS as usize;
        while i < comptime!(recipe.chunk_words) {
            words[base + i] = key_word(tile, i, recipe.clone());
            i += CUBE_DIM as usize;
        }
    } else {
        let mut i = UNIT_POS as usize;
        while i < comptime!(recipe.chunk_words / 4) {
            value_words(tile, words, base, i, recipe.clone());
            i += CUBE_DIM as usize;
        }
    }
}

/// Word `((step 8 + row) 4 + lane) 4 + r`: a byte per channel of one quad, a field per tile of 16
/// tokens.
#[cube]
fn key_word(tile: &Shared<[u32]>, i: usize, #[comptime] recipe: Recipe) -> u32 {
    let r = i % 4;
    let lane = i / 4 % 4;
    let row = i / 16 % 8;
    let from = origin(i / 128 * 8 + r / 2 * 4 + lane, recipe.clone());
    let mut word = 0u32;
    #[unroll]
    for f in 0..4usize {
        let token = r % 2 * 8 + row + comptime!(16 * f);
        word |= fields(tile, token, &from, recipe.clone()) << comptime!(2 * f as u32);
    }
    word
}

/// Four words, those of the rows of one quad: 4 x 4 bytes are read with a token in a word and
/// written with a channel in a word.
#[cube]
fn value_words(
    tile: &Shared<[u32]>,
    words: &mut Tensor<u32>,
    base: usize,
    i: usize,
    #[comptime] recipe: Recipe,
) {
    let blocks = comptime!(recipe.chunk_words / 256);
    let r = i % 4;
    let lane = i / 4 % 4;
    let half = i / 16 % 2;
    let lead = i / 32;
    // Where two tiles of 16 channels are left over, the field is `2 step + tile`.
    let tail = lead == 2 * blocks;
    let token = r / 2 * 32 + lane * 2;
    let mut bytes = Array::<u32>::new(4usize);
    #[unroll]
    for b in 0..4usize {
        bytes[b] = 0u32;
    }
    #[unroll]
    for f in 0..4usize {
        let step = select(tail, comptime!(f / 2).runtime(), lead % 2);
        let field = select(tail, comptime!(f % 2).runtime(), f.runtime());
        let from = origin(lead / 2 * 16 + field * 4 + r % 2 * 2 + half, recipe.clone());
        #[unroll]
        for b in 0..4usize {
            let four = fields(tile, token + step + comptime!(8 * b), &from, recipe.clone());
            bytes[b] |= four << comptime!(2 * f as u32);
        }
    }
    #[unroll]
    for c in 0..4usize {
        let mut word = 0u32;
        #[unroll]
        for b in 0..4usize {
            let byte = (bytes[b] >> comptime!(8 * c as u32)) & 255u32;
            word |= byte << comptime!(8 * b as u32);
        }
        words[base + lead * 128 + (half * 4 + c) * 16 + lane * 4 + r] = word;
    }
}
