//! Exact tokens in the tensor-core kernel: of 16 bits on the tensor cores (`products`), of f32 by
//! plain arithmetic, sixteen at a time, by one plane, without barriers.
//!
//! A unit holds one vector of 16 bytes of every n-th token, of keys and of values, so that loads
//! are of whole lines, and its share of the query in registers. Products are added up by halves: at
//! each exchange a unit keeps one half of its sums and gives the other away, until it has the
//! scores of one token for two heads. All loads of a round are in flight before the first is used.
//! Bytes: `2 head_dim` activations a token.

use cubecl::prelude::*;

use crate::backend::plan::EXACT_TOKENS as TOKENS;

use super::products::exact_products;
use super::query::{F4, QueryMemory};
use super::shape::{Shape, Task, exact_place};
use super::tile::{ExactPlace, LOWEST, position};
use super::warp::{WarpMemory, place_of, row_words};

/// Attention of a plane over its item's exact tokens: of every round of `16 team` tokens, those of the
/// team's plane `member`. The result is number `place` in the shared memory; there is at least one
/// token for it.
#[cube]
pub fn exact_tokens<F: Float, N: Size>(
    warps: &mut WarpMemory,
    memory: &QueryMemory,
    query: &[Vector<F, N>],
    scale: f32,
    own_key: &[Vector<F, N>],
    own_value: &[Vector<F, N>],
    key_tier: &[Vector<F, N>],
    value_tier: &[Vector<F, N>],
    task: &Task,
    lane: usize,
    member: usize,
    place: usize,
    slot: usize,
    #[comptime] team: usize,
    #[comptime] shape: Shape,
) {
    let at = exact_place(
        task.item.row,
        &task.row,
        task.heads.kv_head,
        comptime!(shape.clone()),
    );
    if comptime!(shape.products) {
        exact_products::<F, N>(
            warps, query, scale, own_key, own_value, key_tier, value_tier, task, &at, lane, member,
            place, team, shape,
        );
    } else {
        exact_plane::<F, N>(
            warps, memory, own_key, own_value, key_tier, value_tier, task, &at, lane, member,
            place, slot, team, shape,
        );
    }
}

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

