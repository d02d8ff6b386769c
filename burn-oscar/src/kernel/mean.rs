//! Pages that have means, in the tensor-core kernel: their part of scores and sums.

use cubecl::prelude::*;

use super::chunk::{half_of, half2};
use super::exact::halve;
use super::query::QueryMemory;
use super::running::{MEAN_SCORE, PAGE_WEIGHT, Running, sum_rows};
use super::spec::PackedSide;

/// A lane's share of a page's mean: `[2]` words, of keys two side by side, of values those 32
/// apart. On its way long before it is used, as codes are.
#[cube]
pub fn load_mean(
    means: &[u32],
    row: usize,
    lane: usize,
    out: &mut Array<u32>,
    #[comptime] side: PackedSide,
) {
    let words = comptime!(side.head_dim / 2);
    let start = row * words;
    if comptime!(side.is_key) {
        #[unroll]
        for k in 0..2usize {
            out[k] = means[start + 2 * (lane % comptime!(words / 2)) + k];
        }
    } else {
        #[unroll]
        for k in 0..comptime!(words / 32) {
            out[k] = means[start + lane + comptime!(32 * k)];
        }
    }
}

/// Begins a page that has a mean key: its product with the query is part of every score.
#[cube]
pub fn new_page(
    query: &QueryMemory,
    mean: &Array<u32>,
    slot: usize,
    lane: usize,
    running: &mut Running,
    #[comptime] head_dim: usize,
) {
    let quads = comptime!(head_dim / 4);
    let (a, b) = half2(mean[0]);
    let (c, d) = half2(mean[1]);
    let mut products = Array::<f32>::new(4usize);
    #[unroll]
    for h in 0..4usize {
        let four = query.padded[(slot * 4 + h) * comptime!(quads + 1) + lane % quads];
        let product = a * four.extract(0usize)
            + b * four.extract(1usize)
            + c * four.extract(2usize)
            + d * four.extract(3usize);
        products[h] = select(lane < quads, product, 0.0);
    }
    halve(&mut products, lane, 4u32, 2usize);
    halve(&mut products, lane, 3u32, 1usize);
    let mut product = products[0];
    #[unroll]
    for bit in 0..3u32 {
        product += plane_shuffle_xor(product, comptime!(1u32 << bit));
    }
    running.state[MEAN_SCORE] = plane_shuffle(product, (lane % 4 * 8) as u32);
}

/// Ends a page that has a mean value: it counts as often as its tokens weighed.
#[cube]
pub fn flush_page(
    mean: &Array<u32>,
    lane: usize,
    running: &mut Running,
    #[comptime] head_dim: usize,
) {
    let weight = sum_rows(running.state[PAGE_WEIGHT]);
    #[unroll]
    for i in 0..comptime!(head_dim / 8) {
        // Channel 8 i + lane / 4.
        let source = 4 * comptime!(i % 8) + lane / 8;
        let word = plane_shuffle(mean[comptime!(i / 8)], source as u32);
        running.sums[i] += weight * half_of(word, lane / 4);
    }
    running.state[PAGE_WEIGHT] = 0.0;
}
