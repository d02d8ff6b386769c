//! A cache that watches: what passes through [`KvCache::attend`] becomes statistics for
//! calibration, without another line in the model.

use std::collections::BTreeMap;

use burn::tensor::activation::softmax;
use burn::tensor::{DType, Int, Tensor};

use super::host::numbers;
use super::{KvCache, KvCacheConfig, SequenceId};
use crate::calibration::statistics::{LayerStatistics, Observation};
use crate::calibration::{Statistics, StatisticsConfig};
use crate::error::{Error, Result};

/// Numbers of a block of attention weights, which bounds what observing needs: 64 MiB.
const BLOCK_NUMBERS: usize = 1 << 24;
/// Queries of a block, at most.
const BLOCK_QUERIES: usize = 128;

/// How a cache observes, see [`KvCacheConfig::observing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObserveOptions {
    /// Tokens at the start of every sequence that do not count as keys or values (64).
    pub sinks: usize,
    /// Tokens of a block with a mean of its own (256).
    pub block: usize,
    /// Tokens of each layer that are kept as they are, to choose clips by (256).
    pub sample: usize,
}

impl Default for ObserveOptions {
    fn default() -> Self {
        let config = StatisticsConfig::new(1, 1, 1);
        Self {
            sinks: config.sinks,
            block: config.block,
            sample: config.sample,
        }
    }
}

/// What an observing cache holds besides the tokens.
#[derive(Debug)]
pub(super) struct Observer {
    statistics: Statistics,
    /// By sequence number, where the caller gave one.
    texts: BTreeMap<u64, u64>,
}

impl Observer {
    /// # Errors
    /// [`Error::Option`] unless the method is `exact`: calibration wants what the model computes,
    /// not what another calibration made of it. The same where a layer has a sliding window.
    pub fn new(config: &KvCacheConfig, options: &ObserveOptions) -> Result<Self> {
        if config.method.name() != "exact" {
            return Err(Error::Option {
                option: "observing with method",
                value: config.method.name().to_string(),
                reason: "statistics are of exact attention: use Method::exact",
            });
        }
        if let Some(layer) = config.windowed_layers().next() {
            return Err(Error::Option {
                option: "observing with a sliding window in layer",
                value: layer.to_string(),
                reason: "statistics are of attention to all tokens: calibrate without \
                         with_sliding_window",
            });
        }
        let statistics = Statistics::new(StatisticsConfig {
            fingerprint: config.fingerprint.clone().unwrap_or_default(),
            n_layers: config.n_layers,
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
            sinks: options.sinks,
            block: options.block,
            sample: options.sample,
        })?;
        Ok(Self {
            statistics,
            texts: BTreeMap::new(),
        })
    }
}

impl KvCacheConfig {
    /// Makes a cache that takes statistics of every [`attend`](KvCache::attend), to calibrate
    /// with: read them by [`KvCache::statistics`]. The method must be `exact`, and the fingerprint
    /// of the model goes into them. Observing costs about a second attention per call, and the way
    /// of the call's tensors to the host.
    #[must_use]
    pub fn observing(mut self, options: ObserveOptions) -> Self {
        self.observe = Some(options);
        self
    }
}

impl KvCache {
    /// What was observed so far; `None` unless the cache is
    /// [observing](KvCacheConfig::observing).
    pub fn statistics(&self) -> Option<&Statistics> {
        self.observer.as_ref().map(|observer| &observer.statistics)
    }

    /// Takes what was observed so far and goes on with nothing. `None` unless the cache is
    /// [observing](KvCacheConfig::observing).
    pub fn take_statistics(&mut self) -> Option<Statistics> {
        let observer = self.observer.as_mut()?;
        // The configuration was accepted when the observer was made.
        let empty = Statistics::new(observer.statistics.config().clone()).ok()?;
        Some(std::mem::replace(&mut observer.statistics, empty))
    }

