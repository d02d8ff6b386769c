//! Decode attention for any CubeCL runtime: shared memory and barriers, nothing else.
//!
//! A cube is one work item of the plan and one KV head, with all query heads that share it. It
//! takes 64 tokens at a time: every unit scores some tokens against all query heads, the softmax
//! moves on, then every unit adds up some channels of the values. Codes are unpacked one at a time
//! where they are needed and never written back. Bytes: each page, each exact token and the query
//! once, and a partial of `heads (head_dim + 2)` f32 per item.

use cubecl::prelude::*;

use super::field::{number, place};
use super::merge::{F4, MAX_PARTS, merge, store_partial};
use super::spec::Store;
use super::steps::{Item, Row, item, item_row, page, row};
use super::tile::{ExactPlace, TILE, TileMemory, exact_tile, softmax, start};

/// What a decode kernel is specialised by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub key: Store,
    pub value: Store,
    pub head_dim: usize,
    pub page_tokens: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// Query heads per cube.
    pub heads: usize,
    /// Sink positions of a slot.
    pub sink: usize,
    /// Positions of a slot.
    pub slot_tokens: usize,
    /// Planes of 32 units in a cube; 0 where the device has no plane operations.
    pub planes: usize,
    /// The last cube of a row merges.
    pub merge: bool,
}

impl Shape {
    /// Cubes that share a KV head.
    pub fn tiles(&self) -> usize {
        self.group.div_ceil(self.heads)
    }
}

/// The query heads of this cube.
#[derive(CubeType, Clone, Copy)]
pub struct Heads {
    pub kv_head: usize,
    /// How many there are, at most `shape.heads`.
    pub held: usize,
    /// First element of the query and the output.
    pub first: usize,
    /// First partial of this group of heads.
    pub first_partial: usize,
}

#[cube]
pub fn heads(row: usize, parts: usize, #[comptime] shape: Shape) -> Heads {
    let tiles = comptime!(shape.tiles());
    let kv_head = CUBE_POS_Y as usize / tiles;
    let tile = CUBE_POS_Y as usize % tiles;
    let before = tile * comptime!(shape.heads);
    let held = select(
        before + comptime!(shape.heads) <= comptime!(shape.group),
        comptime!(shape.heads).runtime(),
        comptime!(shape.group) - before,
    );
    let head = kv_head * comptime!(shape.group) + before;
    Heads {
        kv_head,
        held,
        first: (row * comptime!(shape.kv_heads * shape.group) + head) * comptime!(shape.head_dim),
        first_partial: CUBE_POS_Y as usize * parts,
    }
}

/// The exact tokens of a row and KV head.
#[cube]
pub fn exact_place(
    index: usize,
    row: &Row,
    kv_head: usize,
    #[comptime] shape: Shape,
) -> ExactPlace {
    let head_dim = comptime!(shape.head_dim);
    let kv_heads = comptime!(shape.kv_heads);
    ExactPlace {
        tier: (row.slot * kv_heads + kv_head) * comptime!(shape.slot_tokens) * head_dim,
        own: (index * kv_heads + kv_head) * head_dim,
        sinks: row.sinks,
        held: row.sinks + row.recent,
    }
}

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

/// Stores the cube's partial; the last cube of the row merges all, where that is possible.
#[cube]
pub fn finish<F: Float>(
    memory: &mut TileMemory,
    counters: &[Atomic<u32>],
    partials: &mut [F4],
    stats: &mut [f32],
    out: &mut [F],
    item: &Item,
    row: &Row,
    heads: &Heads,
    #[comptime] shape: Shape,
) {
    store_partial(
        memory,
        partials,
        stats,
        heads.first_partial + item.part,
        comptime!(shape.heads),
        comptime!(shape.head_dim),
    );
    if comptime!(shape.merge) {
        let mut arrived = Shared::<u32>::new();
        // Publish the partial, then announce it.
        sync_storage();
        if UNIT_POS == 0 {
            let counter = item.row * CUBE_COUNT_Y as usize + CUBE_POS_Y as usize;
            let before = counters[counter].fetch_add(1u32);
            *arrived = before;
            if before as usize + 1 == row.parts {
                counters[counter].store(0u32);
            }
        }
        sync_cube();
        if *arrived as usize + 1 == row.parts {
            // See what the others published.
            sync_storage();
            let mut weights = Shared::<[f32]>::new_slice(comptime!(shape.heads * MAX_PARTS));
            merge::<F>(
                partials,
                stats,
                out,
                &mut weights,
                heads.first_partial + row.first_part,
                row.parts,
                heads.first,
                heads.held,
                comptime!(shape.heads),
                comptime!(shape.head_dim),
                comptime!(shape.planes),
            );
        }
    }
}

/// Merges the partials of one row and group of heads per cube, where cubes of one launch do not
/// see each other's writes.
#[cube(launch_unchecked)]
pub fn merge_rows<F: Float>(
    partials: &mut [F4],
    stats: &mut [f32],
    steps: &[u32],
    out: &mut [F],
    items: u32,
    parts: u32,
    #[comptime] shape: Shape,
    #[define(F)] _dtype: ElemType,
) {
    let index = CUBE_POS_X as usize;
    let row = row(steps, items as usize, index);
    let heads = heads(index, parts as usize, comptime!(shape.clone()));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(shape.heads * MAX_PARTS));
    merge::<F>(
        partials,
        stats,
        out,
        &mut weights,
        heads.first_partial + row.first_part,
        row.parts,
        heads.first,
        heads.held,
        comptime!(shape.heads),
        comptime!(shape.head_dim),
        comptime!(shape.planes),
    );
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

/// The portable decode kernel; grid: work items x groups of query heads.
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
    if item.count + item.exact_count == 0 {
        terminate!();
    }
    let row = item_row(steps, CUBE_POS_X as usize);
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
