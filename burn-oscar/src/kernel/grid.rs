//! How a call's work is laid out on a GPU: items, cubes, planes.

use burn_cubecl::CubeBackend;
use cubecl::prelude::*;

use super::spec::{PackedSide, Parameters, Store};
use crate::backend::AttentionPlan;
use crate::quantizer::layout::CHUNK_TOKENS;

/// The most planes of a cube of the tensor-core kernel.
pub const DECODE_PLANES: u32 = 16;

/// Planes of a cube of the tensor-core kernel: one cube fills a multiprocessor. With 12 planes
/// there are 168 registers for each unit, so that nothing spills; folding the scales of channels
/// into the query twice a chunk needs more, and has 255 with 8 planes. Where pages have means there
/// is more to compute, and long items gain more by 16 planes than they lose by spilling. Other
/// numbers share registers out badly: each quarter of a multiprocessor holds its own planes.
pub fn decode_planes(key: &Store, chunks: usize) -> u32 {
    match key.packed() {
        Some(PackedSide {
            parameters: Parameters::ChannelPairs { tokens },
            ..
        }) if *tokens < CHUNK_TOKENS => 8,
        Some(side) if side.means && chunks >= LONG_ITEM => DECODE_PLANES,
        _ => 12,
    }
}

/// Chunks of an item that make it long.
const LONG_ITEM: usize = 192;

/// Chunks of an item, about.
pub fn chunks(plan: &AttentionPlan<CubeBackend>) -> usize {
    let tokens: usize = plan.rows.iter().map(|row| row.len()).sum();
    tokens / CHUNK_TOKENS / plan.parts.max(plan.rows.len())
}

/// Work items that a cube takes: two, side by side, where all rows are about as long and are whole
/// items, and where that makes for no more rounds of cubes.
pub fn slots(client: &Client, plan: &AttentionPlan<CubeBackend>, groups: usize) -> usize {
    let Some(cubes) = client.properties().hardware.num_streaming_multiprocessors else {
        return 1;
    };
    let rounds = |items: usize| (items * groups).div_ceil(cubes as usize);
    let lengths = || plan.rows.iter().map(|row| row.len());
    let rows = plan.rows.len();
    let longest = lengths().max().unwrap_or(0);
    let is_even = 4 * longest * rows < 5 * lengths().sum::<usize>();
    let pairs = rows.div_ceil(2);
    if is_even && rounds(rows) > 1 && 2 * rounds(pairs) <= rounds(rows) {
        2
    } else {
        1
    }
}

/// Work items of a KV head that fill the device: one cube a multiprocessor, or one a core.
pub fn splits(client: &Client, kv_heads: usize) -> usize {
    let hardware = &client.properties().hardware;
    let cubes = match (
        hardware.num_streaming_multiprocessors,
        hardware.num_cpu_cores,
    ) {
        (Some(count), _) => count as usize,
        (None, Some(cores)) => cores as usize,
        (None, None) => 64,
    };
    (cubes / kv_heads).max(1)
}
