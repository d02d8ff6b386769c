//! Exact tokens in the tensor-core kernel: sixteen at a time, by one plane, without barriers.
//!
//! A unit scores half of one token, then adds up some channels of every n-th; weights go round by
//! shuffles. All loads of keys and values are in flight before the first is used: the plane waits
//! for memory once. Bytes: `2 head_dim` activations a token.

use cubecl::prelude::*;

use crate::backend::plan::EXACT_TOKENS as EXACT;

use super::query::QueryMemory;
use super::tile::{ExactPlace, LOWEST, TileMemory, position};
use super::warp::WarpMemory;

/// Where a token's vectors begin, in vectors: in the tiers, or in the call's own token.
#[cube]
fn vector_at(
    at: &ExactPlace,
    token: usize,
    #[comptime] sink: usize,
    #[comptime] head_dim: usize,
    #[comptime] width: usize,
) -> usize {
    let place = position(at, token, sink);
    let base = select(token < at.held, at.tier + place * head_dim, at.own);
    base / width
}

/// Attention of a plane over `count` tokens (at most [`EXACT`], or none) from `first` on; the
/// result is the plane's in the shared memories.
#[cube]
pub fn exact_plane<F: Float, N: Size>(
    memory: &mut TileMemory,
    warps: &mut WarpMemory,
    query: &QueryMemory,
    own_key: &[Vector<F, N>],
    own_value: &[Vector<F, N>],
    key_tier: &[Vector<F, N>],
    value_tier: &[Vector<F, N>],
    at: &ExactPlace,
    first: usize,
    count: usize,
    lane: usize,
    plane: usize,
    #[comptime] sink: usize,
    #[comptime] head_dim: usize,
) {
    let width = N::value().comptime();
    let vectors = comptime!(head_dim / width);

    // Keys: half a token for each unit.
    let shared = comptime!(vectors / 2);
    let half = lane / 16;
    let token = first + lane % 16;
    let inside = lane % 16 < count;
    let mut keys = Array::<Vector<F, N>>::new(shared);
    let base = vector_at(at, token, sink, head_dim, width) + half * shared;
    #[unroll]
    for j in 0..shared {
        keys[j] = Vector::<F, N>::new(F::new(0.0));
    }
    if inside {
        if token < at.held {
            #[unroll]
            for j in 0..shared {
                keys[j] = key_tier[base + j];
            }
        } else {
            #[unroll]
            for j in 0..shared {
                keys[j] = own_key[base + j];
            }
        }
    }
    // Values: one vector of every n-th token.
    let rows = comptime!(32 / vectors);
    let tokens = comptime!(EXACT / rows);
    let vector = lane % vectors;
    let row = lane / vectors;
    let mut values = Array::<Vector<F, N>>::new(tokens);
    #[unroll]
    for j in 0..tokens {
        let t = row + comptime!(j * rows);
        values[j] = Vector::<F, N>::new(F::new(0.0));
        if t < count {
            let token = first + t;
            let base = vector_at(at, token, sink, head_dim, width) + vector;
            if token < at.held {
                values[j] = value_tier[base];
            } else {
                values[j] = own_value[base];
            }
        }
    }

    let mut weights = Array::<f32>::new(4usize);
    #[unroll]
    for h in 0..4usize {
        weights[h] = 0.0;
    }
    let quads = comptime!(head_dim / 4);
    #[unroll]
    for j in 0..comptime!(head_dim / 8) {
        #[unroll]
        for h in 0..4usize {
            let queries = query.padded[h * comptime!(quads + 1) + half * comptime!(quads / 2) + j];
            #[unroll]
            for k in 0..4usize {
                let x =
                    keys[comptime!((4 * j + k) / width)].extract(comptime!((4 * j + k) % width));
                weights[h] += queries.extract(k) * f32::cast_from(x);
            }
        }
    }
    #[unroll]
    for h in 0..4usize {
        let score = weights[h] + plane_shuffle_xor(weights[h], 16u32);
        let score = select(inside, score, f32::new(LOWEST));
        let mut max = score;
        #[unroll]
        for j in 0..4usize {
            max = f32::max(max, plane_shuffle_xor(max, comptime!(1u32 << j)));
        }
        let weight = select(inside, (score - max).exp(), 0.0);
        let mut total = weight;
        #[unroll]
        for j in 0..4usize {
            total += plane_shuffle_xor(total, comptime!(1u32 << j));
        }
        weights[h] = weight;
        if lane == 0 {
            warps.max[plane * 4 + h] = max;
            warps.total[plane * 4 + h] = total;
        }
    }

    let mut sums = Array::<f32>::new(comptime!(4 * width));
    #[unroll]
    for i in 0..comptime!(4 * width) {
        sums[i] = 0.0;
    }
    #[unroll]
    for j in 0..tokens {
        let t = (row + comptime!(j * rows)) as u32;
        #[unroll]
        for h in 0..4usize {
            let weight = plane_shuffle(weights[h], t);
            #[unroll]
            for k in 0..width {
                sums[h * width + k] += weight * f32::cast_from(values[j].extract(k));
            }
        }
    }
    #[unroll]
    for i in 0..comptime!(4 * width) {
        let mut sum = sums[i];
        #[unroll]
        for j in 0..comptime!(rows.trailing_zeros() as usize) {
            sum += plane_shuffle_xor(sum, comptime!((vectors << j) as u32));
        }
        if lane < vectors {
            let h = comptime!(i / width);
            let k = comptime!(i % width);
            memory.planes[(plane * 4 + h) * head_dim + vector * width + k] = sum;
        }
    }
}
