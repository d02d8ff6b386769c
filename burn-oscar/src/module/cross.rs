//! Cross-attention of burn-nn on a cache: the encoder's side is stored once.

use burn::module::Module;
use burn::nn::attention::{CrossAttention, CrossAttentionConfig, MultiHeadAttention};
use burn::nn::{Linear, LinearConfig};
use burn::store::ModuleRecord;
use burn::tensor::{Device, Tensor};

use super::check::{
    check_input, check_multi_head, check_parameters, check_quiet_softmax, join_heads, split_heads,
};
use crate::cache::{AttentionOptions, KvCache, KvCacheConfig};
use crate::error::{Error, Result};

/// A trained [`CrossAttention`], or a [`MultiHeadAttention`] used as one, over a cache that holds
/// the encoder's side: [`encode`](Self::encode) projects and stores it once, and
/// [`forward`](Self::forward) reads the packed bits at every step.
///
/// A cache's tokens go through its windows: the first and the newest stay exact. An encoder's
/// tokens are all alike, so its cache may do without
/// ([`Method::with_sink`](crate::Method::with_sink) and
/// [`with_recent`](crate::Method::with_recent) of 0). Calibrated methods want a calibration of
/// their own for cross-attention, which the observing cache cannot take: use a method without.
#[derive(Module, Debug)]
pub struct CachedCrossAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    d_model: usize,
    d_context: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
}

impl CachedCrossAttention {
    /// Takes the weights of a trained module. Its fields are private, so they come through its
    /// record, and its sizes from the configuration that it was made from.
    ///
    /// # Errors
    /// Those of [`from_record`](Self::from_record).
    pub fn new(attention: &CrossAttention, config: &CrossAttentionConfig) -> Result<Self> {
        let device = attention.devices().into_iter().next().unwrap_or_default();
        Self::from_record(attention.clone().into_record(), config, &device)
    }

    /// The same from the record of a [`CrossAttention`].
    ///
    /// # Errors
    /// [`Error::Module`] for `quiet_softmax`, and for a record that does not fit the
    /// configuration; [`Error::Zero`], [`Error::HeadRatio`].
    pub fn from_record(
        record: ModuleRecord,
        config: &CrossAttentionConfig,
        device: &Device,
    ) -> Result<Self> {
        check_quiet_softmax("CrossAttention", config.quiet_softmax)?;
        for (what, count) in [
            ("n_heads", config.n_heads),
            ("n_heads_kv", config.n_heads_kv),
            ("d_head", config.d_head),
        ] {
            if count == 0 {
                return Err(Error::Zero { what });
            }
        }
        if !config.n_heads.is_multiple_of(config.n_heads_kv) {
            return Err(Error::HeadRatio {
                query_heads: config.n_heads,
                kv_heads: config.n_heads_kv,
                max_ratio: crate::backend::plan::MAX_HEAD_RATIO,
            });
        }
        let (heads, kv_heads) = (
            config.n_heads * config.d_head,
            config.n_heads_kv * config.d_head,
        );
        // Lazy: the record takes the place of the random weights before they are drawn.
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        let empty = Self {
            query: linear(config.d_model, heads),
            key: linear(config.d_context, kv_heads),
            value: linear(config.d_context, kv_heads),
            output: linear(heads, config.d_model),
            d_model: config.d_model,
            d_context: config.d_context,
            n_heads: config.n_heads,
            n_kv_heads: config.n_heads_kv,
            head_dim: config.d_head,
        };
        empty
            .try_load_record(record)
            .map_err(|error| Error::Module {
                module: "CrossAttention",
                setting: "record",
                value: format!("refused ({error})"),
                remedy: "give the configuration that the module was trained with",
            })
    }

    /// Takes the weights of a [`MultiHeadAttention`] whose keys and values come from an encoder,
    /// as in burn-nn's `TransformerDecoder`.
    ///
    /// # Errors
    /// Those of [`CachedAttention::new`](super::CachedAttention::new).
    pub fn from_multi_head(attention: &MultiHeadAttention) -> Result<Self> {
        check_multi_head(attention)?;
        Ok(Self {
            query: attention.query.clone(),
            key: attention.key.clone(),
            value: attention.value.clone(),
            output: attention.output.clone(),
            d_model: attention.d_model,
            d_context: attention.d_model,
            n_heads: attention.n_heads,
            n_kv_heads: attention.n_heads,
            head_dim: attention.d_k,
        })
    }

    /// A cache for the encoder's side of `n_layers` layers of this size, in the weights' dtype.
    pub fn cache_config(&self, n_layers: usize) -> KvCacheConfig {
        KvCacheConfig::new(n_layers, self.n_kv_heads, self.head_dim)
            .with_dtype(self.query.weight.val().dtype())
    }

    /// Projects `memory` (`[batch, tokens, d_context]`) and stores its keys and values in `layer`,
    /// without the options' padding. Called again, it adds to what the sequences hold: start new
    /// ones for other inputs.
    ///
    /// # Errors
    /// Those of [`KvCache::extend`]; [`Error::Mask`] for a row that is all padding, which would
    /// leave nothing to attend to; [`Error::Dtype`] and [`Error::Device`] also where the weights
    /// differ from the cache. The cache is then as it was before.
    pub fn encode(
        &self,
        cache: &mut KvCache,
        layer: usize,
        memory: Tensor<3>,
        options: AttentionOptions,
    ) -> Result<()> {
        check_input(cache, "memory", &memory, self.d_context)?;
        check_parameters(cache, self)?;
        if let Some(row) = options.padding.as_ref().and_then(|p| p.empty_row()) {
            return Err(Error::Mask {
                mask: "mask_pad",
                row,
                reason: "all of it is padding, and a decoder has to attend to something: leave \
                         the row out"
                    .into(),
            });
        }
        let [key, value] = [&self.key, &self.value]
            .map(|linear| split_heads(linear.forward(memory.clone()), self.n_kv_heads));
        cache.extend(layer, key, value, options)
    }

    /// Attention of `x` (`[batch, tokens, d_model]`) over the encoded tokens of `layer`, all of
    /// them for each token of `x`: `[batch, tokens, d_model]`. The cache's tokens do not change.
    /// The options' padding is of `x`, and the result zero there.
    ///
    /// # Errors
    /// Those of [`KvCache::attend_only`]; [`Error::Dtype`] and [`Error::Device`] also where the
    /// weights differ from the cache.
    pub fn forward(
        &self,
        cache: &mut KvCache,
        layer: usize,
        x: Tensor<3>,
        mut options: AttentionOptions,
    ) -> Result<Tensor<3>> {
        check_input(cache, "x", &x, self.d_model)?;
        check_parameters(cache, self)?;
        let [batch, tokens, _] = x.dims();
        let padding = options.padding.take();
        if let Some(padding) = &padding {
            padding.check(batch, tokens)?;
        }
        let query = split_heads(self.query.forward(x), self.n_heads);
        let context = cache.attend_only(layer, query, options)?;
        let output = self.output.forward(join_heads(context));
        Ok(match padding {
            Some(padding) => padding.clear(output),
            None => output,
        })
    }
}
