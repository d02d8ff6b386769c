//! The end of the portable kernel: slices to the output or to other cubes of the launch (`handover`),
//! or, where cubes cannot talk to each other, partial results to memory, for a second launch.
//!
//! A partial is the weighted sum of values `[head_dim]`, the maximum score and the sum of weights
//! of one query head. A row of one part has none: its cube writes the output. Bytes: (head_dim + 2)
//! f32 per partial, written once and read once, mostly in the L2.

use cubecl::prelude::*;

use super::handover::{Slice, deliver, slices};
use super::shape::{Heads, Shape, heads};
use super::steps::{Item, Row, row};
use super::tile::{LOWEST, TileMemory};
use crate::backend::plan::{MAX_PARTS, SLICE_CHANNELS};

/// Writes the output where the cube has all of its row; else hands its partial on, or merges.
#[cube]
pub fn finish<F: Float>(
    memory: &TileMemory,
    exchange: &[Atomic<u32>],
    partials: &mut [f32],
    out: &mut [F],
    item: &Item,
    row: &Row,
    heads: &Heads,
    #[comptime] shape: Shape,
) {
    let head_dim = comptime!(shape.head_dim);
    if comptime!(shape.merge) {
        let of_head = comptime!(slices(head_dim));
        let lane = UNIT_POS as usize % 32;
        let plane = UNIT_POS as usize / 32;
        let mut number = plane;
        while number < heads.held * of_head {
            let head = number / of_head;
            let channel = number % of_head * comptime!(SLICE_CHANNELS) + lane;
            let slice = Slice {
                number,
                channel_a: channel,
                channel_b: channel + 32,
                sum_a: memory.sums[head * head_dim + channel],
                sum_b: memory.sums[head * head_dim + channel + 32],
                max: memory.max[head],
                total: memory.total[head],
            };
            deliver::<F>(
                &slice,
                exchange,
                out,
                item,
                row,
                heads,
                lane,
                plane,
                comptime!(shape.clone()),
            );
            number += comptime!(shape.planes);
        }
    } else if row.parts == 1 {
        let mut i = UNIT_POS as usize;
        while i < heads.held * head_dim {
            out[heads.first + i] = F::cast_from(memory.sums[i] / memory.total[i / head_dim]);
            i += CUBE_DIM as usize;
        }
    } else {
        let first = (heads.first_partial + item.part) * comptime!(shape.partial_words());
        lay_down(memory, partials, first, comptime!(shape.clone()));
    }
}

/// Writes the cube's numbers from word `first` on: sums `[heads, head_dim]`, then maximum and total
/// of each head.
#[cube]
fn lay_down(memory: &TileMemory, partials: &mut [f32], first: usize, #[comptime] shape: Shape) {
    let sums = comptime!(shape.heads * shape.head_dim);
    let mut h = UNIT_POS as usize;
    while h < comptime!(shape.heads) {
        partials[first + sums + 2 * h] = memory.max[h];
        partials[first + sums + 2 * h + 1] = memory.total[h];
        h += CUBE_DIM as usize;
    }
    let mut i = UNIT_POS as usize;
    while i < sums {
        partials[first + i] = memory.sums[i];
        i += CUBE_DIM as usize;
    }
}

/// The second launch; grid: groups of heads x rows.
#[cube(launch_unchecked)]
pub fn merge_rows<F: Float>(
    partials: &[f32],
    steps: &[u32],
    out: &mut [F],
    items: u32,
    parts: u32,
    #[comptime] shape: Shape,
    #[define(F)] _dtype: ElemType,
) {
    let index = CUBE_POS_Y as usize;
    let row = row(steps, items as usize, index);
    if row.parts == 1 {
        terminate!();
    }
    let heads = heads(index, parts as usize, comptime!(shape.clone()));
    let head_dim = comptime!(shape.head_dim);
    let words = comptime!(shape.partial_words());
    let first = (heads.first_partial + row.first_part) * words;
    let stats = first + comptime!(shape.heads * head_dim);
    let mut weights = Shared::<[f32]>::new_slice(comptime!(shape.heads * MAX_PARTS));
    let mut h = UNIT_POS as usize;
    while h < comptime!(shape.heads) {
        let mut max = f32::new(LOWEST);
        for p in 0..row.parts {
            max = f32::max(max, partials[stats + p * words + 2 * h]);
        }
        let mut total = f32::new(0.0);
        for p in 0..row.parts {
            let at = stats + p * words + 2 * h;
            let weight = (partials[at] - max).exp();
            total += partials[at + 1] * weight;
            weights[h * comptime!(MAX_PARTS) + p] = weight;
        }
        for p in 0..row.parts {
            weights[h * comptime!(MAX_PARTS) + p] /= total;
        }
        h += CUBE_DIM as usize;
    }
    sync_cube();
    let mut i = UNIT_POS as usize;
    while i < heads.held * head_dim {
        let mut sum = f32::new(0.0);
        for p in 0..row.parts {
            let weight = weights[i / head_dim * comptime!(MAX_PARTS) + p];
            sum += weight * partials[first + p * words + i];
        }
        out[heads.first + i] = F::cast_from(sum);
        i += CUBE_DIM as usize;
    }
}