    /// Names the text of a sequence, for the sample that is kept: with the same names it is the
    /// same however the texts are shared out among processes. Default: the sequence's own number,
    /// which counts up from 0. Without effect unless the cache is observing.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub fn set_text_id(&mut self, id: SequenceId, text: u64) -> Result<()> {
        self.index_of(id)?;
        if let Some(observer) = &mut self.observer {
            observer.texts.insert(id.0, text);
        }
        Ok(())
    }

    /// Refuses what appends keys that no query of the same call attends to.
    pub(super) fn check_not_observing(&self, call: &'static str) -> Result<()> {
        match self.observer {
            None => Ok(()),
            Some(_) => Err(Error::Option {
                option: "observing cache:",
                value: call.to_string(),
                reason: "only `attend` is observed: call it instead",
            }),
        }
    }

    /// What a call contributes to the statistics, before its tokens are appended: `query`
    /// `[rows, heads, tokens, head_dim]`, `key` and `value` `[rows, kv_heads, tokens, head_dim]`.
    pub(super) fn observe_call(
        &self,
        layer: usize,
        rows: &[usize],
        [query, key, value]: [&Tensor<4>; 3],
        scale: f64,
    ) -> Result<Option<LayerStatistics>> {
        let Some(observer) = &self.observer else {
            return Ok(None);
        };
        let mut call: Option<LayerStatistics> = None;
        for (i, &row) in rows.iter().enumerate() {
            let sequence = &self.sequences[row];
            let past = sequence.layers[layer].len();
            let own = |tensor: &Tensor<4>| {
                let row = tensor.clone().detach().narrow(0, i, 1);
                row.cast(DType::F32).squeeze_dim::<3>(0)
            };
            let (query, mut key, mut value) = (own(query), own(key), own(value));
            if past > 0 {
                let [held_key, held_value] = self.dequantize(sequence.id, layer)?;
                key = Tensor::cat(vec![held_key, key], 1);
                value = Tensor::cat(vec![held_value, value], 1);
            }
            let config = observer.statistics.config();
            let weights = attention_weights(config, query.clone(), key.clone(), scale)?;
            let number = sequence.id.0;
            let seen = observer.statistics.observe(
                layer,
                &Observation {
                    text: observer.texts.get(&number).copied().unwrap_or(number),
                    past,
                    tokens: query.dims()[1],
                    scale,
                    queries: &numbers(query)?,
                    keys: &numbers(key)?,
                    values: &numbers(value)?,
                    weights: &weights.squares,
                    query_sensitivity: &weights.of_queries,
                    key_sensitivity: &weights.on_keys,
                },
            )?;
            match &mut call {
                None => call = Some(seen),
                Some(call) => observer.statistics.add_to_call(call, &seen),
            }
        }
        Ok(call)
    }

    /// Keeps what [`observe_call`](Self::observe_call) found.
    pub(super) fn keep_observation(
        &mut self,
        layer: usize,
        call: Option<LayerStatistics>,
    ) -> Result<()> {
        match (&mut self.observer, call) {
            (Some(observer), Some(call)) => observer.statistics.add_call(layer, &call),
            _ => Ok(()),
        }
    }
}

/// Sums of the causal attention weights `p` of a call, in the order of [`Observation`]'s fields.
struct AttentionWeights {
    squares: Vec<f64>,
    of_queries: Vec<f64>,
    on_keys: Vec<f64>,
}

