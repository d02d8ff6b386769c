//! Exact tokens of 16 bits in the tensor-core kernel: sixteen at a time, by one plane, on the
//! tensor cores.
//!
//! Both products have a row of `mma.m16n8k16` for each query head, so that the scores of one are
//! where the weights of the other belong. The order of channels within a product is free: a lane
//! loads 16 bytes of a token at a time, and takes its channels for those that the instruction asks
//! it for. A weight is two 16-bit numbers, itself rounded and the rest, in rows g and g + 8, since
//! one would not do. Half of the rows are copies or empty; the rate of the tensor cores does not
//! matter here, that of instructions does: 28 a token, where plain arithmetic takes 50.
//! Bytes: `2 head_dim` activations a token.

use cubecl::cmma::MmaDefinition;
use cubecl::prelude::*;

use crate::backend::plan::EXACT_TOKENS as TOKENS;

use super::chunk::W4;
use super::exact::vector_at;
use super::shape::Heads;
use super::tile::{ExactPlace, LOWEST, TileMemory};
use super::warp::WarpMemory;

type Two<F> = Vector<F, Const<2>>;

/// Attention of a plane over `count` exact tokens from `first` on: of every round of
/// `16 planes` tokens, its own. The result is number `place` in the shared memories; there is at least one token
/// for it.
#[cube]
pub fn exact_products<F: Float, N: Size>(
    memory: &mut TileMemory,
    warps: &mut WarpMemory,
    query: &[Vector<F, N>],
    heads: &Heads,
    scale: f32,
    own_key: &[Vector<F, N>],
    own_value: &[Vector<F, N>],
    key_tier: &[Vector<F, N>],
    value_tier: &[Vector<F, N>],
    at: &ExactPlace,
    first: usize,
    count: usize,
    lane: usize,
    plane: usize,
    place: usize,
    #[comptime] planes: usize,
    #[comptime] sink: usize,
    #[comptime] head_dim: usize,
) {
    // The lane's row of both products is head g % 4; its tokens are g, then 2 t and 2 t + 1.
    let g = lane / 4;
    let t = lane % 4;
    let pieces = comptime!(head_dim / 32);
    let tiles = comptime!(head_dim / 8);
    let wide = comptime!(head_dim / 64);
    let head = select(g % 4 < heads.held, g % 4, 0usize.runtime());

    let mut queries = Array::<W4>::new(pieces);
    #[unroll]
    for i in 0..pieces {
        let at = (heads.first + head * head_dim) / 8 + comptime!(4 * i) + t;
        queries[i] = W4::reinterpret(query[at]);
    }
    let mut max = f32::new(LOWEST);
    let mut total = f32::new(0.0);
    let mut sums = Array::<f32>::new(comptime!(4 * tiles));
    #[unroll]
    for i in 0..comptime!(4 * tiles) {
        sums[i] = 0.0;
    }

    let mut before = plane * TOKENS;
    while before < count {
        let mut keys = Array::<W4>::new(comptime!(2 * pieces));
        let mut values = Array::<W4>::new(comptime!(4 * wide));
        #[unroll]
        for n in 0..2usize {
            let token = before + comptime!(8 * n) + g;
            #[unroll]
            for i in 0..pieces {
                keys[comptime!(n * pieces + i)] = W4::new(0u32);
            }
            if token < count {
                let base = vector_at(at, first + token, sink, head_dim, 8usize) + t;
                if first + token < at.held {
                    #[unroll]
                    for i in 0..pieces {
                        keys[comptime!(n * pieces + i)] =
                            W4::reinterpret(key_tier[base + comptime!(4 * i)]);
                    }
                } else {
                    #[unroll]
                    for i in 0..pieces {
                        keys[comptime!(n * pieces + i)] =
                            W4::reinterpret(own_key[base + comptime!(4 * i)]);
                    }
                }
            }
        }
        #[unroll]
        for r in 0..4usize {
            let token = before + 2 * t + comptime!(r % 2 + r / 2 * 8);
            #[unroll]
            for i in 0..wide {
                values[comptime!(r * wide + i)] = W4::new(0u32);
            }
            if token < count {
                let base = vector_at(at, first + token, sink, head_dim, 8usize) + g;
                if first + token < at.held {
                    #[unroll]
                    for i in 0..wide {
                        values[comptime!(r * wide + i)] =
                            W4::reinterpret(value_tier[base + comptime!(8 * i)]);
                    }
                } else {
                    #[unroll]
                    for i in 0..wide {
                        values[comptime!(r * wide + i)] =
                            W4::reinterpret(own_value[base + comptime!(8 * i)]);
                    }
                }
            }
        }

        // Units without a token join those that have one, see `tile`.
        sync_plane();
        let mut scores = Array::<f32>::new(4usize);
        #[unroll]
        for n in 0..2usize {
            let mut products = Array::<f32>::new(4usize);
            #[unroll]
            for k in 0..4usize {
                products[k] = 0.0;
            }
            #[unroll]
            for i in 0..comptime!(2 * pieces) {
                let query = queries[comptime!(i / 2)];
                let key = keys[comptime!(n * pieces + i / 2)];
                multiply::<F>(
                    query.extract(comptime!(i % 2 * 2)),
                    0u32,
                    query.extract(comptime!(i % 2 * 2 + 1)),
                    0u32,
                    key.extract(comptime!(i % 2 * 2)),
                    key.extract(comptime!(i % 2 * 2 + 1)),
                    &mut products,
                    0usize,
                );
            }
            #[unroll]
            for e in 0..2usize {
                let inside = before + comptime!(8 * n + e) + 2 * t < count;
                scores[comptime!(2 * n + e)] =
                    select(inside, products[e] * scale, f32::new(LOWEST));
            }
        }

        let mut top = max;
        #[unroll]
        for e in 0..4usize {
            top = f32::max(top, scores[e]);
        }
        let top = f32::max(top, plane_shuffle_xor(top, 1u32));
        let top = f32::max(top, plane_shuffle_xor(top, 2u32));
        let decay = (max - top).exp();
        max = top;
        total *= decay;
        let mut weights = Array::<u32>::new(2usize);
        let mut rests = Array::<u32>::new(2usize);
        #[unroll]
        for n in 0..2usize {
            let mut weight = Two::<F>::new(F::new(0.0));
            let mut rest = Two::<F>::new(F::new(0.0));
            #[unroll]
            for e in 0..2usize {
                let x = (scores[comptime!(2 * n + e)] - top).exp();
                total += x;
                let rounded = F::cast_from(x);
                weight.insert(e, rounded);
                rest.insert(e, F::cast_from(x - f32::cast_from(rounded)));
            }
            weights[n] = u32::reinterpret(weight);
            rests[n] = u32::reinterpret(rest);
        }
        if before >= comptime!(planes * TOKENS) {
            #[unroll]
            for i in 0..comptime!(4 * tiles) {
                sums[i] *= decay;
            }
        }
        #[unroll]
        for tile in 0..tiles {
            // Its columns are channels 64 (tile / 8) + 8 column + tile % 8.
            let mut pairs = Array::<u32>::new(2usize);
            #[unroll]
            for n in 0..2usize {
                let word = comptime!(tile % 8 / 2);
                let a = values[comptime!(2 * n * wide + tile / 8)].extract(word);
                let b = values[comptime!((2 * n + 1) * wide + tile / 8)].extract(word);
                pairs[n] = if comptime!(tile % 2 == 0) {
                    (a & 0xffffu32) | (b << 16u32)
                } else {
                    (a >> 16u32) | (b & 0xffff_0000u32)
                };
            }
            multiply::<F>(
                weights[0],
                rests[0],
                weights[1],
                rests[1],
                pairs[0],
                pairs[1],
                &mut sums,
                comptime!(4 * tile),
            );
        }
        before += comptime!(planes * TOKENS);
    }

    total += plane_shuffle_xor(total, 1u32);
    total += plane_shuffle_xor(total, 2u32);
    // Lanes that are copies of others write the second half.
    let upper = g >= 4;
    let row = (place * 4 + g % 4) * head_dim;
    let half = comptime!(tiles / 2);
    #[unroll]
    for tile in 0..half {
        let other = comptime!(tile + half);
        let channel = select(
            upper,
            comptime!(64 * (other / 8) + other % 8).runtime(),
            comptime!(64 * (tile / 8) + tile % 8).runtime(),
        );
        #[unroll]
        for e in 0..2usize {
            let low = sums[comptime!(4 * tile + e)] + sums[comptime!(4 * tile + 2 + e)];
            let high = sums[comptime!(4 * other + e)] + sums[comptime!(4 * other + 2 + e)];
            memory.planes[row + channel + 8 * (2 * t + e)] = select(upper, high, low);
        }
    }
    if lane % 4 == 0 && !upper {
        warps.max[place * 4 + g] = max;
        warps.total[place * 4 + g] = total;
    }
}

