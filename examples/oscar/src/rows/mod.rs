//! What is measured, as JSON lines: one row for every sample and method.

mod file;

use burn_oscar::MemoryReport;
use models::evaluate::Tally;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use file::{RowFile, read};

use crate::{
    grid::MethodNote,
    machine::Machine,
    tasks::{Sample, Span, TaskNote},
};

/// The version of the format.
pub const FORMAT: u32 = 1;

/// One sample and one method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The version of the format.
    pub format: u32,
    /// Which model.
    pub model: ModelNote,
    /// What was done.
    pub task: TaskNote,
    /// Which of the task's samples.
    pub item: Value,
    /// With which method.
    pub method: MethodNote,
    /// What came out, by span.
    pub scores: Vec<SpanScore>,
    /// What the cache occupies.
    pub bytes: Bytes,
    /// Where.
    pub machine: Machine,
    /// Of this program.
    pub commit: String,
    /// When it was done, in seconds since 1970.
    pub unix_time: u64,
    /// Time of the method's pass through the model, scoring excluded.
    pub seconds: f64,
}

/// A model and its sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelNote {
    /// Name of the file or folder, or the hub id.
    pub name: String,
    /// Of its weights.
    pub fingerprint: String,
    /// Layers.
    pub layers: usize,
    /// KV heads of a layer.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
}

/// The means over one span, in nats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpanScore {
    /// Which.
    pub span: String,
    /// Tokens scored.
    pub positions: usize,
    /// Mean negative log likelihood.
    pub nll: f64,
    /// The exact cache's.
    pub exact_nll: f64,
    /// `nll - exact_nll`.
    pub delta_nll: f64,
    /// Standard error of `delta_nll` within the span, as if positions were independent.
    pub delta_nll_error: Option<f64>,
    /// Mean KL(exact || method) over the whole vocabulary.
    pub kl: f64,
    /// Standard error of `kl` within the span.
    pub kl_error: Option<f64>,
    /// Share of positions where both prefer the same token.
    pub top1: f64,
    /// Positions where the method prefers the text's own token. Where that is all of them, greedy
    /// decoding writes the span word for word.
    pub hits: usize,
    /// Positions where the exact cache does.
    pub exact_hits: usize,
}

/// What a cache occupies at the end of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bytes {
    /// Tokens held.
    pub tokens: usize,
    /// As they are on this device: exact tokens in its own format.
    pub resident: usize,
    /// Of these, pages.
    pub pages: usize,
    /// With exact tokens in 16 bits, as on a GPU.
    pub resident_16_bit: f64,
    /// The same tokens in a 16-bit cache.
    pub exact_16_bit: usize,
    /// Bits of a stored number, windows included, exact tokens in 16 bits.
    pub bits_per_value: f64,
    /// Bits of a stored number in full pages, parameters included; absent for the exact cache.
    pub page_bits: Option<f64>,
}

impl Row {
    /// Equal for equal measurements, whenever and wherever they were made.
    pub fn key(&self) -> String {
        key(&self.model, &self.task, &self.item, &self.method)
    }
}

/// The key of a row that is yet to be measured, see [`Row::key`].
pub fn sample_key(model: &ModelNote, sample: &Sample, method: &MethodNote) -> String {
    key(model, &sample.task, &sample.item, method)
}

fn key(model: &ModelNote, task: &TaskNote, item: &Value, method: &MethodNote) -> String {
    format!(
        "{} {:?} {} {} {item} {}",
        model.fingerprint,
        task.kind,
        task.sha256,
        task.settings,
        method.key()
    )
}

impl SpanScore {
    /// The means of a tally.
    pub fn new(span: &Span, tally: &Tally) -> Self {
        let (delta_nll, delta_nll_error) = tally.delta();
        let (kl, kl_error) = tally.divergence();
        Self {
            span: span.label.clone(),
            positions: tally.positions,
            nll: tally.mean(tally.nll),
            exact_nll: tally.mean(tally.exact_nll),
            delta_nll,
            delta_nll_error,
            kl,
            kl_error,
            top1: tally.mean(tally.agreed as f64),
            hits: tally.hits,
            exact_hits: tally.exact_hits,
        }
    }
}

impl Bytes {
    /// Of a cache, given that of the exact cache for the same tokens on the same device.
    pub fn new(memory: &MemoryReport, exact: &MemoryReport) -> Self {
        // Bytes of an exact number over the 2 that it has in 16 bits.
        let width = exact.resident_bytes as f64 / exact.exact_bytes.max(1) as f64;
        let sides = [memory.key_page_bits, memory.value_page_bits];
        let bits: f64 = sides.iter().sum();
        let packed = |bits: f64| bits < 16.0;
        // Either side may be left exact; each has its share of a page.
        let of_sides = |wanted: bool| {
            let chosen = sides.iter().filter(|bits| packed(**bits) == wanted);
            memory.page_bytes as f64 * chosen.sum::<f64>() / bits.max(f64::MIN_POSITIVE)
        };
        let windows = (memory.resident_bytes - memory.page_bytes) as f64;
        let resident_16_bit = of_sides(true) + (of_sides(false) + windows) / width;
        let numbers = (memory.exact_bytes / 2).max(1) as f64;
        let any_packed = sides.into_iter().any(packed);
        Self {
            tokens: memory.tokens,
            resident: memory.resident_bytes,
            pages: memory.page_bytes,
            resident_16_bit,
            exact_16_bit: memory.exact_bytes,
            bits_per_value: resident_16_bit * 8.0 / numbers,
            page_bits: any_packed.then_some(bits / 2.0),
        }
    }

    /// Bytes of a token, exact ones in 16 bits.
    pub fn per_token(&self) -> f64 {
        self.resident_16_bit / self.tokens.max(1) as f64
    }
}

#[cfg(test)]
mod tests;
