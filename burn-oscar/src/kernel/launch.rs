//! From tensors to launches: which kernel serves a call, and with which arguments.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::attend::attend as attend_kernel;
use super::decode::decode;
use super::fragments::unsupported;
use super::grid::{chunks, decode_planes, slots};
use super::merge::merge_rows;
use super::offers::{Offers, PLANE, UNITS, multiplies};
use super::shape::Shape;
use super::spec::{PackedSide, Store};
use crate::backend::plan::{MAX_HEAD_RATIO, exchange_words};
use crate::backend::{AttentionPlan, KvLayer, OptionalTensor, Pages};

/// The most query heads that a cube of the portable kernel works on.
const MAX_HEADS: usize = 8;
/// Arrays that the portable kernel binds.
const BINDINGS: u32 = 20;

pub fn dims(tensor: &CubeTensor) -> [usize; 4] {
    let shape = tensor.meta.shape();
    [shape[0], shape[1], shape[2], shape[3]]
}

pub fn storage(tensor: &CubeTensor) -> ElemType {
    dtype_to_storage_type(tensor.dtype)
}

/// The arrays of one side's pages. What a method does not store is bound to another array, which
/// the kernel then never reads.
struct SideArgs {
    store: Store,
    exact: CubeTensor,
    words: CubeTensor,
    pairs: CubeTensor,
    norms: CubeTensor,
    means: CubeTensor,
}

impl SideArgs {
    fn new(pages: Pages<CubeBackend>, tier: &CubeTensor, steps: &CubeTensor) -> Self {
        match pages {
            Pages::Exact(exact) => Self {
                store: Store::Exact,
                exact,
                words: steps.clone(),
                pairs: steps.clone(),
                norms: steps.clone(),
                means: steps.clone(),
            },
            Pages::Packed(packed) => {
                let or = |tensor| match tensor {
                    OptionalTensor::Present(tensor) => tensor,
                    OptionalTensor::Absent => steps.clone(),
                };
                Self {
                    store: Store::Packed(PackedSide::new(&packed.spec)),
                    exact: tier.clone(),
                    words: packed.words,
                    pairs: or(packed.pairs),
                    norms: or(packed.norms),
                    means: or(packed.means),
                }
            }
        }
    }

    fn arrays(&self) -> [&CubeTensor; 5] {
        [
            &self.exact,
            &self.words,
            &self.pairs,
            &self.norms,
            &self.means,
        ]
    }
}

/// Binds a tensor as an array of `size` bytes an element, whatever its own dtype.
#[allow(unsafe_code)]
fn array(tensor: &CubeTensor, size: usize) -> BufferArg {
    let bytes = tensor.meta.shape().num_elements() * tensor.dtype.size();
    // SAFETY: the length is that of the tensor's contiguous buffer.
    unsafe { BufferArg::from_raw_parts(tensor.handle.clone(), bytes / size) }
}

/// Attention of one token per row. `Err` gives the arguments back where no kernel serves, with
/// the reason.
#[allow(unsafe_code, clippy::type_complexity)]
pub fn attend(
    query: CubeTensor,
    key: CubeTensor,
    value: CubeTensor,
    layer: KvLayer<CubeBackend>,
    plan: AttentionPlan<CubeBackend>,
) -> Result<
    CubeTensor,
    (
        String,
        CubeTensor,
        CubeTensor,
        CubeTensor,
        KvLayer<CubeBackend>,
        AttentionPlan<CubeBackend>,
    ),
