//! Filled caches, taken apart: the only place that knows how a cache plans a decode step.

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_oscar::backend::{self, AttentionPlan, Demotion, KvLayer};
use burn_oscar::{AttentionOptions, KvCache, KvCacheConfig, Method};

use crate::Result;
use crate::shape::{HEAD_DIM, KV_HEADS, Shape};

/// Numbers of one block that a cache is filled with, keys or values.
const BLOCK: usize = 8 << 20;
/// Tokens that the pool has room for past the context: the step, and a page that leaves.
const ROOM: usize = 512;

/// The layers of a filled cache, each with the plan of the next step.
pub struct Filled {
    /// Layers of equal shape, on memory of their own.
    pub layers: Vec<(KvLayer<Dispatch>, AttentionPlan<Dispatch>)>,
    /// Bits for each stored number, windows and parameters included.
    pub bits_per_value: f64,
    /// Bytes of one layer that hold tokens.
    pub layer_bytes: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Recent tokens that stay exact.
    pub recent: usize,
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
            cache.extend(layer, key, value, AttentionOptions::causal())?;
        }
    }
    cache.plan_decode(&AttentionOptions::causal())?;
    let parts = (0..layers).map(|layer| Ok(cache.decode_parts(layer)?));
    let parts = parts.collect::<Result<Vec<_>>>()?;
    let memory = cache.memory();
    Ok(Filled {
        layers: parts,
        bits_per_value: memory.bits_per_value,
        layer_bytes: memory.resident_bytes / layers,
        page_tokens: cache.page_tokens(),
        recent: cache.config().method().recent(),
    })
}

/// Attention calls that took a fused kernel since the program began.
pub fn fused_calls() -> u64 {
    backend::fused_calls()
}

impl Filled {
    /// One page of each sequence of `layer` out of the recent tier, full as it is when one is due.
    /// It overwrites the sequence's newest page.
    pub fn due(&self, layer: usize) -> Vec<Demotion> {
        let (_, plan) = &self.layers[layer];
        let rows = plan.rows.iter();
        rows.filter_map(|row| {
            Some(Demotion {
                slot: row.slot,
                page: row.pages.last()?.0,
                recent: self.recent + self.page_tokens,
            })
        })
        .collect()
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn_oscar::backend::PlanRow;

    use super::*;
    use crate::methods::{DEFAULT, layer_bytes, method};

    #[test]
    fn bytes_are_counted_from_the_cache() {
        let shape = Shape::new(2, 1000);
        for name in DEFAULT.into_iter().chain(["exact"]) {
            let method = method(name, 2).unwrap();
            let expected = layer_bytes(&method, shape);
            let filled = filled(method, shape, 2, &Device::flex()).unwrap();
            assert_eq!(filled.layer_bytes, expected, "{name}");
            assert_eq!(filled.layers.len(), 2);
            for (layer, (_, plan)) in filled.layers.iter().enumerate() {
                let held = |row: &PlanRow| {
                    let pages = row.pages.iter().map(|page| page.1).sum::<usize>();
                    row.sinks + pages + row.recent
                };
                assert!(plan.rows.iter().all(|row| held(row) == shape.context));
                let due = filled.due(layer);
                assert_eq!(due.len(), 2, "{name}");
                assert!(due[0].slot != due[1].slot && due[0].page != due[1].page);
                assert_eq!(due[0].recent, 256 + filled.page_tokens);
            }
        }
    }
}
