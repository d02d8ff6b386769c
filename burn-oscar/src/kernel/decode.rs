//! Decode attention on the integer tensor cores, on packed bits.
//!
//! A cube is one work item of the plan and four query heads of one KV head. An item of history is
//! cut into one run of chunks per plane (warp); a plane loads a chunk of 64 tokens, about 4.5 KB,
//! in 16-byte pieces half a chunk ahead, and no code ever becomes a float:
//!
//! - `q.k = scale (q.code) + offset sum(q)`: the query, rounded once to 16 bits and split into a
//!   high and a low byte, is the signed operand of `mma.m16n8k32`; head h owns the columns 2h and
//!   2h+1, so both halves of a product end in one lane.
//! - A two-bit field is masked, not shifted, so its codes are multiplied by 4^field. A field is a
//!   tile of tokens (keys) or of channels (values), which makes that a constant of the product.
//! - `sum p (scale code + offset)`: softmax weights times value scales, rounded to 16 bits against
//!   the chunk's largest, go from the lanes that computed them to those that multiply them by four
//!   shuffles of packed bytes.
//!
//! Bytes: each page once (2.09 to 3 bits per value), each exact token once, a partial of
//! `4 (head_dim + 2)` f32 per item. Integer sums are exact: the result differs from f32 attention
//! over the dequantised pages by the 16-bit roundings only, about 1e-4.

use cubecl::prelude::*;

use super::attend::{Shape, exact_place, exact_tiles, finish, heads};
use super::chunk::{self, W4};
use super::fragments::key_products;
use super::merge::F4;
use super::query::{QueryMemory, load_query};
use super::spec::Parameters;
use super::steps::{item, page, row};
use super::tile::{LOWEST, PLANES, TileMemory, start};
use super::warp::{
    MEAN_SCORE, Running, WarpMemory, combine, flush_page, new_page, store_warp, values,
};

