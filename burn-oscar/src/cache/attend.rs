//! The one call of a model: append this step's keys and values, and attend.

use burn::tensor::Tensor;

use super::host::numbers;
use super::{KvCache, Padding, SequenceId};
use crate::backend::plan::MAX_HEAD_RATIO;
use crate::backend::{self, Pages};
use crate::error::{Error, Result};

/// How a call attends.
///
/// Scores are `scale * q · k` and nothing else. Rotary embeddings, whole or partial, are in the
/// queries and keys when they arrive. Biases on scores are not supported: ALiBi, T5's relative
/// positions, learnt sinks, soft caps; a model that needs them keeps its own attention and reads
/// the cache through [`KeyValueCache`](crate::module::KeyValueCache). Sliding windows belong to
/// layers: [`KvCacheConfig::with_sliding_window`](crate::KvCacheConfig::with_sliding_window).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttentionOptions {
    pub(super) scale: Option<f64>,
    pub(super) streaming: bool,
    pub(super) rows: Option<Vec<SequenceId>>,
    pub(crate) padding: Option<Padding>,
}

impl AttentionOptions {
    /// Every token sees the tokens before it and itself. The tokens of one call see each other
    /// exactly, and older ones as they are stored: what OSCAR and OScaR do in prefill.
    pub fn causal() -> Self {
        Self::default()
    }

    /// Multiplies the scores (default `1 / sqrt(head_dim)`).
    #[must_use]
    pub fn with_scale(mut self, scale: f64) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Every token sees what it would have seen had the tokens come one call at a time: those
    /// that would have been packed by then are read from their page. Use it to measure what a
    /// method costs; it is slower than [`causal`](Self::causal), and much faster than one call a
    /// token.
    #[must_use]
    pub fn streaming(mut self) -> Self {
        self.streaming = true;
        self
    }

    /// The sequences of the batch rows (default: all, in the cache's order). Prompts of different
    /// lengths are prefilled with one call each, and decoded together.
    #[must_use]
    pub fn rows(mut self, rows: &[SequenceId]) -> Self {
        self.rows = Some(rows.to_vec());
        self
    }

    /// Leaves the padding of a batch out: each row is stored without it, so that prompts of
    /// different lengths are prefilled by one call. Outputs at padding are zero.
    #[must_use]
    pub fn padding(mut self, padding: &Padding) -> Self {
        self.padding = Some(padding.clone());
        self
    }

    /// Refuses padding in a call that it means nothing to.
    pub(super) fn check_no_padding(&self, call: &'static str) -> Result<()> {
        match self.padding {
            None => Ok(()),
            Some(_) => Err(Error::Option {
                option: "padding in",
                value: call.to_string(),
                reason: "padding is left out where tokens are appended, by `attend` and `extend`",
            }),
        }
    }
}

impl KvCache {
    /// Appends `key` and `value` to `layer` and returns the attention of `query` over everything
    /// the sequences hold.
    ///
    /// - `query`: `[batch, heads, tokens, head_dim]`, after any normalisation and rotary embedding
    /// - `key`, `value`: `[batch, kv_heads, tokens, head_dim]`; query head h reads KV head
    ///   `h / (heads / kv_heads)`
    /// - result: `[batch, heads, tokens, head_dim]`, in the query's dtype
    ///
    /// The same call serves prefill, chunked prefill and decode. Each layer is called once per
    /// step; a step that fails in the middle of a model is undone by
    /// [`truncate`](Self::truncate) to [`len`](Self::len).
    ///
    /// On a device with autodiff, gradients reach the query, and the keys and values that are not
    /// yet packed; packed tokens are constants (straight through).
    ///
    /// # Errors
    /// [`Error::Layer`], [`Error::Shape`], [`Error::Dtype`], [`Error::HeadRatio`],
    /// [`Error::UnknownSequence`], [`Error::RepeatedSequence`], [`Error::NotFinite`],
    /// [`Error::OutOfRange`], [`Error::PoolExhausted`]: the cache is as it was before.
    pub fn attend(
        &mut self,
        layer: usize,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        mut options: AttentionOptions,
    ) -> Result<Tensor<4>> {
        if let Some(padding) = options.padding.take() {
            return self.attend_padded(layer, query, [key, value], &padding, options);
        }
        self.layer(layer)?;
        let rows = self.rows(&options)?;
        self.check_tensors(&rows, &query, &key, &value)?;
        let [_, kv_heads, tokens, _] = key.dims();
        let scale = self.scale(&options)?;
        #[cfg(feature = "calibrate")]
        let compared = (self.comparison.is_some())
            .then(|| [&query, &key, &value].map(|tensor| (*tensor).clone()));
        let transform = self.transforms[layer].clone();
        let query = transform.query(query, kv_heads);
        let key = transform.key(key);
        let value = transform.value(value);
        if self.config.check_inputs {
            self.check_numbers(layer, &key, &value)?;
        }
        self.check_room(layer, &rows, tokens)?;
        #[cfg(feature = "calibrate")]
        let observed = self.observe_call(layer, &rows, [&query, &key, &value], scale)?;
        self.outdate_plan();

        let mut outputs = Vec::new();
        let mut done = 0;
        while done < tokens {
            let mut count = tokens - done;
            if options.streaming {
                let until = rows.iter().map(|&row| self.until_next_page(layer, row));
                count = until.fold(count, usize::min);
            }
            let [query, key, value] =
                [&query, &key, &value].map(|tensor| tensor.clone().narrow(2, done, count));
            let plan = self.plan(layer, &rows, scale);
            let stored = self.layer(layer)?.clone();
            let (own_key, own_value) = (key.clone(), value.clone());
            outputs.push(backend::attend(
                query,
                own_key,
                own_value,
                stored,
                plan.clone(),
            ));
            if count == 1 {
                let stored = self.take_layer(layer)?;
                self.layers[layer] = Some(backend::append(stored, key, value, plan));
                self.count_token(layer, &rows)?;
            } else {
                self.append(layer, &rows, key, value)?;
            }
            done += count;
        }
        #[cfg(feature = "calibrate")]
        self.keep_observation(layer, observed)?;
        let output = transform.output(Tensor::cat(outputs, 2), kv_heads);
        #[cfg(feature = "calibrate")]
        if let Some(call) = compared {
            self.compare_call(layer, call, &output, scale)?;
        }
        Ok(output)
    }