/// `sums[first..first + 4] += a x b` of 16 rows, 8 columns and 16 products: rows g and g + 8 of
/// `a` are words 0 and 2, 1 and 3.
#[cube]
fn multiply<F: Float>(
    a0: u32,
    a1: u32,
    a2: u32,
    a3: u32,
    b0: u32,
    b1: u32,
    sums: &mut Array<f32>,
    #[comptime] first: usize,
) {
    let def = MmaDefinition::<F, F, f32>::new(16usize, 8usize, 16usize);
    let mut a = Array::<Two<F>>::new(4usize);
    a[0] = Two::<F>::reinterpret(a0);
    a[1] = Two::<F>::reinterpret(a1);
    a[2] = Two::<F>::reinterpret(a2);
    a[3] = Two::<F>::reinterpret(a3);
    let mut b = Array::<Two<F>>::new(2usize);
    b[0] = Two::<F>::reinterpret(b0);
    b[1] = Two::<F>::reinterpret(b1);
    let mut c = Array::<Two<f32>>::new(2usize);
    #[unroll]
    for i in 0..2usize {
        let mut pair = Two::<f32>::new(0.0);
        pair.insert(0usize, sums[comptime!(first + 2 * i)]);
        pair.insert(1usize, sums[comptime!(first + 2 * i + 1)]);
        c[i] = pair;
    }
    def.execute_inplace(&a, &b, &mut c);
    #[unroll]
    for i in 0..2usize {
        sums[comptime!(first + 2 * i)] = c[i].extract(0usize);
        sums[comptime!(first + 2 * i + 1)] = c[i].extract(1usize);
    }
}
