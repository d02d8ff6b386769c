//! Exact tokens of 16 bits in the tensor-core kernel: sixteen at a time, by one plane, on the
//! tensor cores.
//!
//! Both products have a row of `mma.m16n8k16` for each query head, so that the scores of one are
//! where the weights of the other belong. The order of channels within a product is free: a lane
//! loads 16 bytes of a token at a time, and takes its channels for those that the instruction asks
//! it for. Nothing that was loaded is moved or repacked:
//!
//! - scores: of the four words of a vector, the first two are an operand, and the last two are;
//! - sums: a word holds two neighbouring channels of a token where the instruction asks for two
//!   tokens of a channel. A row whose weights stand in the lower halves of words, with nothing in
//!   the upper ones, sums even channels up, another one odd ones. So 4 heads, two halves and two
//!   words make 16 rows. A weight is two 16-bit numbers, itself rounded and the rest, since one
//!   would not do: two products.
//!
//! Most of what the tensor cores multiply here is zero. Their rate does not matter, that of
//! instructions does.
//! Bytes: `2 head_dim` activations a token.

use cubecl::cmma::MmaDefinition;
use cubecl::prelude::*;

use crate::backend::plan::EXACT_TOKENS as TOKENS;

use super::chunk::W4;
use super::shape::{Shape, Task};
use super::tile::{ExactPlace, LOWEST, position};
use super::warp::{WarpMemory, place_of, row_words};

type Two<F> = Vector<F, Const<2>>;