> {
    let client = query.client.clone();
    let [rows, heads, tokens, head_dim] = dims(&query);
    let offers = Offers::of(&client, head_dim);
    let [_, kv_heads, slot_tokens, _] = dims(&layer.key_tier);
    let group = heads / kv_heads;
    let page_tokens = layer.key.page_tokens();
    let reason = if tokens != 1 {
        Some(format!("{tokens} query tokens per sequence"))
    } else if plan.window.is_some() {
        Some("a sliding window".into())
    } else if group > MAX_HEAD_RATIO {
        Some(format!("more than {MAX_HEAD_RATIO} queries per KV head"))
    } else if client.properties().hardware.max_bindings < BINDINGS {
        Some(format!(
            "devices that bind {} arrays at most",
            client.properties().hardware.max_bindings
        ))
    } else if plan.items > client.properties().hardware.max_cube_count.1 as usize {
        Some("more sequences than a launch has cubes".into())
    } else if plan
        .rows
        .iter()
        .any(|row| row.slot >= dims(&layer.key_tier)[0])
        || plan.exchange.meta.shape().num_elements()
            < exchange_words(plan.parts, kv_heads, head_dim)
    {
        Some("a plan of another cache".into())
    } else {
        None
    };
    if let Some(reason) = reason {
        return Err((reason, query, key, value, layer, plan));
    }

    let query = into_contiguous(query);
    let key = into_contiguous(key);
    let value = into_contiguous(value);
    let sink = layer.sink;
    let key_side = SideArgs::new(layer.key, &layer.key_tier, &plan.steps);
    let value_side = SideArgs::new(layer.value, &layer.value_tier, &plan.steps);
    debug_assert!(
        key_side
            .arrays()
            .iter()
            .chain(&value_side.arrays())
            .all(|tensor| tensor.is_contiguous())
    );
    let tensor_cores = offers.tensor_cores
        && [&key_side.store, &value_side.store]
            .into_iter()
            .all(|store| {
                store
                    .packed()
                    .is_some_and(|side| unsupported(side).is_none())
            });
    let mut shape = Shape {
        key: key_side.store.clone(),
        value: value_side.store.clone(),
        head_dim,
        page_tokens,
        kv_heads,
        group,
        heads: if tensor_cores {
            4
        } else {
            group.min(MAX_HEADS)
        },
        sink,
        slot_tokens,
        planes: match (offers.planes, tensor_cores) {
            (false, _) => 0,
            (true, false) => (UNITS / PLANE) as usize,
            (true, true) => decode_planes(&key_side.store, chunks(&plan)) as usize,
        },
        fine: query.dtype.size() == 4,
        products: tensor_cores && multiplies(&client, storage(&query)),
        slots: 1,
        merge: offers.merge,
    };
    let groups = kv_heads * shape.tiles();
    shape.slots = if tensor_cores {
        slots(&client, &plan, groups)
    } else {
        1
    };
    let words = groups * plan.parts * shape.partial_words();
    // Only where a second launch merges; an array must not be empty.
    let partial_words = if shape.merge { 1 } else { words };
    let partials = client.empty(partial_words * 4);
    let bytes = rows * heads * head_dim * query.dtype.size();
    let out = CubeTensor::new_contiguous(
        client.clone(),
        query.device.clone(),
        query.meta.shape().clone(),
        client.empty(bytes),
        query.dtype,
    );
    let dtype = storage(&query);
    let float = query.dtype.size();
    // Activations are read 16 bytes at a time: head_dim is a multiple of 16.
    let width = 16 / float;
    let items = plan.items.div_ceil(shape.slots);
    let cubes = CubeCount::Static(groups as u32, items as u32, 1);
    // SAFETY: lengths are those of the buffers. Rows, slots, pages and positions come from the
    // cache's own plan, which keeps them inside the pools and tiers.
    let partials_arg = || unsafe { BufferArg::from_raw_parts(partials.clone(), partial_words) };
    if tensor_cores {
        unsafe {
            decode::launch_unchecked(
                &client,
                cubes,
                CubeDim::new_1d(PLANE * shape.planes as u32),
                width,
                array(&query, 16),
                array(&key, 16),
                array(&value, 16),
                array(&layer.key_tier, 16),
                array(&layer.value_tier, 16),
                array(&key_side.words, 16),
                array(&key_side.pairs, 16),
                array(&key_side.norms, 4),
                array(&key_side.means, 4),
                array(&value_side.words, 16),
                array(&value_side.pairs, 16),
                array(&value_side.means, 4),
                array(&plan.steps, 4),
                array(&plan.table, 4),
                array(&plan.exchange, 4),
                array(&out, float),
                rows as u32,
                plan.parts as u32,
                plan.scale as f32,
                shape.clone(),
                dtype,
            );
        }
    } else {
        unsafe {
            attend_kernel::launch_unchecked(
                &client,
                cubes,
                CubeDim::new_1d(offers.units),
                width,
                array(&query, float),
                array(&key, 16),
                array(&value, 16),
                array(&layer.key_tier, 16),
                array(&layer.value_tier, 16),
                array(&key_side.exact, 16),
                array(&key_side.words, 4),
                array(&key_side.pairs, 4),
                array(&key_side.norms, 4),
                array(&key_side.means, 4),
                array(&value_side.exact, 16),
                array(&value_side.words, 4),
                array(&value_side.pairs, 4),
                array(&value_side.norms, 4),
                array(&value_side.means, 4),
                array(&plan.steps, 4),
                array(&plan.table, 4),
                array(&plan.exchange, 4),
                partials_arg(),
                array(&out, float),
                plan.parts as u32,
                plan.scale as f32,
                shape.clone(),
                dtype,
            );
        }
    }
    if !shape.merge {
        unsafe {
            merge_rows::launch_unchecked(
                &client,
                CubeCount::Static(groups as u32, rows as u32, 1),
                CubeDim::new_1d(offers.units),
                partials_arg(),
                array(&plan.steps, 4),
                array(&out, float),
                plan.items as u32,
                plan.parts as u32,
                shape,
                dtype,
            );
        }
    }
    super::count_fused();
    Ok(out)
}
