//! Partial results of a row's work items put together.
//!
//! A partial is the weighted sum of values `[head_dim]`, the maximum score and the sum of weights
//! of one query head. The last cube of a row to arrive merges them where the device promises that
//! it sees the others' writes; elsewhere a second launch does. Bytes: (head_dim + 2) f32 per
//! partial, written once and read once, mostly in the L2.

use cubecl::prelude::*;

use super::shape::{Heads, Shape, heads};
use super::steps::{Item, Row, row};
use super::tile::{LOWEST, TileMemory};
use crate::backend::plan::MAX_PARTS;

pub type F4 = Vector<f32, Const<4>>;

/// Writes a cube's sums as the partial number `part` of its group of heads.
#[cube]
pub fn store_partial(
    memory: &mut TileMemory,
    partials: &mut [F4],
    stats: &mut [f32],
    part: usize,
    #[comptime] heads: usize,
    #[comptime] head_dim: usize,
) {
    let units = CUBE_DIM as usize;
    let quads = comptime!(heads * head_dim / 4);
    let mut i = UNIT_POS as usize;
    while i < quads {
        let mut sums = F4::new(0.0);
        #[unroll]
        for k in 0..4usize {
            sums.insert(k, memory.sums[4 * i + k]);
        }
        partials[part * quads + i] = sums;
        i += units;
    }
    let mut h = UNIT_POS as usize;
    while h < heads {
        stats[(part * heads + h) * 2] = memory.max[h];
        stats[(part * heads + h) * 2 + 1] = memory.total[h];
        h += units;
    }
}

/// Merges `parts` partials from `first` on into `held` heads of the output from `out_first` on.
/// `weights` is shared memory of `heads * MAX_PARTS`.
#[cube]
pub fn merge<F: Float>(
    partials: &mut [F4],
    stats: &mut [f32],
    out: &mut [F],
    weights: &mut Shared<[f32]>,
    first: usize,
    parts: usize,
    out_first: usize,
    held: usize,
    #[comptime] heads: usize,
    #[comptime] head_dim: usize,
    #[comptime] planes: usize,
) {
    let units = CUBE_DIM as usize;
    // Weights of the partials, the division by their sum included.
    if comptime!(planes > 0) {
        let lane = UNIT_POS as usize % 32;
        let mut h = UNIT_POS as usize / 32;
        while h < heads {
            let mut max = f32::new(LOWEST);
            let mut p = lane;
            while p < parts {
                max = f32::max(max, stats[((first + p) * heads + h) * 2]);
                p += 32;
            }
            let max = plane_max(max);
            let mut total = f32::new(0.0);
            let mut p = lane;
            while p < parts {
                let at = ((first + p) * heads + h) * 2;
                let weight = (stats[at] - max).exp();
                total += stats[at + 1] * weight;
                weights[h * comptime!(MAX_PARTS) + p] = weight;
                p += 32;
            }
            let scale = 1.0 / plane_sum(total);
            let mut p = lane;
            while p < parts {
                weights[h * comptime!(MAX_PARTS) + p] *= scale;
                p += 32;
            }
            h += units / 32;
        }
    } else {
        let mut h = UNIT_POS as usize;
        while h < heads {
            let mut max = f32::new(LOWEST);
            for p in 0..parts {
                max = f32::max(max, stats[((first + p) * heads + h) * 2]);
            }
            let mut total = f32::new(0.0);
            for p in 0..parts {
                let at = ((first + p) * heads + h) * 2;
                let weight = (stats[at] - max).exp();
                total += stats[at + 1] * weight;
                weights[h * comptime!(MAX_PARTS) + p] = weight;
            }
            for p in 0..parts {
                weights[h * comptime!(MAX_PARTS) + p] /= total;
            }
            h += units;
        }
    }
    sync_cube();
    let quads = comptime!(heads * head_dim / 4);
    // Loads in flight on a GPU: the partials come from the L2, hundreds of cycles away.
    let batch = comptime!(if planes > 0 { 8 } else { 1 });
    let mut i = UNIT_POS as usize;
    while i < held * comptime!(head_dim / 4) {
        let h = i / comptime!(head_dim / 4);
        let mut sums = F4::new(0.0);
        let mut p = 0usize;
        while p < parts {
            let mut loaded = Array::<F4>::new(batch);
            #[unroll]
            for k in 0..batch {
                loaded[k] = F4::new(0.0);
                if p + k < parts {
                    loaded[k] = partials[(first + p + k) * quads + i];
                }
            }
            #[unroll]
            for k in 0..batch {
                let weight = if p + k < parts {
                    weights[h * comptime!(MAX_PARTS) + p + k]
                } else {
                    f32::new(0.0)
                };
                sums += loaded[k] * F4::new(weight);
            }
            p += batch;
        }
        #[unroll]
        for k in 0..4usize {
            out[out_first + 4 * i + k] = F::cast_from(sums.extract(k));
        }
        i += units;
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