/// [`exact_tokens`](super::exact::exact_tokens) of 16 bits.
#[cube]
pub fn exact_products<F: Float, N: Size>(
    warps: &mut WarpMemory,
    query: &[Vector<F, N>],
    scale: f32,
    own_key: &[Vector<F, N>],
    own_value: &[Vector<F, N>],
    key_tier: &[Vector<F, N>],
    value_tier: &[Vector<F, N>],
    task: &Task,
    at: &ExactPlace,
    lane: usize,
    member: usize,
    place: usize,
    #[comptime] team: usize,
    #[comptime] shape: Shape,
) {
    let sink = comptime!(shape.sink);
    let head_dim = comptime!(shape.head_dim);
    let heads = task.heads;
    let first = task.item.exact_first;
    let count = task.item.exact_count;
    // The lane's head is g % 4; its tokens are g and g + 8 as columns of keys, then 2 t, 2 t + 1
    // and those eight further.
    let g = lane / 4;
    let t = lane % 4;
    let pieces = comptime!(head_dim / 32);
    let wide = comptime!(head_dim / 64);
    let head = select(g % 4 < heads.held, g % 4, 0usize.runtime());
    let shift = (g / 4 * 16) as u32;

    let mut queries = Array::<W4>::new(pieces);
    #[unroll]
    for i in 0..pieces {
        let at = (heads.first + head * head_dim) / 8 + comptime!(4 * i) + t;
        queries[i] = W4::reinterpret(query[at]);
    }
    let mut max = f32::new(LOWEST);
    let mut total = f32::new(0.0);
    // Of rounded weights, then of rests; of each, four numbers for every 32 channels.
    let count_sums = comptime!(head_dim / 8);
    let mut sums = Array::<f32>::new(comptime!(2 * count_sums));
    #[unroll]
    for i in 0..comptime!(2 * count_sums) {
        sums[i] = 0.0;
    }

    // Where the call's own token, the last, would be; what is loaded for others than there are
    // weighs nothing.
    let own = at.held - first;
    let last = select(at.held > 0, at.held, 1usize.runtime()) - 1;
    let mut before = member * TOKENS;
    while before < count {
        let mut keys = Array::<W4>::new(comptime!(2 * pieces));
        let mut values = Array::<W4>::new(comptime!(4 * wide));
        #[unroll]
        for n in 0..2usize {
            let token = usize::min(first + before + comptime!(8 * n) + g, last);
            let base = (at.tier + position(at, token, sink) * head_dim) / 8 + t;
            #[unroll]
            for i in 0..pieces {
                keys[comptime!(n * pieces + i)] =
                    W4::reinterpret(key_tier[base + comptime!(4 * i)]);
            }
        }
        #[unroll]
        for r in 0..4usize {
            let token = usize::min(first + before + 2 * t + comptime!(r % 2 + r / 2 * 8), last);
            let base = (at.tier + position(at, token, sink) * head_dim) / 8 + g;
            #[unroll]
            for i in 0..wide {
                values[comptime!(r * wide + i)] =
                    W4::reinterpret(value_tier[base + comptime!(8 * i)]);
            }
        }
        if own < before + TOKENS {
            sync_plane();
            let base = at.own / 8;
            #[unroll]
            for n in 0..2usize {
                if before + comptime!(8 * n) + g >= own {
                    #[unroll]
                    for i in 0..pieces {
                        keys[comptime!(n * pieces + i)] =
                            W4::reinterpret(own_key[base + t + comptime!(4 * i)]);
                    }
                }
            }
            #[unroll]
            for r in 0..4usize {
                if before + 2 * t + comptime!(r % 2 + r / 2 * 8) >= own {
                    #[unroll]
                    for i in 0..wide {
                        values[comptime!(r * wide + i)] =
                            W4::reinterpret(own_value[base + g + comptime!(8 * i)]);
                    }
                }
            }
        }

        sync_plane();
        let mut scores = Array::<f32>::new(4usize);
        #[unroll]
        for n in 0..2usize {
            // One operand has both halves of a vector in its two halves of rows, so that neither
            // has to be moved; each product counts in the rows that are of its half.
            let mut sums = Array::<f32>::new(8usize);
            #[unroll]
            for k in 0..8usize {
                sums[k] = 0.0;
            }
            #[unroll]
            for i in 0..pieces {
                let key = keys[comptime!(n * pieces + i)];
                let q = queries[i];
                #[unroll]
                for half in 0..2usize {
                    multiply::<F>(
                        q.extract(0usize),
                        q.extract(2usize),
                        q.extract(1usize),
                        q.extract(3usize),
                        key.extract(comptime!(2 * half)),
                        key.extract(comptime!(2 * half + 1)),
                        &mut sums,
                        comptime!(4 * half),
                    );
                }
            }
            #[unroll]
            for e in 0..2usize {
                let inside = before + comptime!(8 * n + e) + 2 * t < count;
                let score = (sums[e] + sums[comptime!(6 + e)]) * scale;
                scores[comptime!(2 * n + e)] = select(inside, score, f32::new(LOWEST));
            }
        }

        let mut top = scores[0];
        #[unroll]
        for e in 1..4usize {
            top = f32::max(top, scores[e]);
        }
        // As in `values`, the maximum seldom grows after the first round.
        if plane_any(top > max) {
            let top = f32::max(top, plane_shuffle_xor(top, 1u32));
            let top = f32::max(top, plane_shuffle_xor(top, 2u32));
            let top = f32::max(max, top);
            let decay = (max - top).exp();
            max = top;
            total *= decay;
            #[unroll]
            for i in 0..comptime!(2 * count_sums) {
                sums[i] *= decay;
            }
        }
        #[unroll]
        for n in 0..2usize {
            let mut weights = Two::<f32>::new(0.0);
            #[unroll]
            for e in 0..2usize {
                let x = (scores[comptime!(2 * n + e)] - max).exp();
                total += x;
                weights.insert(e, x);
            }
            let rounded = Two::<F>::cast_from(weights);
            let rest = Two::<F>::cast_from(weights - Two::<f32>::cast_from(rounded));
            #[unroll]
            for part in 0..2usize {
                let pair = if comptime!(part == 0) {
                    u32::reinterpret(rounded)
                } else {
                    u32::reinterpret(rest)
                };
                #[unroll]
                for e in 0..2usize {
                    // In the lower or the upper half of a word: for even channels or for odd ones.
                    let weight = if comptime!(e == 0) {
                        (pair & 0xffffu32) << shift
                    } else {
                        (pair >> 16u32) << shift
                    };
                    #[unroll]
                    for i in 0..comptime!(2 * wide) {
                        let value = values[comptime!((2 * n + e) * wide + i / 2)];
                        multiply::<F>(
                            weight,
                            0u32,
                            0u32,
                            weight,
                            value.extract(comptime!(i % 2 * 2)),
                            value.extract(comptime!(i % 2 * 2 + 1)),
                            &mut sums,
                            comptime!(part * count_sums + 4 * i),
                        );
                    }
                }
            }
        }
        before += comptime!(team * TOKENS);
    }

    total += plane_shuffle_xor(total, 1u32);
    total += plane_shuffle_xor(total, 2u32);
    let row = (place * 4 + g % 4) * comptime!(row_words(head_dim));
    #[unroll]
    for i in 0..count_sums {
        // Vector 2 t, 2 t + 1 or 8 further; word of it; half of that.
        let channel = comptime!(64 * (i / 8) + 8 * (i % 2) + 4 * (i / 4 % 2) + 2 * (i / 2 % 2))
            + 16 * t
            + g / 4;
        warps.sums[row + place_of(channel)] = sums[i] + sums[comptime!(count_sums + i)];
    }
    if t == 0 && g < 4 {
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
