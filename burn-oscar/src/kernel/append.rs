//! One token per row into the exact tiers.
//!
//! A unit copies one number of a key and of a value. Bytes: `4 kv_heads head_dim` activations per
//! row. One launch for both sides and all rows: a step at batch 1 is bound by launches.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::steps::{next, row};

#[cube(launch_unchecked)]
fn append_rows<F: Float>(
    key: &[F],
    value: &[F],
    steps: &[u32],
    key_tier: &mut [F],
    value_tier: &mut [F],
    items: u32,
    #[comptime] kv_heads: usize,
    #[comptime] slot_tokens: usize,
    #[comptime] head_dim: usize,
    #[define(F)] _dtype: ElemType,
) {
    let index = CUBE_POS_X as usize;
    let row = row(steps, items as usize, index);
    let next = next(steps, items as usize, index);
    let mut i = UNIT_POS as usize;
    while i < comptime!(kv_heads * head_dim) {
        let from = index * comptime!(kv_heads * head_dim) + i;
        let head = i / head_dim;
        let to = ((row.slot * kv_heads + head) * slot_tokens + next) * head_dim + i % head_dim;
        key_tier[to] = key[from];
        value_tier[to] = value[from];
        i += CUBE_DIM as usize;
    }
}

/// Writes `[rows, kv_heads, 1, head_dim]` to the plan's next position of each row's slot.
#[allow(unsafe_code)]
pub fn append(
    key_tier: &CubeTensor,
    value_tier: &CubeTensor,
    key: CubeTensor,
    value: CubeTensor,
    steps: CubeTensor,
    items: usize,
) {
    let [rows, kv_heads, _, head_dim] = super::launch::dims(&key);
    let slot_tokens = super::launch::dims(key_tier)[2];
    let client = key.client.clone();
    let units = client.properties().hardware.max_units_per_cube.min(256);
    let dtype = super::launch::storage(&key);
    // SAFETY: rows, slots and positions come from the cache's own plan, which keeps them inside
    // the tiers; each unit writes its own numbers.
    unsafe {
        append_rows::launch_unchecked(
            &client,
            CubeCount::Static(rows as u32, 1, 1),
            CubeDim::new_1d(units),
            key.into_buffer_arg(),
            value.into_buffer_arg(),
            steps.into_buffer_arg(),
            key_tier.clone().into_buffer_arg(),
            value_tier.clone().into_buffer_arg(),
            items as u32,
            kv_heads,
            slot_tokens,
            head_dim,
            dtype,
        );
    }
}
