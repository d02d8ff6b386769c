//! The decoder: bytes in, scores of the next byte out.

use burn::module::Module;
use burn::nn::transformer::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use burn_oscar::{Error, KvCache, KvCacheConfig, Method, Result};

use crate::attention::Attention;

/// Tokens are bytes.
pub const VOCABULARY: usize = 256;

/// Sizes.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Width of the hidden states; `heads` times a multiple of 16.
    pub d_model: usize,
    /// Attention heads.
    pub heads: usize,
    /// Layers.
    pub layers: usize,
    /// Tokens of the longest text.
    pub max_tokens: usize,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            d_model: 128,
            heads: 4,
            layers: 2,
            max_tokens: 2048,
        }
    }
}

impl ModelConfig {
    /// A cache for one text.
    pub fn cache(&self, method: Method) -> KvCacheConfig {
        KvCacheConfig::new(self.layers, self.heads, self.d_model / self.heads)
            .with_method(method)
            .with_max_tokens(self.max_tokens)
    }
}

/// A decoder-only transformer.
#[derive(Module, Debug)]
pub struct Decoder {
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: LayerNorm,
    head: Linear,
    max_tokens: usize,
}

#[derive(Module, Debug)]
struct Layer {
    attention_norm: LayerNorm,
    attention: Attention,
    feed_forward_norm: LayerNorm,
    feed_forward: PositionWiseFeedForward,
}

impl Decoder {
    /// Random weights.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let d_model = config.d_model;
        let norm = || LayerNormConfig::new(d_model).init(device);
        let feed_forward =
            || PositionWiseFeedForwardConfig::new(d_model, 4 * d_model).with_dropout(0.0);
        Self {
            embedding: EmbeddingConfig::new(VOCABULARY, d_model).init(device),
            layers: (0..config.layers)
                .map(|_| Layer {
                    attention_norm: norm(),
                    attention: Attention::new(config, device),
                    feed_forward_norm: norm(),
                    feed_forward: feed_forward().init(device),
                })
                .collect(),
            norm: norm(),
            head: LinearConfig::new(d_model, VOCABULARY).init(device),
            max_tokens: config.max_tokens,
        }
    }

    /// `[batch, tokens]` to scores `[batch, tokens, VOCABULARY]`.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let mut hidden = self.embedding.forward(tokens);
        for layer in &self.layers {
            let normed = layer.attention_norm.forward(hidden.clone());
            hidden = layer.feed_forward(hidden + layer.attention.forward(normed));
        }
        self.head.forward(self.norm.forward(hidden))
    }

    /// The same for tokens that follow those in the cache.
    ///
    /// # Errors
    /// [`Error::Option`] past the longest text, and those of [`KvCache::attend`]; the cache is then
    /// as it was.
    pub fn forward_cached(&self, tokens: Tensor<2, Int>, cache: &mut KvCache) -> Result<Tensor<3>> {
        let start = cache.lens().into_iter().max().unwrap_or(0);
        let end = start + tokens.dims()[1];
        if end > self.max_tokens {
            return Err(Error::Option {
                option: "tokens",
                value: end.to_string(),
                reason: "the rotary embedding ends before: shorten the text, or raise \
                         ModelConfig::max_tokens",
            });
        }
        let result = self.layers_cached(self.embedding.forward(tokens), start, cache);
        if result.is_err() {
            // Lower layers hold the new tokens already.
            for id in cache.sequences() {
                cache.truncate(id, start)?;
            }
        }
        let hidden = result?;
        Ok(self.head.forward(self.norm.forward(hidden)))
    }

    fn layers_cached(
        &self,
        mut hidden: Tensor<3>,
        start: usize,
        cache: &mut KvCache,
    ) -> std::result::Result<Tensor<3>, Error> {
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = layer.attention_norm.forward(hidden.clone());
            let attended = layer
                .attention
                .forward_cached(normed, start, index, cache)?;
            hidden = layer.feed_forward(hidden + attended);
        }
        Ok(hidden)
    }
}

impl Layer {
    fn feed_forward(&self, hidden: Tensor<3>) -> Tensor<3> {
        let normed = self.feed_forward_norm.forward(hidden.clone());
        hidden + self.feed_forward.forward(normed)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    /// Chunks of any length through the cache give the scores of one dense call; two bits do not,
    /// so the comparison can fail.
    #[test]
    fn exact_caches_give_the_scores_of_dense_attention() {
        let device = Device::flex();
        let config = ModelConfig {
            max_tokens: 256,
            ..ModelConfig::default()
        };
        let model = Decoder::new(&config, &device);
        let ids: Vec<i64> = (0..150).map(|i| i * 7919 % 251).collect();
        let tokens = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, 150]), &device);
        let expected = model.forward(tokens.clone());
        let largest: f32 = expected.clone().abs().max().into_scalar();
        for (method, same) in [(Method::exact(), true), (Method::oscar_scaled(), false)] {
            let method = method.with_sink(3).with_recent(5);
            let mut cache = config.cache(method).init(&device).unwrap();
            let mut scores = Vec::new();
            let mut done = 0;
            for count in [100, 1, 30, 1, 18] {
                let chunk = tokens.clone().narrow(1, done, count);
                scores.push(model.forward_cached(chunk, &mut cache).unwrap());
                done += count;
            }
            let difference = (Tensor::cat(scores, 1) - expected.clone()).abs().max();
            let relative = difference.into_scalar::<f32>() / largest;
            assert_eq!(relative < 1e-5, same, "{relative:e}");
        }
    }

    #[test]
    fn a_step_that_fails_leaves_the_cache_as_it_was() {
        let device = Device::flex();
        let config = ModelConfig {
            max_tokens: 256,
            ..ModelConfig::default()
        };
        let model = Decoder::new(&config, &device);
        let method = Method::exact().with_sink(0).with_recent(0);
        let caches = config.cache(method).with_max_tokens(64);
        let mut cache = caches.init(&device).unwrap();
        let tokens = |count| Tensor::<2, Int>::zeros([1, count], &device);
        model.forward_cached(tokens(60), &mut cache).unwrap();
        let error = model.forward_cached(tokens(80), &mut cache).unwrap_err();
        assert!(matches!(error, Error::PoolExhausted { .. }), "{error}");
        let error = model.forward_cached(tokens(200), &mut cache).unwrap_err();
        assert!(matches!(error, Error::Option { .. }), "{error}");
        assert_eq!(cache.lens(), [60]);
        model.forward_cached(tokens(1), &mut cache).unwrap();
        assert_eq!(cache.lens(), [61]);
    }
}
