//! What calibration has seen: sums over the tokens of some texts, per layer and KV head.
//!
//! All sums are exact, in integers, so statistics merge to the same bits in any order and grouping:
//! shards of a corpus, observed by any number of processes, add up to the statistics of one run.
//!
//! Per KV head, with row vectors `q`, `k`, `v` as they meet in attention (keys after RoPE):
//! - [`queries`](HeadStatistics::queries): `Σ qᵀq` over the query heads that read this head
//! - [`keys`](HeadStatistics::keys), [`values`](HeadStatistics::values): of every token past the
//!   sinks
//! - [`keys_in_block`](HeadStatistics::keys_in_block): keys minus the mean of their block of
//!   256 tokens. Blocks begin after the sinks, as the pages of the cache do; one counts when its
//!   last token arrives
//! - [`sensitive_queries`](HeadStatistics::sensitive_queries),
//!   [`sensitive_keys_in_block`](HeadStatistics::sensitive_keys_in_block): the same, each query and
//!   each key as often as it takes part in `p (1 - p)`, `p` the attention weight of the query on the
//!   key, for keys past the sinks and a block older than the query: those that are packed. Errors
//!   `e` of independent scores change the weights of a softmax by
//!   `KL = 1/2 Σ p (1 - p) e²` to second order, so these moments count what matters; most queries look
//!   at sinks and at their neighbours, and an error of packed keys does nothing to them
//! - [`attended`](HeadStatistics::attended): `Σ_s w_s v_sᵀv_s` with `w_s = Σ p_ts²` over all queries
//!   `t` of the group, `p` the causal softmax: what an error of `v_s` does to the outputs (OSCAR's
//!   `VᵀSᵀSV`, without its off-diagonal terms). Of tokens past the sinks
//! - [`proxy`](HeadStatistics::proxy): the same with OSCAR's softmax-free weights
//!   `w_t = k_t C_Q k_tᵀ`, `C_Q` the mean of `qᵀq` over the queries of the same call, scaled so that
//!   the tokens of a call weigh 1 on average. Of all tokens, as published
//! - histograms of the norms, and a sample of tokens with their `w_s`

mod file;
mod fixed;
mod histogram;
mod layer;
mod moments;
mod record;
mod sample;
#[cfg(test)]
mod tests;

pub use histogram::Histogram;
pub use layer::{HeadStatistics, LayerStatistics, SampledToken};
pub use moments::Moments;
pub use record::Observation;

use crate::error::{Error, Result};
use crate::quantizer::MEAN_TOKENS;

/// What statistics are of, and how they are taken. Only equal ones merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatisticsConfig {
    /// Identifies the model; may be empty until the solver wants it.
    pub fingerprint: String,
    /// Layers of the model.
    pub n_layers: usize,
    /// KV heads of each layer.
    pub n_kv_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Tokens at the start of every sequence that do not count as keys or values: the cache keeps
    /// them exact, and they look like no others.
    pub sinks: usize,
    /// Tokens of a block of [`HeadStatistics::keys_in_block`].
    pub block: usize,
    /// Tokens of each layer that are kept as they are.
    pub sample: usize,
}

impl StatisticsConfig {
    /// Of a model without a fingerprint: 64 sinks, blocks of 256 tokens, 256 sampled tokens.
    pub fn new(n_layers: usize, n_kv_heads: usize, head_dim: usize) -> Self {
        Self {
            fingerprint: String::new(),
            n_layers,
            n_kv_heads,
            head_dim,
            sinks: 64,
            block: MEAN_TOKENS,
            sample: 256,
        }
    }

    fn validate(&self) -> Result<()> {
        for (what, count) in [
            ("n_layers", self.n_layers),
            ("n_kv_heads", self.n_kv_heads),
            ("head_dim", self.head_dim),
            ("block", self.block),
        ] {
            if count == 0 {
                return Err(Error::Zero { what });
            }
        }
        Ok(())
    }

