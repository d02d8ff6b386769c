//! The statistics of one layer.

use super::fixed::MAX_CONTRIBUTIONS;
use super::sample::Sample;
use super::{Histogram, Moments, StatisticsConfig};
use crate::error::{Error, Result};

/// What was seen of one KV head; the [module](super) says how each is defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadStatistics {
    /// Queries of the head's group, all positions.
    pub queries: Moments,
    /// The same, weighted by how much of their attention an error of packed keys changes.
    pub sensitive_queries: Moments,
    /// Keys past the sinks.
    pub keys: Moments,
    /// Keys past the sinks, each minus the mean of its block.
    pub keys_in_block: Moments,
    /// The same, weighted by how much of the attention on them an error changes.
    pub sensitive_keys_in_block: Moments,
    /// Values past the sinks.
    pub values: Moments,
    /// Values past the sinks, weighted by the squares of the attention weights on them.
    pub attended: Moments,
    /// Values weighted by OSCAR's softmax-free proxy, all positions.
    pub proxy: Moments,
    /// Norms of the keys past the sinks.
    pub key_norms: Histogram,
    /// Norms of the values past the sinks.
    pub value_norms: Histogram,
}

impl HeadStatistics {
    pub(super) fn empty(head_dim: usize) -> Self {
        let moments = || Moments::empty(head_dim);
        Self {
            queries: moments(),
            sensitive_queries: moments(),
            keys: moments(),
            keys_in_block: moments(),
            sensitive_keys_in_block: moments(),
            values: moments(),
            attended: moments(),
            proxy: moments(),
            key_norms: Histogram::empty(),
            value_norms: Histogram::empty(),
        }
    }

    /// The moments by name, as the file has them.
    pub(super) fn moments(&self) -> [(&'static str, &Moments); 8] {
        [
            ("queries", &self.queries),
            ("sensitive_queries", &self.sensitive_queries),
            ("keys", &self.keys),
            ("keys_in_block", &self.keys_in_block),
            ("sensitive_keys_in_block", &self.sensitive_keys_in_block),
            ("values", &self.values),
            ("attended", &self.attended),
            ("proxy", &self.proxy),
        ]
    }

    pub(super) fn moments_mut(&mut self) -> [&mut Moments; 8] {
        [
            &mut self.queries,
            &mut self.sensitive_queries,
            &mut self.keys,
            &mut self.keys_in_block,
            &mut self.sensitive_keys_in_block,
            &mut self.values,
            &mut self.attended,
            &mut self.proxy,
        ]
    }

    fn add(&mut self, other: &Self) {
        let theirs = other.moments();
        for (mine, (_, theirs)) in self.moments_mut().into_iter().zip(theirs) {
            mine.add(theirs);
        }
        self.key_norms.add(&other.key_norms);
        self.value_norms.add(&other.value_norms);
    }
}

/// What was seen of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerStatistics {
    /// Tokens.
    pub tokens: u64,
    /// Sequences, counted at their first token.
    pub sequences: u64,
    /// Tokens of the longest sequence.
    pub longest: u64,
    /// Query heads; 0 before the first call.
    pub query_heads: usize,
    /// What the scores were multiplied with; 0 before the first call.
    pub scale: f64,
    /// One for each KV head.
    pub heads: Vec<HeadStatistics>,
    /// Calls and sequences that the sums are made of.
    pub(super) contributions: u64,
    pub(super) sample: Sample,
}

/// A token of the sample, as one KV head has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledToken<'a> {
    /// `[head_dim]`, after RoPE.
    pub key: &'a [f32],
    /// `[head_dim]`.
    pub value: &'a [f32],
    /// The sum of the squared attention weights on it.
    pub weight: f64,
}

impl LayerStatistics {
    pub(super) fn empty(config: &StatisticsConfig) -> Self {
        Self {
            tokens: 0,
            sequences: 0,
            longest: 0,
            query_heads: 0,
            scale: 0.0,
            heads: vec![HeadStatistics::empty(config.head_dim); config.n_kv_heads],
            contributions: 0,
            sample: Sample::default(),
        }
    }

    /// The sampled tokens of a KV head: a uniform sample of those past the sinks. Empty for a head
    /// that does not exist.
    pub fn sample(&self, head: usize) -> impl Iterator<Item = SampledToken<'_>> {
        let heads = self.heads.len();
        self.sample.0.values().filter_map(move |token| {
            let head_dim = token.keys.len() / heads;
            let channels = head * head_dim..(head + 1) * head_dim;
            Some(SampledToken {
                key: token.keys.get(channels.clone())?,
                value: token.values.get(channels)?,
                weight: token.weights.get(head)?.value(),
            })
        })
    }

    /// Whether `other` can be added.
    pub(super) fn check_merge(&self, layer: usize, other: &Self) -> Result<()> {
        let fail = |reason: String| Err(Error::Calibration { reason });
        if self.contributions > 0 && other.contributions > 0 {
            if self.query_heads != other.query_heads {
                return fail(format!(
                    "layer {layer} was seen with {} and with {} query heads: observe one model",
                    self.query_heads, other.query_heads
                ));
            }
            if self.scale != other.scale {
                return fail(format!(
                    "layer {layer} was seen with the scales {} and {}: observe one model",
                    self.scale, other.scale
                ));
            }
        }
        if self.contributions + other.contributions > MAX_CONTRIBUTIONS {
            return fail(format!(
                "layer {layer} has seen {} calls, {} more pass the {MAX_CONTRIBUTIONS} that add up \
                 exactly: observe longer calls",
                self.contributions, other.contributions
            ));
        }
        Ok(())
    }

    /// Adds; the caller has called [`check_merge`](Self::check_merge).
    pub(super) fn add(&mut self, other: &Self, sample: usize) {
        if self.contributions == 0 {
            self.query_heads = other.query_heads;
            self.scale = other.scale;
        }
        self.tokens += other.tokens;
        self.sequences += other.sequences;
        self.longest = self.longest.max(other.longest);
        self.contributions += other.contributions;
        for (mine, theirs) in self.heads.iter_mut().zip(&other.heads) {
            mine.add(theirs);
        }
        self.sample.add(&other.sample, sample);
    }
}
