//! Decode attention on the integer tensor cores, on packed bits.
//!
//! A cube is one work item of the plan, or two, and four query heads of one KV head. The chunks of
//! an item's history go round the planes (warps); a plane loads a chunk of 64 tokens, about 4.5 KB,
//! in 16-byte pieces half a chunk ahead, and no code ever becomes a float:
//!
//! - `q.k = scale (q.code) + offset sum(q)`: the query, rounded once to 16 bits and split into a
//!   high and a low byte, is the signed operand of `mma.m16n8k32`; head h owns the columns 2h and
//!   2h+1, so both halves of a product end in one lane (`scores`).
//! - A two-bit field is masked, not shifted, so its codes are multiplied by 4^field. A field is a
//!   tile of tokens (keys) or of channels (values), which makes that a constant of the product.
//! - `sum p (scale code + offset)`: softmax weights times value scales, rounded to 16 bits against
//!   the chunk's largest, go from the lanes that computed them to those that multiply them by
//!   shuffles of packed bytes (`values`). Weights are relative to the plane's largest score so far,
//!   which seldom grows: only then are older sums multiplied.
//!
//! Bytes: each page once (2.09 to 3 bits per value), each exact token once, a partial of
//! `4 head_dim 66 / 64` f32 per item. Integer sums are exact: the result differs from f32 attention
//! over the dequantised pages by the roundings only. Of f32 activations the rests of both are
//! multiplied as well, which takes twice the products, and leaves 2e-6.

use cubecl::prelude::*;

use crate::backend::plan::EXACT_TOKENS as EXACT;

use super::chunk::{self, W4};
use super::exact::exact_tokens;
use super::fragments::key_products;
use super::handover::{deliver, slices};
use super::mean::{flush_page, load_mean, new_page};
use super::query::{OwnQuery, QueryMemory};
use super::running::Running;
use super::shape::{Shape, task};
use super::spec::Parameters;
use super::steps::{item_row, near_page, page};
use super::tile::LOWEST;
use super::values::values;
use super::warp::WarpMemory;

