//! Decode attention for any CubeCL runtime: shared memory and barriers, nothing else.
//!
//! A cube is one work item of the plan and one KV head, with all query heads that share it. It
//! takes 64 tokens at a time: every unit scores some tokens against all query heads, the softmax
//! moves on, then every unit adds up some channels of the values. Codes are unpacked one at a time
//! where they are needed and never written back. Bytes: each page, each exact token and the query
//! once, and a partial of `heads head_dim 66 / 64` f32 per item.

use cubecl::prelude::*;

use super::field::{number, place};
use super::merge::finish;
use super::shape::{Shape, exact_place, heads};
use super::spec::Store;
use super::steps::{Item, item, item_row, page};
use super::tile::{ExactPlace, TILE, TileMemory, exact_tile, softmax, start};

/// The tiles of an item's exact tokens.
#[cube]
pub fn exact_tiles<F: Float, N: Size>(
    memory: &mut TileMemory,
    own_key: &[Vector<F, N>],
    own_value: &[Vector<F, N>],
    key_tier: &[Vector<F, N>],
    value_tier: &[Vector<F, N>],
    item: &Item,
    at: &ExactPlace,
    #[comptime] shape: Shape,
) {
    let mut done = 0usize;
    while done < item.exact_count {
        let rest = item.exact_count - done;
        let count = select(rest < comptime!(TILE), rest, comptime!(TILE).runtime());
        exact_tile::<F, N>(
            memory,
            own_key,
            own_value,
            key_tier,
            value_tier,
            at,
            item.exact_first + done,
            count,
            comptime!(shape.sink),
            comptime!(shape.heads),
            comptime!(shape.head_dim),
            comptime!(shape.planes),
        );
        done += comptime!(TILE);
    }
}

/// One number of a page of either store.
#[cube]
fn page_number<F: Float, N: Size>(
    exact: &[Vector<F, N>],
    words: &[u32],
    pairs: &[u32],
    norms: &[u32],
    means: &[u32],
    page: usize,
    chunk: usize,
    head: usize,
    token: usize,
    channel: usize,
    #[comptime] store: Store,
    #[comptime] shape: Shape,
) -> f32 {
    if comptime!(store.packed().is_some()) {
        let side = comptime!(match &store {
            Store::Packed(side) => side.clone(),
            Store::Exact => unreachable!(),
        });
        let at = place(
            page,
            chunk,
            head,
            comptime!(shape.kv_heads),
            comptime!(side.clone()),
        );
        number(
            words,
            pairs,
            norms,
            means,
            &at,
            token as u32,
            channel as u32,
            side,
        )
    } else {
        let row = (page * comptime!(shape.kv_heads) + head) * comptime!(shape.page_tokens)
            + chunk * comptime!(TILE)
            + token;
        let numbers = exact.with_vector_size::<Const<1>>();
        f32::cast_from(numbers[row * comptime!(shape.head_dim) + channel].extract(0usize))
    }
}