/// [`exact_tokens`] of f32.
#[cube]
fn exact_plane<F: Float, N: Size>(
    warps: &mut WarpMemory,
    query: &QueryMemory,
    own_key: &[Vector<F, N>],
    own_value: &[Vector<F, N>],
    key_tier: &[Vector<F, N>],
    value_tier: &[Vector<F, N>],
    task: &Task,
    at: &ExactPlace,
    lane: usize,
    member: usize,
    place: usize,
    slot: usize,
    #[comptime] team: usize,
    #[comptime] shape: Shape,
) {
    let sink = comptime!(shape.sink);
    let head_dim = comptime!(shape.head_dim);
    let first = task.item.exact_first;
    let count = task.item.exact_count;
    let width = N::value().comptime();
    let vectors = comptime!(head_dim / width);
    // Tokens of one load of the plane, and loads of a round.
    let rows = comptime!(32 / vectors);
    let tokens = comptime!(TOKENS / rows);
    let vector = lane % vectors;
    let row = lane / vectors;
    // Of the scores, a unit ends up with those of this token for heads `2 pair` and `2 pair + 1`.
    let pair = lane % 2;
    let own = row + vector / 2 % tokens * rows;
    // Bits of a lane: one of the pair of heads, these of the token, then copies, then the row.
    let token_bits = comptime!(tokens.trailing_zeros());
    let vector_bits = comptime!(vectors.trailing_zeros());

    let mut queries = Array::<F4>::new(width);
    #[unroll]
    for h in 0..4usize {
        #[unroll]
        for i in 0..comptime!(width / 4) {
            queries[h * comptime!(width / 4) + i] = query.padded
                [(slot * 4 + h) * comptime!(head_dim / 4 + 1) + vector * comptime!(width / 4) + i];
        }
    }
    let mut max = Array::<f32>::new(2usize);
    let mut total = Array::<f32>::new(2usize);
    #[unroll]
    for k in 0..2usize {
        max[k] = f32::new(LOWEST);
        total[k] = 0.0;
    }
    let mut sums = Array::<f32>::new(comptime!(4 * width));
    #[unroll]
    for i in 0..comptime!(4 * width) {
        sums[i] = 0.0;
    }

    let mut before = member * TOKENS;
    while before < count {
        let mut keys = Array::<Vector<F, N>>::new(tokens);
        let mut values = Array::<Vector<F, N>>::new(tokens);
        #[unroll]
        for j in 0..tokens {
            keys[j] = Vector::<F, N>::new(F::new(0.0));
            values[j] = Vector::<F, N>::new(F::new(0.0));
            let t = before + row + comptime!(j * rows);
            if t < count {
                let token = first + t;
                let base = vector_at(at, token, sink, head_dim, width) + vector;
                if token < at.held {
                    keys[j] = key_tier[base];
                    values[j] = value_tier[base];
                } else {
                    keys[j] = own_key[base];
                    values[j] = own_value[base];
                }
            }
        }

        // Units without a token join those that have one, see `tile`.
        sync_plane();
        // Product `((h / 2) tokens + j) 2 + h % 2` of head h and the j-th load.
        let mut scores = Array::<f32>::new(comptime!(4 * tokens));
        #[unroll]
        for j in 0..tokens {
            #[unroll]
            for h in 0..4usize {
                let mut score = f32::new(0.0);
                #[unroll]
                for k in 0..width {
                    score += queries[comptime!(h * (width / 4) + k / 4)].extract(comptime!(k % 4))
                        * f32::cast_from(keys[j].extract(k));
                }
                scores[comptime!((h / 2 * tokens + j) * 2 + h % 2)] = score;
            }
        }
        halve(&mut scores, lane, 0u32, comptime!(2 * tokens));
        #[unroll]
        for step in 0..token_bits {
            let bit = comptime!(token_bits - step);
            halve(&mut scores, lane, bit, comptime!(tokens >> step));
        }
        #[unroll]
        for bit in comptime!(token_bits + 1)..vector_bits {
            #[unroll]
            for k in 0..2usize {
                scores[k] += plane_shuffle_xor(scores[k], comptime!(1u32 << bit));
            }
        }

        let inside = before + own < count;
        let mut weights = Array::<f32>::new(2usize);
        let mut decay = Array::<f32>::new(2usize);
        #[unroll]
        for k in 0..2usize {
            let score = select(inside, scores[k], f32::new(LOWEST));
            let mut top = score;
            #[unroll]
            for bit in 1..5u32 {
                top = f32::max(top, plane_shuffle_xor(top, comptime!(1u32 << bit)));
            }
            let top = f32::max(max[k], top);
            let weight = select(inside, (score - top).exp(), 0.0);
            let mut sum = weight;
            #[unroll]
            for bit in 1..5u32 {
                if comptime!(bit <= token_bits || bit >= vector_bits) {
                    sum += plane_shuffle_xor(sum, comptime!(1u32 << bit));
                }
            }
            decay[k] = (max[k] - top).exp();
            total[k] = total[k] * decay[k] + sum;
            max[k] = top;
            weights[k] = weight;
        }
        if before >= comptime!(team * TOKENS) {
            #[unroll]
            for h in 0..4usize {
                let decay = plane_shuffle(decay[comptime!(h % 2)], comptime!(h as u32 / 2));
                #[unroll]
                for k in 0..width {
                    sums[h * width + k] *= decay;
                }
            }
        }
        #[unroll]
        for j in 0..tokens {
            #[unroll]
            for h in 0..4usize {
                let holder = (row * vectors + comptime!(2 * j + h / 2)) as u32;
                let weight = plane_shuffle(weights[comptime!(h % 2)], holder);
                #[unroll]
                for k in 0..width {
                    sums[h * width + k] += weight * f32::cast_from(values[j].extract(k));
                }
            }
        }
        before += comptime!(team * TOKENS);
    }

    if lane < 2 {
        #[unroll]
        for k in 0..2usize {
            warps.max[place * 4 + 2 * pair + k] = max[k];
            warps.total[place * 4 + 2 * pair + k] = total[k];
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
            let row = (place * 4 + h) * comptime!(row_words(head_dim));
            warps.sums[row + place_of(vector * width + k)] = sum;
        }
    }
}

/// Exchanges with the unit whose lane differs in `bit`: the first `half` numbers of `sums` become
/// the sums of both units' numbers, of the upper half where the lane's bit is set.
#[cube]
pub fn halve(sums: &mut Array<f32>, lane: usize, #[comptime] bit: u32, #[comptime] half: usize) {
    let upper = (lane >> comptime!(bit as usize)) % 2 == 1;
    #[unroll]
    for i in 0..half {
        let kept = select(upper, sums[i + half], sums[i]);
        let given = select(upper, sums[i], sums[i + half]);
        sums[i] = kept + plane_shuffle_xor(given, comptime!(1u32 << bit));
    }
}
