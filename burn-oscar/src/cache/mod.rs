//! The cache: sequences of tokens in three tiers, sinks, packed pages and recent tokens.
//!
//! ```text
//! tokens  0 ......... S | S ................................ n-r | n-r .......... n
//!         sinks, exact  | history: pages of packed bits          | recent, exact (R to R+page-1)
//! ```
//!
//! A sequence's tokens move in one direction: into the sinks while those have room, then into the
//! recent tier, and from there, a whole page at a time, into the pool of packed pages. What a
//! page holds depends only on the tokens, never on how they were cut into calls.

mod append;
mod attend;
mod attend_only;
#[cfg(feature = "calibrate")]
mod compare;
mod config;
mod decode;
mod host;
mod layers;
mod manage;
mod memory;
#[cfg(feature = "calibrate")]
mod observe;
mod padding;
mod plan;
mod pool;
mod read;
mod sequence;

pub use attend::AttentionOptions;
#[cfg(feature = "calibrate")]
pub use compare::LayerComparison;
pub use config::KvCacheConfig;
pub(crate) use host::flags;
pub(crate) use layers::check_foldable;
pub use memory::MemoryReport;
#[cfg(feature = "calibrate")]
pub use observe::ObserveOptions;
pub use padding::Padding;
pub use sequence::SequenceId;

use std::sync::atomic::AtomicBool;

use burn::backend::Dispatch;
use burn::tensor::Device;

use crate::backend::{AttentionPlan, KvLayer};
use crate::error::{Error, Result};
use crate::rotation::LayerTransform;
use pool::PagePool;
use sequence::Sequence;

/// A key/value cache for all layers of a model, made by [`KvCacheConfig::init`].
///
/// A new cache holds one empty sequence; [`add_sequence`](Self::add_sequence) and
/// [`fork`](Self::fork) make more. Batch rows of a call are the sequences in the order of
/// [`sequences`](Self::sequences), unless [`AttentionOptions::rows`] names others.
#[derive(Debug)]
pub struct KvCache {
    config: KvCacheConfig,
    device: Device,
    page_tokens: usize,
    /// `None` only while a call works on the layer.
    layers: Vec<Option<KvLayer<Dispatch>>>,
    transforms: Vec<LayerTransform>,
    pool: PagePool,
    sequences: Vec<Sequence>,
    free_slots: Vec<usize>,
    next_id: u64,
    /// Work items that a step's history is cut into, about.
    splits: usize,
    /// The plan that the layers of a step share.
    step_plan: Option<AttentionPlan<Dispatch>>,
    decode_plan: Option<decode::DecodePlan>,
    /// Whether it was said that a sequence is longer than the calibration serves.
    warned: AtomicBool,
    #[cfg(feature = "calibrate")]
    observer: Option<observe::Observer>,
    #[cfg(feature = "calibrate")]
    comparison: Option<compare::Comparison>,
}

impl KvCache {
    /// The configuration it was made with.
    pub fn config(&self) -> &KvCacheConfig {
        &self.config
    }

    /// The device that holds it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Tokens of a page.
    pub fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// Layers of the model.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// The transforms of a layer, to take stored vectors back.
    ///
    /// # Errors
    /// [`Error::Layer`].
    pub fn transform(&self, layer: usize) -> Result<&LayerTransform> {
        self.transforms.get(layer).ok_or(Error::Layer {
            layer,
            layers: self.layers.len(),
        })
    }

    /// The tensors of a layer: for tests, kernels and inspection. Holding on to them costs a
    /// copy at the next append.
    ///
    /// # Errors
    /// [`Error::Layer`]; [`Error::Execution`] after a call that panicked.
    pub fn layer(&self, layer: usize) -> Result<&KvLayer<Dispatch>> {
        let layers = self.layers.len();
        self.layers
            .get(layer)
            .ok_or(Error::Layer { layer, layers })?
            .as_ref()
            .ok_or_else(|| lost(layer))
    }

    fn take_layer(&mut self, layer: usize) -> Result<KvLayer<Dispatch>> {
        self.layers[layer].take().ok_or_else(|| lost(layer))
    }
}

fn lost(layer: usize) -> Error {
    Error::Execution(format!(
        "layer {layer} was lost when an earlier call panicked: make a new cache"
    ))
}