/// The portable decode kernel; grid: groups of query heads x work items.
#[cube(launch_unchecked)]
pub fn attend<F: Float, N: Size>(
    query: &[F],
    own_key: &[Vector<F, N>],
    own_value: &[Vector<F, N>],
    key_tier: &[Vector<F, N>],
    value_tier: &[Vector<F, N>],
    key_exact: &[Vector<F, N>],
    key_words: &[u32],
    key_pairs: &[u32],
    key_norms: &[u32],
    key_means: &[u32],
    value_exact: &[Vector<F, N>],
    value_words: &[u32],
    value_pairs: &[u32],
    value_norms: &[u32],
    value_means: &[u32],
    steps: &[u32],
    table: &[u32],
    exchange: &[Atomic<u32>],
    partials: &mut [f32],
    out: &mut [F],
    parts: u32,
    scale: f32,
    #[comptime] shape: Shape,
    #[define(F)] _dtype: ElemType,
) {
    let item = item(steps, CUBE_POS_Y as usize);
    if item.count + item.exact_count == 0 {
        terminate!();
    }
    let row = item_row(steps, CUBE_POS_Y as usize);
    let heads = heads(item.row, parts as usize, comptime!(shape.clone()));
    let head_dim = comptime!(shape.head_dim);
    let count = comptime!(shape.heads);
    let mut memory = TileMemory::new(count, head_dim, comptime!(shape.planes));
    start::<F>(
        &mut memory,
        query,
        heads.first,
        heads.held,
        scale,
        count,
        head_dim,
    );
    sync_cube();

    if item.exact_count > 0 {
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
    }
    if item.count > 0 {
        let chunks = comptime!(shape.page_tokens / TILE);
        for i in item.first..item.first + item.count {
            let (page, valid) = page(table, row.table + i / chunks);
            let chunk = i % chunks;
            let before = chunk * comptime!(TILE);
            let rest = select(valid > before, valid - before, 0usize.runtime());
            let tokens = select(rest < comptime!(TILE), rest, comptime!(TILE).runtime());
            if comptime!(shape.key == Store::Exact && shape.value == Store::Exact) {
                // A chunk of exact pages is a tile of exact tokens that stand elsewhere.
                let row = (page * comptime!(shape.kv_heads) + heads.kv_head)
                    * comptime!(shape.page_tokens)
                    + before;
                let at = ExactPlace {
                    tier: row * head_dim,
                    own: 0usize.runtime(),
                    sinks: tokens,
                    held: tokens,
                };
                if tokens > 0 {
                    exact_tile::<F, N>(
                        &mut memory,
                        own_key,
                        own_value,
                        key_exact,
                        value_exact,
                        &at,
                        0usize.runtime(),
                        tokens,
                        comptime!(shape.sink),
                        count,
                        head_dim,
                        comptime!(shape.planes),
                    );
                }
            } else if tokens > 0 {
                let mut t = UNIT_POS as usize;
                while t < tokens {
                    let mut dots = Array::<f32>::new(count);
                    #[unroll]
                    for h in 0..count {
                        dots[h] = 0.0;
                    }
                    for c in 0..head_dim {
                        let k = page_number::<F, N>(
                            key_exact,
                            key_words,
                            key_pairs,
                            key_norms,
                            key_means,
                            page,
                            chunk,
                            heads.kv_head,
                            t,
                            c,
                            comptime!(shape.key.clone()),
                            comptime!(shape.clone()),
                        );
                        #[unroll]
                        for h in 0..count {
                            dots[h] += memory.query[h * head_dim + c] * k;
                        }
                    }
                    #[unroll]
                    for h in 0..count {
                        memory.scores[h * comptime!(TILE) + t] = dots[h];
                    }
                    t += CUBE_DIM as usize;
                }
                sync_cube();
                softmax(&mut memory, tokens, count, comptime!(shape.planes));
                sync_cube();
                let mut c = UNIT_POS as usize;
                while c < head_dim {
                    let mut sums = Array::<f32>::new(count);
                    #[unroll]
                    for h in 0..count {
                        sums[h] = memory.sums[h * head_dim + c] * memory.decay[h];
                    }
                    for t in 0..tokens {
                        let v = page_number::<F, N>(
                            value_exact,
                            value_words,
                            value_pairs,
                            value_norms,
                            value_means,
                            page,
                            chunk,
                            heads.kv_head,
                            t,
                            c,
                            comptime!(shape.value.clone()),
                            comptime!(shape.clone()),
                        );
                        #[unroll]
                        for h in 0..count {
                            sums[h] += memory.scores[h * comptime!(TILE) + t] * v;
                        }
                    }
                    #[unroll]
                    for h in 0..count {
                        memory.sums[h * head_dim + c] = sums[h];
                    }
                    c += CUBE_DIM as usize;
                }
                sync_cube();
            }
        }
    }
    finish::<F>(
        &memory,
        exchange,
        partials,
        out,
        &item,
        &row,
        &heads,
        comptime!(shape.clone()),
    );
}
