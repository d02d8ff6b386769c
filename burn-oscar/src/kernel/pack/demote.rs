//! Pages that leave the recent tier: the rest moves down; where a page is one chunk, packing of both
//! sides and the move are one launch.

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use half::f16;

use super::page::{Pair, pack_page};
use super::pool::{Pool, own};
use super::recipe::Recipe;
use super::{Source, UNITS, address_type, cube_dim, quads, supported, write_norms};
use crate::backend::{Demotion, KvLayer, Pages};

/// Packs the oldest page of both recent tiers and moves the rest down. Gives the layer back where
/// that takes more than one launch.
pub fn at_once(
    layer: KvLayer<CubeBackend>,
    ids: &CubeTensor,
    moves: &[Demotion],
) -> Result<KvLayer<CubeBackend>, KvLayer<CubeBackend>> {
    let source = |tier: &CubeTensor| Source::leaving(tier, ids, moves, layer.sink);
    let recipe = |store: &Pages<CubeBackend>, tier: &CubeTensor| match store {
        Pages::Packed(packed) => supported(packed, &source(tier)).ok(),
        Pages::Exact(_) => None,
    };
    let (Some(key_recipe), Some(value_recipe)) = (
        recipe(&layer.key, &layer.key_tier),
        recipe(&layer.value, &layer.value_tier),
    ) else {
        return Err(layer);
    };
    let client = layer.key_tier.client.clone();
    let shared = key_recipe.shared_bytes() + value_recipe.shared_bytes();
    if key_recipe.chunks() > 1 || shared > client.properties().hardware.max_shared_memory_size {
        return Err(layer);
    }
    match (layer.key, layer.value) {
        (Pages::Packed(key), Pages::Packed(value)) => {
            let (key, value) = (Pool::new(key), Pool::new(value));
            let [key_tier, value_tier] =
                [layer.key_tier, layer.value_tier].map(|tier| own(quads(tier)));
            for (pool, tier, recipe) in [
                (&key, &key_tier, &key_recipe),
                (&value, &value_tier, &value_recipe),
            ] {
                write_norms(pool, &Source::leaving(tier, ids, moves, layer.sink), recipe);
            }
            let (heads, lanes) = (key_tier.shape()[1], key_recipe.lanes);
            let tiers = [&key_tier, &value_tier, ids].into_iter();
            // SAFETY: the kernel checks pages, slots and lengths against the shapes. Pools have the
            // sizes of their page spec.
            #[allow(unsafe_code)]
            unsafe {
                demote_pages::launch_unchecked(
                    &client,
                    CubeCount::Static(moves.len() as u32, heads as u32, 2),
                    cube_dim(&client, lanes),
                    address_type(tiers.chain(key.tensors()).chain(value.tensors())),
                    key_tier.clone().into_tensor_arg(),
                    value_tier.clone().into_tensor_arg(),
                    ids.clone().into_buffer_arg(),
                    key.words.clone().into_tensor_arg(),
                    key.pairs.clone().map(CubeTensor::into_tensor_arg).into(),
                    key.norms.clone().map(CubeTensor::into_tensor_arg).into(),
                    key.means.clone().map(CubeTensor::into_tensor_arg).into(),
                    value.words.clone().into_tensor_arg(),
                    value.pairs.clone().map(CubeTensor::into_tensor_arg).into(),
                    value.norms.clone().map(CubeTensor::into_tensor_arg).into(),
                    value.means.clone().map(CubeTensor::into_tensor_arg).into(),
                    layer.sink,
                    key_recipe,
                    value_recipe,
                    dtype_to_storage_type(key_tier.dtype),
                );
            }
            Ok(KvLayer {
                key: Pages::Packed(key.into_packed()),
                value: Pages::Packed(value.into_packed()),
                key_tier,
                value_tier,
                sink: layer.sink,
            })
        }
        (key, value) => Err(KvLayer {
            key,
            value,
            key_tier: layer.key_tier,
            value_tier: layer.value_tier,
            sink: layer.sink,
        }),
    }
}

/// Packs the tokens of slots from `start` on and moves the tokens after them down. Of `moves`
/// (u32), the first `count` are pages, the second slots, the third the recent tokens held before.
///
/// A cube has one side of one page and KV head, and nobody else touches its part of the tier: it
/// packs, waits for itself, and moves. Cubes: moves, KV heads, sides. Bytes: the page and twice the
/// tokens after it.
#[cube(launch_unchecked, address_type = "dynamic")]
fn demote_pages<F: Float>(
    key_tier: &mut Tensor<Vector<F, Const<4>>>,
    value_tier: &mut Tensor<Vector<F, Const<4>>>,
    moves: &[u32],
    key_words: &mut Tensor<u32>,
    key_pairs: ComptimeOption<&mut Tensor<Pair>>,
    key_norms: ComptimeOption<&Tensor<f16>>,
    key_means: ComptimeOption<&mut Tensor<f16>>,
    value_words: &mut Tensor<u32>,
    value_pairs: ComptimeOption<&mut Tensor<Pair>>,
    value_norms: ComptimeOption<&Tensor<f16>>,
    value_means: ComptimeOption<&mut Tensor<f16>>,
    start: usize,
    #[comptime] key: Recipe,
    #[comptime] value: Recipe,
    #[define(F)] _dtype: ElemType,
) {
    if CUBE_POS_Z == 0 {
        demote_side::<F>(
            key_tier, moves, key_words, key_pairs, key_norms, key_means, start, key,
        );
    } else {
        demote_side::<F>(
            value_tier,
            moves,
            value_words,
            value_pairs,
            value_norms,
            value_means,
            start,
            value,
        );
    }
}