/// The sums over `query` `[heads, tokens, head_dim]`, the newest tokens, and `key`
/// `[kv_heads, held, head_dim]`. In f32 on the device within a block of queries, in f64 over the
/// blocks.
fn attention_weights(
    config: &StatisticsConfig,
    query: Tensor<3>,
    key: Tensor<3>,
    scale: f64,
) -> Result<AttentionWeights> {
    let [heads, tokens, head_dim] = query.dims();
    let [kv_heads, held, _] = key.dims();
    let (group, past, device) = (heads / kv_heads, held - tokens, key.device());
    let block = (BLOCK_NUMBERS / (heads * held)).clamp(1, BLOCK_QUERIES);
    let mut sums = AttentionWeights {
        squares: vec![0.0; kv_heads * held],
        of_queries: vec![0.0; heads * tokens],
        on_keys: vec![0.0; kv_heads * held],
    };
    for start in (0..tokens).step_by(block) {
        let count = block.min(tokens - start);
        let seen = past + start + count;
        let query = query.clone().narrow(1, start, count);
        let query = query.reshape([kv_heads, group * count, head_dim]);
        let scores = query.matmul(key.clone().narrow(1, 0, seen).swap_dims(1, 2)) * scale;
        let scores = scores.reshape([kv_heads, group, count, seen]);
        let arange =
            |from: usize, to: usize| Tensor::<1, Int>::arange(from as i64..to as i64, &device);
        let own = arange(past + start, seen).reshape([1, 1, count, 1]);
        let other = arange(0, seen).reshape([1, 1, 1, seen]);
        let shape = [kv_heads, group, count, seen];
        let (own, other) = (own.expand(shape), other.expand(shape));
        let later = other.clone().greater(own.clone());
        let weights = softmax(scores.mask_fill(later, f32::NEG_INFINITY), 3);
        let squares = weights.clone() * weights.clone();
        // Packed are only tokens past the sinks, and a block older than the query at least.
        let exact = (other.clone().greater(own - config.block as i64))
            .bool_or(other.lower_elem(config.sinks as i64));
        let sensitivity = (weights - squares.clone()).mask_fill(exact, 0.0);
        add_columns(&mut sums.squares, squares, held, 0)?;
        add_columns(&mut sums.on_keys, sensitivity.clone(), held, 0)?;
        let rows = sensitivity.sum_dim(3).reshape([heads, 1, 1, count]);
        add_columns(&mut sums.of_queries, rows, tokens, start)?;
    }
    Ok(sums)
}

/// Adds the sums over the two dimensions in the middle to `totals` `[n, width]`, from column `from`
/// on.
fn add_columns(totals: &mut [f64], terms: Tensor<4>, width: usize, from: usize) -> Result<()> {
    let [.., count] = terms.dims();
    let terms = numbers(terms.sum_dim(2).sum_dim(1))?;
    for (totals, terms) in totals
        .chunks_exact_mut(width)
        .zip(terms.chunks_exact(count))
    {
        for (total, term) in totals[from..].iter_mut().zip(terms) {
            *total += f64::from(*term);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    /// Blocks of queries, groups of heads and a prefix, against a plain softmax.
    #[test]
    fn weights_are_those_of_a_plain_softmax() {
        let (heads, kv_heads, tokens, held, d) = (4, 2, 150, 170, 2);
        let random = |i: usize| ((i * 7919 % 1000) as f32 / 500.0) - 1.0;
        let queries: Vec<f32> = (0..heads * tokens * d).map(random).collect();
        let keys: Vec<f32> = (0..kv_heads * held * d).map(|i| random(i + 77)).collect();
        let config = StatisticsConfig {
            sinks: 3,
            block: 40,
            ..StatisticsConfig::new(1, kv_heads, d)
        };
        let mut squares = vec![0f64; kv_heads * held];
        let (mut of_queries, mut on_keys) = (vec![0f64; heads * tokens], squares.clone());
        for head in 0..heads {
            let kv = head / (heads / kv_heads);
            for t in 0..tokens {
                let seen = held - tokens + t + 1;
                let score = |s: usize| {
                    let products = (0..d).map(|c| {
                        let q = queries[(head * tokens + t) * d + c];
                        f64::from(q) * f64::from(keys[(kv * held + s) * d + c])
                    });
                    (3.0 * products.sum::<f64>()).exp()
                };
                let total: f64 = (0..seen).map(score).sum();
                for s in 0..seen {
                    let p = score(s) / total;
                    squares[kv * held + s] += p * p;
                    if s >= config.sinks && s + config.block < seen {
                        of_queries[head * tokens + t] += p * (1.0 - p);
                        on_keys[kv * held + s] += p * (1.0 - p);
                    }
                }
            }
        }
        let device = Device::flex();
        let tensor = |numbers: Vec<f32>, shape: [usize; 3]| {
            Tensor::<3>::from_data(TensorData::new(numbers, shape), &device)
        };
        let found = attention_weights(
            &config,
            tensor(queries, [heads, tokens, d]),
            tensor(keys, [kv_heads, held, d]),
            3.0,
        )
        .unwrap();
        for (found, expected) in [
            (found.squares, squares),
            (found.of_queries, of_queries),
            (found.on_keys, on_keys),
        ] {
            assert!(expected.iter().any(|x| *x > 0.0));
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-5 * expected.max(1e-3));
            }
        }
    }
}
