//! Filled caches, taken apart: the only place that knows how a cache plans a decode step.

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Distribution, Int, Tensor};
use burn_oscar::backend::{self, AttentionPlan, KvLayer, PlanRow};
use burn_oscar::{AttentionOptions, KvCache, KvCacheConfig, Method};

use crate::Result;
use crate::shape::{HEAD_DIM, HEADS, KV_HEADS, Shape};

/// Numbers of one block that a cache is filled with, keys or values.
const BLOCK: usize = 8 << 20;
/// Tokens that the pool has room for past the context: the step, and a page that leaves.
const ROOM: usize = 512;

/// The layers of a filled cache, each with the plan of the next step.
pub struct Filled {
    /// Layers of equal shape, on memory of their own.
    pub layers: Vec<(KvLayer<Dispatch>, AttentionPlan)>,
    /// Bits for each stored number, windows and parameters included.
    pub bits_per_value: f64,
    /// Bytes of one layer that hold tokens.
    pub layer_bytes: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
}

/// Random numbers `[rows, heads, tokens, HEAD_DIM]` in BF16, made on the device.
pub fn random(rows: usize, heads: usize, tokens: usize, device: &Device) -> Tensor<4> {
    let normal = Distribution::Normal(0.0, 1.0);
    Tensor::random(
        [rows, heads, tokens, HEAD_DIM],
        normal,
        (device, DType::BF16),
    )
}

/// A cache of `layers` layers for `shape`, empty.
///
/// # Errors
/// As [`KvCacheConfig::init`].
pub fn empty(method: Method, shape: Shape, layers: usize, device: &Device) -> Result<KvCache> {
    let config = KvCacheConfig::new(layers, KV_HEADS, HEAD_DIM)
        .with_method(method)
        .with_max_tokens(shape.context + ROOM)
        .with_max_sequences(shape.batch)
        .with_dtype(DType::BF16)
        .with_input_checks(false);
    let mut cache = config.init(device)?;
    for _ in 1..shape.batch {
        cache.add_sequence()?;
    }
    Ok(cache)
}

/// A cache of `layers` layers, filled with random tokens and planned for one more.
///
/// # Errors
/// As the cache's calls.
pub fn filled(method: Method, shape: Shape, layers: usize, device: &Device) -> Result<Filled> {
    let mut cache = empty(method, shape, layers, device)?;
    let block = (BLOCK / (KV_HEADS * HEAD_DIM * shape.batch)).max(1);
    for start in (0..shape.context).step_by(block) {
        let tokens = block.min(shape.context - start);
        for layer in 0..layers {
            let [key, value] = [(); 2].map(|()| random(shape.batch, KV_HEADS, tokens, device));
            extend(&mut cache, layer, key, value)?;
        }
    }
    let memory = cache.memory();
    let page_tokens = cache.page_tokens();
    let layers = parts(cache, shape)?;
    Ok(Filled {
        layer_bytes: memory.resident_bytes / layers.len(),
        bits_per_value: memory.bits_per_value,
        page_tokens,
        layers,
    })
}

/// Appends without attending.
fn extend(cache: &mut KvCache, layer: usize, key: Tensor<4>, value: Tensor<4>) -> Result<()> {
    let [rows, _, tokens, _] = key.dims();
    let query = random(rows, HEADS, tokens, &key.device());
    cache.attend(layer, query, key, value, AttentionOptions::causal())?;
    Ok(())
}

/// Every layer with the plan of the next step.
fn parts(cache: KvCache, shape: Shape) -> Result<Vec<(KvLayer<Dispatch>, AttentionPlan)>> {
    let method = cache.config().method();
    let later = shape.context.saturating_sub(method.sink());
    let pages = later.saturating_sub(method.recent()) / cache.page_tokens();
    let rows = (0..shape.batch).map(|row| PlanRow {
        slot: row,
        sinks: method.sink().min(shape.context),
        pages: (0..pages)
            .map(|page| ((row * pages + page) as u32, cache.page_tokens()))
            .collect(),
        recent: later - pages * cache.page_tokens(),
    });
    let plan = AttentionPlan {
        rows: rows.collect(),
        scale: 1.0 / (HEAD_DIM as f64).sqrt(),
    };
    (0..cache.n_layers())
        .map(|layer| Ok((cache.layer(layer)?.clone(), plan.clone())))
        .collect()
}

/// Attention calls that took a fused kernel since the program began.
pub fn fused_calls() -> u64 {
    0
}

/// One token of each row into the exact tiers.
pub fn append(
    layer: KvLayer<Dispatch>,
    key: Tensor<4>,
    value: Tensor<4>,
    plan: &AttentionPlan,
) -> KvLayer<Dispatch> {
    let write = |tier, tokens: &Tensor<4>| {
        let mut tier = Tensor::<4>::from_dispatch(tier);
        for (i, row) in plan.rows.iter().enumerate() {
            let at = layer.sink + row.recent;
            let token = tokens.clone().narrow(0, i, 1);
            let place = [row.slot..row.slot + 1, 0..KV_HEADS, at..at + 1, 0..HEAD_DIM];
            tier = tier.slice_assign(place, token);
        }
        tier.into_dispatch()
    };
    KvLayer {
        key_tier: write(layer.key_tier, &key),
        value_tier: write(layer.value_tier, &value),
        ..layer
    }
}

/// One page of each row out of the exact tiers, packed.
pub fn demote(
    layer: KvLayer<Dispatch>,
    plan: &AttentionPlan,
    page_tokens: usize,
) -> KvLayer<Dispatch> {
    let device = Tensor::<4>::from_dispatch(layer.key_tier.clone()).device();
    let leaving = |tier: &burn::backend::DispatchTensor| {
        let tier = Tensor::<4>::from_dispatch(tier.clone());
        let rows = plan.rows.iter().map(|row| {
            let row = tier.clone().narrow(0, row.slot, 1);
            row.narrow(2, layer.sink, page_tokens)
        });
        Tensor::cat(rows.collect(), 0)
    };
    let (key, value) = (leaving(&layer.key_tier), leaving(&layer.value_tier));
    let pages = plan.rows.iter().filter_map(|row| row.pages.last());
    let pages: Vec<i64> = pages.map(|&(page, _)| i64::from(page)).collect();
    let pages = Tensor::<1, Int>::from_data(pages.as_slice(), &device);
    backend::write_pages(layer, key, value, pages)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::methods::{DEFAULT, layer_bytes, method_to_read};

    #[test]
    fn bytes_are_counted_from_the_cache() {
        let shape = Shape::new(2, 1000);
        for name in DEFAULT.into_iter().chain(["exact"]) {
            let method = method_to_read(name, 2).unwrap();
            let expected = layer_bytes(&method, shape);
            let filled = filled(method, shape, 2, &Device::flex()).unwrap();
            assert_eq!(filled.layer_bytes, expected, "{name}");
            assert_eq!(filled.layers.len(), 2);
            for (_, plan) in &filled.layers {
                assert_eq!(plan.rows.len(), 2);
            }
        }
    }
}