    /// The first difference, in words.
    fn difference(&self, other: &Self) -> Option<String> {
        if self.fingerprint != other.fingerprint {
            return Some(format!(
                "of model `{}` and of model `{}`",
                self.fingerprint, other.fingerprint
            ));
        }
        [
            ("layers", self.n_layers, other.n_layers),
            ("KV heads", self.n_kv_heads, other.n_kv_heads),
            ("channels per head", self.head_dim, other.head_dim),
            ("sinks", self.sinks, other.sinks),
            ("tokens per block", self.block, other.block),
            ("sampled tokens", self.sample, other.sample),
        ]
        .into_iter()
        .find(|(_, mine, theirs)| mine != theirs)
        .map(|(what, mine, theirs)| format!("with {mine} and with {theirs} {what}"))
    }
}

/// Everything that calibration knows of a model; see the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    config: StatisticsConfig,
    layers: Vec<LayerStatistics>,
}

impl Statistics {
    /// Of nothing yet.
    ///
    /// # Errors
    /// [`Error::Zero`] for a size of 0.
    pub fn new(config: StatisticsConfig) -> Result<Self> {
        config.validate()?;
        let layer = LayerStatistics::empty(&config);
        Ok(Self {
            layers: vec![layer; config.n_layers],
            config,
        })
    }

    /// Adds what one call attended to in one layer and sequence.
    ///
    /// # Errors
    /// [`Error::Layer`]; [`Error::Shape`] where the numbers do not fit the sizes;
    /// [`Error::Calibration`] for numbers that are not finite or too large to add exactly, and where
    /// the layer was called with other query heads or another scale before. Nothing was added then.
    pub fn record(&mut self, layer: usize, observation: &Observation) -> Result<()> {
        let call = self.observe(layer, observation)?;
        self.add_call(layer, &call)
    }

    /// What one call contributes to a layer, to be added by [`Statistics::add_call`].
    pub(crate) fn observe(
        &self,
        layer: usize,
        observation: &Observation,
    ) -> Result<LayerStatistics> {
        let held = self.layers.get(layer).ok_or(Error::Layer {
            layer,
            layers: self.layers.len(),
        })?;
        let call = LayerStatistics::of_call(&self.config, observation)?;
        held.check_merge(layer, &call)?;
        Ok(call)
    }

    /// Joins what the rows of one call contribute.
    pub(crate) fn add_to_call(&self, call: &mut LayerStatistics, other: &LayerStatistics) {
        call.add(other, self.config.sample);
    }

    /// Adds to a layer, or fails and changes nothing.
    pub(crate) fn add_call(&mut self, layer: usize, call: &LayerStatistics) -> Result<()> {
        self.layers[layer].check_merge(layer, call)?;
        self.layers[layer].add(call, self.config.sample);
        Ok(())
    }

    /// Adds what another run has seen of the same model. The result does not depend on the order
    /// or the grouping of merges.
    ///
    /// # Errors
    /// [`Error::Calibration`] where the two are not of the same kind; this one is as it was.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        if let Some(difference) = self.config.difference(&other.config) {
            return Err(Error::Calibration {
                reason: format!(
                    "statistics {difference} do not merge: observe one model in one way"
                ),
            });
        }
        for (layer, (mine, theirs)) in self.layers.iter().zip(&other.layers).enumerate() {
            mine.check_merge(layer, theirs)?;
        }
        for (mine, theirs) in self.layers.iter_mut().zip(&other.layers) {
            mine.add(theirs, self.config.sample);
        }
        Ok(())
    }

    /// What they are of.
    pub fn config(&self) -> &StatisticsConfig {
        &self.config
    }

    /// All layers, in the order of the model.
    pub fn layers(&self) -> &[LayerStatistics] {
        &self.layers
    }

    /// Tokens that every layer has seen.
    pub fn tokens(&self) -> u64 {
        self.layers.iter().map(|l| l.tokens).min().unwrap_or(0)
    }

    /// Sequences that every layer has seen the beginning of.
    pub fn sequences(&self) -> u64 {
        self.layers.iter().map(|l| l.sequences).min().unwrap_or(0)
    }

    /// Tokens of the longest sequence.
    pub fn longest(&self) -> u64 {
        self.layers.iter().map(|l| l.longest).max().unwrap_or(0)
    }
}
