//! Quantising and packing on CubeCL: which pages have kernels, and their launches.

mod arithmetic;
mod channel;
mod demote;
mod page;
mod pool;
mod recipe;
mod token;
mod words;

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::features::Plane;
use cubecl::prelude::*;

use super::fallback_once;
use crate::backend::portable::{self, Ints, Real};
use crate::backend::{Demotion, KvLayer, PackedPages, Pages};
use pool::Pool;
pub use pool::own;
use recipe::{Device, Recipe};

/// Units of a cube, where the runtime has as many.
const UNITS: u32 = 256;
/// Units that share a token, where they can shuffle.
const LANES: usize = 8;
/// Below as many cubes, the chunks of a page are shared out; each cube then computes the mean.
const FEW_CUBES: usize = 256;

/// Where the vectors of the new pages are.
struct Source {
    /// `[n, kv_heads, tokens, head_dim]`, or the exact tier `[slots, ...]`.
    vectors: CubeTensor,
    /// The first token of a page.
    start: usize,
    /// Page ids; with slots, as many slots follow.
    ids: CubeTensor,
    /// Pages to write.
    count: usize,
    /// The slots, where `vectors` is a tier.
    slots: Option<Vec<usize>>,
}

impl Source {
    /// The oldest page of the recent tokens of slots.
    fn leaving(tier: &CubeTensor, ids: &CubeTensor, moves: &[Demotion], start: usize) -> Self {
        Self {
            vectors: tier.clone(),
            start,
            ids: ids.clone(),
            count: moves.len(),
            slots: Some(moves.iter().map(|m| m.slot).collect()),
        }
    }
}

/// Packs whole pages, see [`KvCacheOps::kv_write_pages`](crate::backend::KvCacheOps).
pub fn write_pages(
    layer: KvLayer<CubeBackend>,
    key: CubeTensor,
    value: CubeTensor,
    pages: CubeTensor,
) -> KvLayer<CubeBackend> {
    let ids = into_contiguous(pages);
    let source = |vectors: CubeTensor| Source {
        vectors: quads(vectors),
        start: 0,
        count: ids.shape()[0],
        ids: ids.clone(),
        slots: None,
    };
    KvLayer {
        key: write_side(layer.key, &source(key)),
        value: write_side(layer.value, &source(value)),
        ..layer
    }
}

/// Packs the oldest page of the recent tiers and moves the rest down, see
/// [`KvCacheOps::kv_demote`](crate::backend::KvCacheOps).
pub fn demote(layer: KvLayer<CubeBackend>, moves: &[Demotion]) -> KvLayer<CubeBackend> {
    if moves.is_empty() {
        return layer;
    }
    let page_tokens = layer.key.page_tokens();
    let (client, device) = (layer.key_tier.client.clone(), layer.key_tier.device.clone());
    let numbers: Vec<u32> = (moves.iter().map(|m| m.page))
        .chain(moves.iter().map(|m| m.slot as u32))
        .chain(moves.iter().map(|m| m.recent as u32))
        .collect();
    let handle = client.create_from_slice(u32::as_bytes(&numbers));
    let shape = Shape::from(vec![numbers.len()]);
    let ids = CubeTensor::new_contiguous(client, device, shape, handle, DType::U32);
    let layer = match demote::at_once(layer, &ids, moves) {
        Ok(layer) => return layer,
        Err(layer) => layer,
    };
    let side = |store: Pages<CubeBackend>, tier: CubeTensor| {
        let tier = quads(tier);
        let store = write_side(store, &Source::leaving(&tier, &ids, moves, layer.sink));
        let tier = demote::shift_down(tier, &ids, moves, layer.sink, page_tokens);
        (store, tier)
    };
    let (key, key_tier) = side(layer.key, layer.key_tier);
    let (value, value_tier) = side(layer.value, layer.value_tier);
    KvLayer {
        key,
        value,
        key_tier,
        value_tier,
        sink: layer.sink,
    }
}

fn write_side(store: Pages<CubeBackend>, source: &Source) -> Pages<CubeBackend> {
    match store {
        Pages::Packed(packed) => match supported(&packed, source) {
            Ok(recipe) => Pages::Packed(pack(packed, source, recipe)),
            Err(what) => {
                fallback_once(&what);
                write_portable(Pages::Packed(packed), source)
            }
        },
        store => write_portable(store, source),
    }
}

fn write_portable(store: Pages<CubeBackend>, source: &Source) -> Pages<CubeBackend> {
    let all = Real::<CubeBackend>(source.vectors.clone());
    let ids = Ints::<CubeBackend>(source.ids.clone()).narrow(0, 0, source.count);
    let vectors = match &source.slots {
        None => all,
        Some(slots) => portable::leaving(&all, slots, source.start, store.page_tokens()),
    };
    portable::write_side(store, vectors, ids)
}