    pub(super) fn scale(&self, options: &AttentionOptions) -> Result<f64> {
        let scale = options
            .scale
            .unwrap_or(1.0 / (self.config.head_dim as f64).sqrt());
        if !scale.is_finite() {
            return Err(Error::Option {
                option: "scale",
                value: scale.to_string(),
                reason: "scores are multiplied by a finite number",
            });
        }
        Ok(scale)
    }

    pub(super) fn rows(&self, options: &AttentionOptions) -> Result<Vec<usize>> {
        let Some(ids) = &options.rows else {
            return Ok((0..self.sequences.len()).collect());
        };
        let mut rows = Vec::new();
        for &id in ids {
            let row = self.index_of(id)?;
            if rows.contains(&row) {
                return Err(Error::RepeatedSequence { id: id.0 });
            }
            rows.push(row);
        }
        Ok(rows)
    }

    pub(super) fn check_tensors(
        &self,
        rows: &[usize],
        query: &Tensor<4>,
        key: &Tensor<4>,
        value: &Tensor<4>,
    ) -> Result<()> {
        self.check_query_shape(rows, query)?;
        self.check_stored(rows, query.dims()[2], key, value)?;
        self.check_query_kind(query)
    }

    /// `[rows, any heads, at least 1 token, head_dim]`.
    pub(super) fn check_query_shape(&self, rows: &[usize], query: &Tensor<4>) -> Result<()> {
        let head_dim = self.config.head_dim;
        let [batch, _, tokens, query_dim] = query.dims();
        if batch != rows.len() || batch == 0 || tokens == 0 || query_dim != head_dim {
            return Err(Error::Shape {
                tensor: "query",
                found: query.dims().to_vec(),
                expected: format!(
                    "[{} sequences, query heads, at least 1 token, {head_dim} channels]",
                    rows.len()
                ),
            });
        }
        Ok(())
    }

    /// Heads that the KV heads can be shared out among, in the cache's dtype and on its device.
    pub(super) fn check_query_kind(&self, query: &Tensor<4>) -> Result<()> {
        let (heads, kv_heads) = (query.dims()[1], self.config.n_kv_heads);
        if heads == 0 || heads % kv_heads != 0 || heads / kv_heads > MAX_HEAD_RATIO {
            return Err(Error::HeadRatio {
                query_heads: heads,
                kv_heads,
                max_ratio: MAX_HEAD_RATIO,
            });
        }
        self.check_kind("query", query)
    }

    /// Keys and values of `tokens` tokens for each row.
    pub(super) fn check_stored(
        &self,
        rows: &[usize],
        tokens: usize,
        key: &Tensor<4>,
        value: &Tensor<4>,
    ) -> Result<()> {
        let (kv_heads, head_dim) = (self.config.n_kv_heads, self.config.head_dim);
        let batch = rows.len();
        for (name, tensor) in [("key", key), ("value", value)] {
            if tensor.dims() != [batch, kv_heads, tokens, head_dim] || batch * tokens == 0 {
                return Err(Error::Shape {
                    tensor: name,
                    found: tensor.dims().to_vec(),
                    expected: format!(
                        "[{batch}, {kv_heads} KV heads, {tokens}, {head_dim}] as the query and \
                         the cache, at least 1 of each"
                    ),
                });
            }
        }
        self.check_kind("key", key)?;
        self.check_kind("value", value)
    }

    fn check_kind(&self, name: &'static str, tensor: &Tensor<4>) -> Result<()> {
        if tensor.dtype() != self.config.dtype {
            return Err(Error::Dtype {
                tensor: name,
                found: format!("{:?}", tensor.dtype()),
                expected: format!("{:?}", self.config.dtype),
            });
        }
        let device = tensor.device();
        if device != self.device {
            return Err(Error::Device {
                tensor: name,
                found: format!("{device:?}"),
                expected: format!("{:?}", self.device),
            });
        }
        Ok(())
    }

    /// Refuses what would spoil a page: NaN, infinities, and magnitudes past the parameters.
    pub(super) fn check_numbers(
        &self,
        layer: usize,
        key: &Tensor<4>,
        value: &Tensor<4>,
    ) -> Result<()> {
        let stored = self.layer(layer)?;
        for (name, tensor, pages) in [("key", key, &stored.key), ("value", value, &stored.value)] {
            let tensor = tensor.clone().detach();
            // Zero times NaN or infinity is NaN, so one sum finds either.
            let spoilt = (tensor.clone() * 0.0).sum();
            let largest = tensor.abs().max();
            let numbers = numbers(Tensor::cat(vec![spoilt, largest], 0))?;
            if numbers[0].is_nan() {
                return Err(Error::NotFinite {
                    layer,
                    tensor: name,
                });
            }
            if let Pages::Packed(packed) = pages {
                let (limit, what) = packed.spec.max_magnitude(self.config.n_kv_heads);
                if numbers[1] > limit {
                    return Err(Error::OutOfRange {
                        layer,
                        tensor: name,
                        found: numbers[1],
                        limit,
                        what,
                    });
                }
            }
        }
        Ok(())
    }
}
