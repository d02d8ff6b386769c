//! Memory, counted from the tensors that are there.

use std::collections::HashSet;
use std::fmt;

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{Int, Tensor};

use super::KvCache;
use crate::backend::{OptionalTensor, Pages};

/// What a cache occupies, in bytes, over all layers.
///
/// *Allocated* is the size of the device buffers; *resident* is the part of them that holds
/// tokens. `bits_per_value` divides the resident bytes, windows and parameters included, by the
/// stored numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct MemoryReport {
    /// Tokens held, over all sequences; shared pages count for each that shares them.
    pub tokens: usize,
    /// Device buffers of the pools and the exact tiers.
    pub allocated_bytes: usize,
    /// The part of `allocated_bytes` that is page pools.
    pub allocated_page_bytes: usize,
    /// Bytes that hold tokens: sinks, pages and recent tokens.
    pub resident_bytes: usize,
    /// Sink tokens.
    pub sink_bytes: usize,
    /// Pages in use, each once.
    pub page_bytes: usize,
    /// Recent tokens.
    pub recent_bytes: usize,
    /// Page tables and counts, on the host.
    pub table_bytes: usize,
    /// Matrices and means of the transforms, on the device.
    pub transform_bytes: usize,
    /// The same tokens in a 16-bit cache.
    pub exact_bytes: usize,
    /// Bits for each stored number.
    pub bits_per_value: f64,
    /// Bits for each number of a full page of keys, on average over the layers.
    pub key_page_bits: f64,
    /// Bits for each number of a full page of values, on average over the layers.
    pub value_page_bits: f64,
}

impl KvCache {
    /// Counts the memory of the cache.
    pub fn memory(&self) -> MemoryReport {
        let (heads, head_dim) = (self.config.n_kv_heads, self.config.head_dim);
        let vector = 2 * heads * head_dim * self.config.dtype.size();
        let mut report = MemoryReport::default();
        let mut numbers = 0;
        let (mut key_pools, mut value_pools) = (0, 0);
        for (index, layer) in self.layers.iter().enumerate() {
            let Some(layer) = layer else { continue };
            let key_pool = pages_bytes(&layer.key);
            let value_pool = pages_bytes(&layer.value);
            let pools = key_pool + value_pool;
            report.allocated_page_bytes += pools;
            report.allocated_bytes +=
                pools + bytes::<4>(&layer.key_tier) + bytes::<4>(&layer.value_tier);
            let mut used: HashSet<u32> = HashSet::new();
            for sequence in &self.sequences {
                let table = &sequence.layers[index];
                report.sink_bytes += table.sinks * vector;
                report.recent_bytes += table.recent * vector;
                used.extend(&sequence.pages[..table.pages.len()]);
                numbers += 2 * table.len() * heads * head_dim;
                report.table_bytes += std::mem::size_of_val(table.pages.as_slice());
            }
            report.page_bytes += used.len() * pools / self.pool.pages();
            key_pools += key_pool;
            value_pools += value_pool;
        }
        let capacity = self.pool.pages() * self.page_tokens * heads * head_dim * self.layers.len();
        report.key_page_bits = key_pools as f64 * 8.0 / capacity as f64;
        report.value_page_bits = value_pools as f64 * 8.0 / capacity as f64;
        report.tokens = self.lens().iter().sum();
        report.resident_bytes = report.sink_bytes + report.page_bytes + report.recent_bytes;
        report.table_bytes += self
            .sequences
            .iter()
            .map(|sequence| std::mem::size_of_val(sequence.pages.as_slice()))
            .sum::<usize>();
        report.transform_bytes = self.transforms.iter().map(|t| t.bytes()).sum();
        report.exact_bytes = 2 * numbers;
        if numbers > 0 {
            report.bits_per_value = report.resident_bytes as f64 * 8.0 / numbers as f64;
        }
        report
    }
}

fn bytes<const D: usize>(tensor: &DispatchTensor) -> usize {
    let tensor = Tensor::<D>::from_dispatch(tensor.clone());
    tensor.shape().num_elements() * tensor.dtype().size()
}

fn pages_bytes(pages: &Pages<Dispatch>) -> usize {
    match pages {
        Pages::Exact(tensor) => bytes::<4>(tensor),
        Pages::Packed(packed) => {
            let words = Tensor::<3, Int>::from_dispatch(packed.words.clone());
            let optional = |tensor: &OptionalTensor<Dispatch>,
                            size: fn(&DispatchTensor) -> usize| {
                match tensor {
                    OptionalTensor::Present(tensor) => size(tensor),
                    OptionalTensor::Absent => 0,
                }
            };
            words.shape().num_elements() * words.dtype().size()
                + optional(&packed.pairs, bytes::<3>)
                + optional(&packed.norms, bytes::<2>)
                + optional(&packed.means, bytes::<3>)
        }
    }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: usize| bytes as f64 / (1 << 20) as f64;
        writeln!(
            f,
            "{} tokens, {:.3} bits per value",
            self.tokens, self.bits_per_value
        )?;
        for (tier, size) in [
            ("sinks", self.sink_bytes),
            ("pages", self.page_bytes),
            ("recent", self.recent_bytes),
            ("in all", self.resident_bytes),
            ("16-bit cache", self.exact_bytes),
            ("allocated", self.allocated_bytes),
        ] {
            writeln!(f, "  {tier:<13}{:>10.3} MiB", mib(size))?;
        }
        Ok(())
    }
}