/// The tensor-core decode kernel; grid: groups of four query heads x work items, `slots` to a cube.
///
/// With two items a cube has its first and last steps, in which no bytes move, once instead of
/// twice: half of its planes, a team, work on each.
#[cube(launch_unchecked, fast_math = FastMath::all())]
pub fn decode<F: Float, N: Size>(
    query: &[Vector<F, N>],
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
    exchange: &[Atomic<u32>],
    out: &mut [F],
    rows: u32,
    parts: u32,
    scale: f32,
    #[comptime] shape: Shape,
    #[define(F)] _dtype: ElemType,
) {
    let lane = UNIT_POS as usize % 32;
    // A shuffle tells the compiler that a plane has one of them: it need not look for lanes that are
    // elsewhere.
    let warp = plane_shuffle(UNIT_POS as usize / 32, 0u32);
    let head_dim = comptime!(shape.head_dim);
    let key = comptime!(shape.key.packed().cloned().unwrap());
    let value = comptime!(shape.value.packed().cloned().unwrap());
    let planes = comptime!(shape.planes);
    let slots = comptime!(shape.slots);
    let chunks = comptime!(key.chunks());
    let team = comptime!(planes / slots);
    let first_item = CUBE_POS_Y as usize * slots;

    let mut slot = 0usize.runtime();
    if comptime!(slots > 1) {
        slot = warp / team;
    }
    let member = warp - slot * team;
    let own = task(
        steps,
        first_item + slot,
        rows,
        parts,
        lane,
        comptime!(shape.clone()),
    );
    let own_query = OwnQuery::load::<F, N>(
        query,
        &own.heads,
        scale,
        lane,
        member,
        comptime!(key.clone()),
    );
    // An item without tokens has no parts, no chunks and no pages, nor have those after it.
    // Looking at all of them has all words of the item on their way before the first is there.
    let nothing = (own.near | (own.item.count + own.row.parts) as u32) == 0u32;
    if comptime!(slots == 1) {
        if nothing {
            terminate!();
        }
    } else if item_row(steps, first_item).parts == 0 {
        terminate!();
    }
    let mut query_memory = QueryMemory::new(comptime!(key.clone()), comptime!(shape.fine), slots);
    let mut warps = WarpMemory::new(planes, head_dim);
    if member < 4 {
        own_query.share(
            &mut query_memory,
            lane,
            slot * 4 + member,
            comptime!(key.clone()),
        );
    }
    sync_cube();

    let near = own.near;
    let item = own.item;
    let row = own.row;
    let heads = own.heads;
    // Exact tokens go to the first planes, history to the others first.
    let has_exact = member * EXACT < item.exact_count;
    let exact_planes = item.exact_count.div_ceil(EXACT) % team;
    let turn = (member + team - exact_planes) % team;
    // Planes take neighbouring chunks, so that a cube reads close addresses; where pages have
    // several chunks, and perhaps means, a plane's chunks are one run.
    let mut c = item.first + turn;
    let mut end = item.first + item.count;
    if comptime!(chunks > 1) {
        let share = item.count / team;
        let more = item.count % team;
        c = item.first + turn * share + usize::min(turn, more);
        end = c + share + (turn < more) as usize;
    }
    let stride = comptime!(if chunks > 1 { 1 } else { team });
    let mut c_next = c + stride;
    // The same number, but one that could differ by lane as far as the compiler knows: a condition
    // of the whole plane would be copied for every load that depends on it. A table's entry has
    // its highest bit clear.
    let end_of_lane = end + (near >> 31u32) as usize;
    let mut page_now = 0usize.runtime();
    let mut valid_now = 0usize.runtime();
    let mut page_next = 0usize.runtime();
    let mut valid_next = 0usize.runtime();
    if c < end {
        let (p, v) = near_page(near, item.first / chunks, table, &row, c / chunks);
        page_now = p;
        valid_now = v;
    }
    if c_next < end {
        let (p, v) = near_page(near, item.first / chunks, table, &row, c_next / chunks);
        page_next = p;
        valid_next = v;
    }
    if has_exact {
        exact_tokens::<F, N>(
            &mut warps,
            &query_memory,
            query,
            scale,
            own_key,
            own_value,
            key_tier,
            value_tier,
            &own,
            lane,
            member,
            warp,
            slot,
            team,
            comptime!(shape.clone()),
        );
        sync_plane();
    }
    let mut running = Running::new(comptime!(value.clone()));
    let products = comptime!(key_products(&key));
    let mut bytes = Array::<u32>::new(comptime!(2 * products.terms.len()));
    let mut rest = Array::<u32>::new(comptime!(2 * products.terms.len()));
    let per_channel = comptime!(matches!(key.parameters, Parameters::ChannelPairs { .. }));
    if comptime!(!per_channel) {
        query_memory.fragments(
            &mut bytes,
            &mut rest,
            slot,
            lane,
            comptime!(products.clone()),
        );
    }
    let mut keys = Array::<W4>::new(comptime!(chunk::loads(&key)));
    let mut held = Array::<W4>::new(comptime!(chunk::loads(&value)));
    let mut norms = 0u32.runtime();
    let mut mean_key = Array::<u32>::new(2usize);
    let mut mean_value = Array::<u32>::new(2usize);
    if c < end {
        let at = page_now * comptime!(shape.kv_heads) + heads.kv_head;
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
        if comptime!(key.norms) {
            let first = page_now * comptime!(key.page_tokens) + c % chunks * 64;
            norms = chunk::load_norms(key_norms, first, lane);
        }
        if comptime!(value.means) {
            load_mean(
                value_means,
                at,
                lane,
                &mut mean_value,
                comptime!(value.clone()),
            );
        }
        if comptime!(key.means) {
            load_mean(key_means, at, lane, &mut mean_key, comptime!(key.clone()));
            new_page(&query_memory, &mean_key, slot, lane, &mut running, head_dim);
        }
    }
    while c < end {
        let chunk_now = c % chunks;
        let next = page_next * comptime!(shape.kv_heads) + heads.kv_head;
        let limit = valid_now as i32 - 64 * chunk_now as i32;
        let mut scores = Array::<f32>::new(8usize);
        if comptime!(per_channel) {
            query_memory.scores_per_channel(&keys, &mut scores, slot, lane, comptime!(key.clone()));
        } else {
            query_memory.scores_per_token(
                &keys,
                &bytes,
                &rest,
                &mut scores,
                slot,
                lane,
                comptime!(key.clone()),
            );
        }
        if comptime!(key.norms) {
            chunk::apply_norms(norms, lane, &mut scores);
        }
        // The next keys are on their way while these values are worked on, the next values
        // while those keys are: one set of registers is enough, and more planes fit.
        if c_next < end_of_lane {
            chunk::load(
                key_words,
                key_pairs,
                next,
                c_next % chunks,
                lane,
                &mut keys,
                comptime!(key.clone()),
            );
            if comptime!(key.norms) {
                let first = page_next * comptime!(key.page_tokens) + c_next % chunks * 64;
                norms = chunk::load_norms(key_norms, first, lane);
            }
            if comptime!(key.means) {
                load_mean(key_means, next, lane, &mut mean_key, comptime!(key.clone()));
            }
        }
        if limit < 64 {
            // What stands behind the last token may be anything. The barrier keeps the compiler
            // from doing this for every chunk.
            sync_plane();
            chunk::mask_parameters(&mut held, limit, lane, comptime!(value.clone()));
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
            lane,
            comptime!(key.means),
            comptime!(shape.fine),
            comptime!(value.clone()),
        );
        if c_next < end_of_lane {
            chunk::load(
                value_words,
                value_pairs,
                next,
                c_next % chunks,
                lane,
                &mut held,
                comptime!(value.clone()),
            );
        }
        if comptime!(value.means || key.means) {
            if c_next >= end || page_next != page_now {
                if comptime!(value.means) {
                    flush_page(&mean_value, lane, &mut running, head_dim);
                    if c_next < end {
                        load_mean(
                            value_means,
                            next,
                            lane,
                            &mut mean_value,
                            comptime!(value.clone()),
                        );
                    }
                }
                if comptime!(key.means) {
                    new_page(&query_memory, &mean_key, slot, lane, &mut running, head_dim);
                }
            }
        }
        page_now = page_next;
        valid_now = valid_next;
        c = c_next;
        c_next = c + stride;
        if c_next < end {
            let (p, v) = page(table, row.table + c_next / chunks);
            page_next = p;
            valid_next = v;
        }
    }
    warps.store(&running, has_exact, lane, warp, comptime!(value.clone()));
    sync_cube();
    // From here on planes work for themselves: each has its slices of the results.
    let slices = comptime!(4 * slices(head_dim));
    let mut n = warp;
    while n < comptime!(slots * slices) {
        let slot = n / slices;
        let number = n % slices;
        let delivered = if comptime!(slots == 1) {
            own
        } else {
            task(
                steps,
                first_item + slot,
                rows,
                parts,
                lane,
                comptime!(shape.clone()),
            )
        };
        let head = number / comptime!(slices / 4);
        if delivered.row.parts > 0 && head < delivered.heads.held {
            let slice = warps.combine(slot, number, lane, head_dim, team);
            deliver::<F>(
                &slice,
                exchange,
                out,
                &delivered.item,
                &delivered.row,
                &delivered.heads,
                lane,
                warp,
                comptime!(shape.clone()),
            );
        }
        n += planes;
    }
}