/// The recipe of a side, or what stands against it.
fn supported(packed: &PackedPages<CubeBackend>, source: &Source) -> Result<Recipe, String> {
    let client = &source.vectors.client;
    let hardware = &client.properties().hardware;
    let recipe = Recipe::new(&packed.spec, source.vectors.dtype, device(client))?;
    if recipe.shared_bytes() > hardware.max_shared_memory_size {
        return Err("packing heads that do not fit into shared memory".into());
    }
    if source.count > hardware.max_cube_count.0 as usize {
        return Err("packing more pages at once than a launch has cubes".into());
    }
    match source.vectors.dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ok(recipe),
        dtype => Err(format!("packing {dtype:?}")),
    }
}

fn device(client: &Client) -> Device {
    let properties = client.properties();
    let hardware = &properties.hardware;
    let shuffles = properties.features.plane.contains(Plane::Ops)
        && hardware.plane_size_min as usize >= LANES
        && hardware.max_units_per_cube as usize >= 2 * LANES;
    Device {
        lanes: if shuffles { LANES } else { 1 },
        // CUDA, HIP and the CPU report their size, and are compiled without reordering; compilers
        // of shaders may reorder.
        plain_sums: hardware.num_streaming_multiprocessors.is_some()
            || hardware.num_cpu_cores.is_some(),
    }
}

/// A cube for the work on 64 tokens: with several lanes a token, as many units as share the
/// tokens out evenly.
fn cube_dim(client: &Client, lanes: usize) -> CubeDim {
    let most = client.properties().hardware.max_units_per_cube;
    match lanes {
        1 => CubeDim::new_1d(most.min(64)),
        _ => CubeDim::new_1d((1 << most.min(UNITS).ilog2()).min(UNITS)),
    }
}

/// Vectors that can be read four channels at a time.
fn quads(x: CubeTensor) -> CubeTensor {
    let strides = x.meta.strides();
    let shape = x.meta.shape();
    let last = shape.num_dims() - 1;
    let aligned = (0..last).all(|dim| shape[dim] == 1 || strides[dim].is_multiple_of(4))
        && strides[last] == 1
        && (x.handle.offset_start.unwrap_or(0) as usize).is_multiple_of(4 * x.dtype.size());
    if aligned { x } else { into_contiguous(x) }
}

/// Index width that reaches every element.
fn address_type<'a>(tensors: impl IntoIterator<Item = &'a CubeTensor>) -> AddressType {
    (tensors.into_iter())
        .map(CubeTensor::required_address_type)
        .max()
        .unwrap_or_default()
}

fn pack(
    packed: PackedPages<CubeBackend>,
    source: &Source,
    recipe: Recipe,
) -> PackedPages<CubeBackend> {
    let pool = Pool::new(packed);
    write_norms(&pool, source, &recipe);
    let x = &source.vectors;
    let client = &x.client;
    let heads = x.shape()[1];
    let chunks = recipe.chunks() as u32;
    let shares = match recipe.page_mean && source.count * heads >= FEW_CUBES {
        true => 1,
        false => chunks,
    };
    let dim = cube_dim(client, recipe.lanes);
    let dtypes = [x.dtype, source.ids.dtype].map(dtype_to_storage_type);
    // SAFETY: the kernel checks ids and slots against the shapes; the cache has checked that the
    // vectors hold `page_tokens` tokens from `start` on. Pools have the sizes of their page spec.
    #[allow(unsafe_code)]
    unsafe {
        page::pack_pages::launch_unchecked(
            client,
            CubeCount::Static(source.count as u32, heads as u32, shares),
            dim,
            address_type([x, &source.ids].into_iter().chain(pool.tensors())),
            x.clone().into_tensor_arg(),
            source.ids.clone().into_buffer_arg(),
            pool.words.clone().into_tensor_arg(),
            pool.pairs.clone().map(CubeTensor::into_tensor_arg).into(),
            pool.norms.clone().map(CubeTensor::into_tensor_arg).into(),
            pool.means.clone().map(CubeTensor::into_tensor_arg).into(),
            source.start,
            source.slots.is_some(),
            recipe,
            dtypes,
        );
    }
    pool.into_packed()
}

/// Writes the norms of the new pages' tokens, where the pool holds norms.
fn write_norms(pool: &Pool, source: &Source, recipe: &Recipe) {
    let Some(norms) = &pool.norms else {
        return;
    };
    let x = &source.vectors;
    // SAFETY: as in `pack`.
    #[allow(unsafe_code)]
    unsafe {
        page::token_norms::launch_unchecked(
            &x.client,
            CubeCount::Static(source.count as u32, recipe.chunks() as u32, 1),
            cube_dim(&x.client, recipe.lanes),
            address_type([x, &source.ids, norms]),
            x.clone().into_tensor_arg(),
            source.ids.clone().into_buffer_arg(),
            norms.clone().into_tensor_arg(),
            source.start,
            source.slots.is_some(),
            recipe.clone(),
            [x.dtype, source.ids.dtype].map(dtype_to_storage_type),
        );
    }
}