/// The tensor-core decode kernel; grid: work items x groups of four query heads.
#[cube(launch_unchecked, fast_math = FastMath::all())]
pub fn decode<F: Float, N: Size>(
    query: &[F],
    own_key: &[Vector<F, N>],
    own_value: &[Vector<F, N>],
    key_tier: &[Vector<F, N>],
    value_tier: &[Vector<F, N>],
    key_words: &[W4],
    key_pairs: &[W4],
    key_norms: &[u32],
    key_means: &[u32],
    value_words: &[W4],
    value_pairs: &[W4],
    value_means: &[u32],
    steps: &[u32],
    table: &[u32],
    counters: &[Atomic<u32>],
    partials: &mut [F4],
    stats: &mut [f32],
    out: &mut [F],
    parts: u32,
    scale: f32,
    #[comptime] shape: Shape,
    #[define(F)] _dtype: ElemType,
) {
    let item = item(steps, CUBE_POS_X as usize);
    if item.count == 0 {
        terminate!();
    }
    let row = row(steps, CUBE_COUNT_X as usize, item.row);
    let heads = heads(item.row, parts as usize, comptime!(shape.clone()));
    let head_dim = comptime!(shape.head_dim);
    let mut memory = TileMemory::new(4usize, head_dim, true);
    start::<F>(
        &mut memory,
        query,
        heads.first,
        heads.held,
        scale,
        4usize,
        head_dim,
    );
    sync_cube();

    if item.exact {
        let at = exact_place(item.row, &row, heads.kv_head, comptime!(shape.clone()));
        exact_tiles::<F, N>(
            &mut memory,
            own_key,
            own_value,
            key_tier,
            value_tier,
            &item,
            &at,
            comptime!(shape.clone()),
        );
    } else {
        let key = comptime!(shape.key.packed().cloned().unwrap());
        let value = comptime!(shape.value.packed().cloned().unwrap());
        let lane = UNIT_POS as usize % 32;
        let warp = UNIT_POS as usize / 32;
        let chunks = comptime!(key.chunks());
        let mut query_memory = QueryMemory::new(comptime!(key.clone()));
        load_query(
            &memory,
            &mut query_memory,
            lane,
            warp,
            comptime!(key.clone()),
        );
        sync_cube();

        let mut running = Running::new(comptime!(value.clone()));
        let products = comptime!(key_products(&key));
        let mut bytes = Array::<u32>::new(comptime!(2 * products.terms.len()));
        let per_channel = comptime!(matches!(key.parameters, Parameters::ChannelPairs { .. }));
        if comptime!(!per_channel) {
            query_memory.fragments(&mut bytes, lane, comptime!(products.clone()));
        }

        let mut c = item.first + item.count * warp / comptime!(PLANES);
        let end = item.first + item.count * (warp + 1) / comptime!(PLANES);
        let mut keys = Array::<W4>::new(comptime!(chunk::loads(&key)));
        let mut held = Array::<W4>::new(comptime!(chunk::loads(&value)));
        let mut page_now = 0usize.runtime();
        let mut valid_now = 0usize.runtime();
        let mut page_next = 0usize.runtime();
        let mut valid_next = 0usize.runtime();
        if c < end {
            let (p, v) = page(table, row.table + c / chunks);
            page_now = p;
            valid_now = v;
            let at = p * comptime!(shape.kv_heads) + heads.kv_head;
            chunk::load(
                key_words,
                key_pairs,
                at,
                c % chunks,
                lane,
                &mut keys,
                comptime!(key.clone()),
            );
            chunk::load(
                value_words,
                value_pairs,
                at,
                c % chunks,
                lane,
                &mut held,
                comptime!(value.clone()),
            );
            if c + 1 < end {
                let (p, v) = page(table, row.table + (c + 1) / chunks);
                page_next = p;
                valid_next = v;
            }
            if comptime!(key.means) {
                new_page(&memory, key_means, at, lane, &mut running, head_dim);
            }
        }
        while c < end {
            let chunk_now = c % chunks;
            let at = page_now * comptime!(shape.kv_heads) + heads.kv_head;
            let next = page_next * comptime!(shape.kv_heads) + heads.kv_head;
            let limit = valid_now as i32 - 64 * chunk_now as i32;
            if limit < 64 {
                chunk::mask_parameters(&mut keys, limit, lane, comptime!(key.clone()));
                chunk::mask_parameters(&mut held, limit, lane, comptime!(value.clone()));
            }
            let mut scores = Array::<f32>::new(8usize);
            if comptime!(per_channel) {
                query_memory.scores_per_channel(&keys, &mut scores, lane, comptime!(key.clone()));
            } else {
                query_memory.scores_per_token(
                    &keys,
                    &bytes,
                    &mut scores,
                    lane,
                    comptime!(key.clone()),
                );
            }
            if comptime!(key.norms) {
                let first = page_now * comptime!(key.page_tokens) + chunk_now * 64;
                chunk::apply_norms(key_norms, first, limit, lane, &mut scores);
            }
            // The next keys are on their way while these values are worked on, the next values
            // while those keys are: one set of registers is enough, and more planes fit.
            if c + 1 < end {
                chunk::load(
                    key_words,
                    key_pairs,
                    next,
                    (c + 1) % chunks,
                    lane,
                    &mut keys,
                    comptime!(key.clone()),
                );
            }
            if comptime!(key.means) {
                #[unroll]
                for e in 0..8usize {
                    scores[e] += running.state[MEAN_SCORE];
                }
            }
            if limit < 64 {
                #[unroll]
                for e in 0..8usize {
                    let inside = ((8 * e + lane / 4) as i32) < limit;
                    scores[e] = select(inside, scores[e], f32::new(LOWEST));
                }
            }
            values(
                &held,
                &scores,
                &mut running,
                limit,
                lane,
                comptime!(value.clone()),
            );
            if c + 1 < end {
                chunk::load(
                    value_words,
                    value_pairs,
                    next,
                    (c + 1) % chunks,
                    lane,
                    &mut held,
                    comptime!(value.clone()),
                );
            }
            if comptime!(value.means || key.means) {
                if c + 1 == end || page_next != page_now {
                    if comptime!(value.means) {
                        flush_page(value_means, at, lane, &mut running, head_dim);
                    }
                    if comptime!(key.means) {
                        if c + 1 < end {
                            new_page(&memory, key_means, next, lane, &mut running, head_dim);
                        }
                    }
                }
            }
            page_now = page_next;
            valid_now = valid_next;
            if c + 2 < end {
                let (p, v) = page(table, row.table + (c + 2) / chunks);
                page_next = p;
                valid_next = v;
            }
            c += 1;
        }
        let mut warps = WarpMemory::new();
        store_warp(
            &mut warps,
            &mut memory,
            &running,
            lane,
            warp,
            comptime!(value.clone()),
        );
        sync_cube();
        combine(&warps, &mut memory, head_dim);
        sync_cube();
    }
    finish::<F>(
        &mut memory,
        counters,
        partials,
        stats,
        out,
        &item,
        &row,
        &heads,
        comptime!(shape.clone()),
    );
}