#[cube]
fn demote_side<F: Float>(
    tier: &mut Tensor<Vector<F, Const<4>>>,
    moves: &[u32],
    words: &mut Tensor<u32>,
    pairs: ComptimeOption<&mut Tensor<Pair>>,
    norms: ComptimeOption<&Tensor<f16>>,
    means: ComptimeOption<&mut Tensor<f16>>,
    start: usize,
    #[comptime] recipe: Recipe,
) {
    let page = moves[CUBE_POS_X as usize] as usize;
    let (head, held) = (CUBE_POS_Y as usize, held::<F>(&*tier, moves, start));
    if page < words.shape(0) && held.inside {
        let page_tokens = comptime!(recipe.page_tokens);
        let quads = comptime!(recipe.quads);
        pack_page::<F>(
            &*tier,
            held.origin,
            words,
            pairs,
            norms,
            means,
            page,
            head,
            0usize,
            1usize,
            recipe,
        );
        sync_cube();
        let (first, units) = (UNIT_POS as usize, CUBE_DIM as usize);
        move_down::<F>(tier, &held, first, units, page_tokens, quads);
    }
}

/// The recent tokens of a slot and KV head.
#[derive(CubeType, Clone, Copy)]
struct Held {
    /// Where they begin in the tier, in vectors.
    origin: usize,
    recent: usize,
    /// Moves are data: what is outside the tier is neither read nor written.
    inside: bool,
}

/// Those of the cube's move and KV head.
#[cube]
fn held<F: Float>(tier: &Tensor<Vector<F, Const<4>>>, moves: &[u32], start: usize) -> Held {
    let (n, count) = (CUBE_POS_X as usize, CUBE_COUNT_X as usize);
    let slot = moves[count + n] as usize;
    let recent = moves[2 * count + n] as usize;
    let head = CUBE_POS_Y as usize * tier.stride(1);
    Held {
        origin: (slot * tier.stride(0) + head + start * tier.stride(2)) / 4,
        recent,
        inside: slot < tier.shape(0) && start + recent <= tier.shape(2),
    }
}

/// Moves token `page_tokens + i` of the recent tokens to token `i`. A unit
/// owns the same place of every round of `page_tokens` tokens, so it reads a place before it
/// overwrites it and nobody else touches it: no barrier. The caller is number `first` of `units`.
#[cube]
fn move_down<F: Float>(
    tier: &mut Tensor<Vector<F, Const<4>>>,
    held: &Held,
    first: usize,
    units: usize,
    #[comptime] page_tokens: usize,
    #[comptime] quads: usize,
) {
    let step = tier.stride(2) / 4;
    let mut item = first;
    while item < comptime!(page_tokens * quads) {
        let mut from = item / quads + page_tokens;
        while from < held.recent {
            let at = held.origin + from * step + item % quads;
            tier[at - page_tokens * step] = tier[at];
            from += page_tokens;
        }
        item += units;
    }
}

/// Moves the recent tokens of slots down over the `page_tokens` that have left, where some are
/// left.
pub fn shift_down(
    tier: CubeTensor,
    ids: &CubeTensor,
    moves: &[Demotion],
    start: usize,
    page_tokens: usize,
) -> CubeTensor {
    if moves.iter().all(|m| m.recent <= page_tokens) {
        return tier;
    }
    let tier = own(tier);
    let client = &tier.client;
    let shape = tier.shape();
    let quads = shape[3] / 4;
    let dim = CubeDim::new_1d(client.properties().hardware.max_units_per_cube.min(UNITS));
    let shares = (page_tokens * quads).div_ceil(4 * dim.num_elems() as usize);
    // SAFETY: the kernel checks slots and lengths against the shape.
    #[allow(unsafe_code)]
    unsafe {
        shift_tiers::launch_unchecked(
            client,
            CubeCount::Static(moves.len() as u32, shape[1] as u32, shares as u32),
            dim,
            address_type([&tier, ids]),
            tier.clone().into_tensor_arg(),
            ids.clone().into_buffer_arg(),
            start,
            page_tokens,
            quads,
            dtype_to_storage_type(tier.dtype),
        );
    }
    tier
}

/// [`move_down`] for the moves of [`demote_pages`]. Cubes: moves, KV heads, shares.
#[cube(launch_unchecked, address_type = "dynamic")]
fn shift_tiers<F: Float>(
    tier: &mut Tensor<Vector<F, Const<4>>>,
    moves: &[u32],
    start: usize,
    #[comptime] page_tokens: usize,
    #[comptime] quads: usize,
    #[define(F)] _dtype: ElemType,
) {
    let held = held::<F>(&*tier, moves, start);
    if !held.inside {
        terminate!();
    }
    let first = CUBE_POS_Z as usize * CUBE_DIM as usize + UNIT_POS as usize;
    let units = (CUBE_COUNT_Z * CUBE_DIM) as usize;
    move_down::<F>(tier, &held, first, units, page_tokens, quads);
}
