//! Self-attention of burn-nn on a cache.

use burn::module::Module;
use burn::nn::Linear;
use burn::nn::attention::MultiHeadAttention;
use burn::tensor::Tensor;

use super::check::{check_input, check_multi_head, check_parameters, join_heads, split_heads};
use crate::cache::{AttentionOptions, KvCache, KvCacheConfig};
use crate::error::Result;

/// A trained [`MultiHeadAttention`] as causal self-attention over a cache.
///
/// Its output for a step's tokens is that of `MultiHeadAttention::forward` over all tokens so far,
/// with the causal mask: equal with the method `exact`, and within the method's error otherwise.
#[derive(Module, Debug)]
pub struct CachedAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    d_model: usize,
    n_heads: usize,
    head_dim: usize,
}

impl CachedAttention {
    /// Takes the weights of a trained module, which shares them.
    ///
    /// # Errors
    /// [`Error::Module`](crate::Error::Module) for `quiet_softmax`,
    /// [`Error::Shape`](crate::Error::Shape) where weights do not fit the module's own sizes.
    pub fn new(attention: &MultiHeadAttention) -> Result<Self> {
        check_multi_head(attention)?;
        Ok(Self {
            query: attention.query.clone(),
            key: attention.key.clone(),
            value: attention.value.clone(),
            output: attention.output.clone(),
            d_model: attention.d_model,
            n_heads: attention.n_heads,
            head_dim: attention.d_k,
        })
    }

    /// A cache for `n_layers` layers of this size, in the weights' dtype; choose its method and
    /// lengths, and [`init`](KvCacheConfig::init) it.
    pub fn cache_config(&self, n_layers: usize) -> KvCacheConfig {
        KvCacheConfig::new(n_layers, self.n_heads, self.head_dim)
            .with_dtype(self.query.weight.val().dtype())
    }

    /// Appends the tokens of `x` to `layer` and attends.
    ///
    /// - `x`: `[batch, tokens, d_model]`, the new tokens of each sequence only
    /// - result: `[batch, tokens, d_model]`; zero at the options' padding
    ///
    /// # Errors
    /// Those of [`KvCache::attend`]; [`Error::Dtype`](crate::Error::Dtype) and
    /// [`Error::Device`](crate::Error::Device) also where the weights differ from the cache. The
    /// cache is then as it was before.
    pub fn forward(
        &self,
        cache: &mut KvCache,
        layer: usize,
        x: Tensor<3>,
        options: AttentionOptions,
    ) -> Result<Tensor<3>> {
        check_input(cache, "x", &x, self.d_model)?;
        check_parameters(cache, self)?;
        let padding = options.padding.clone();
        let [query, key, value] = [&self.query, &self.key, &self.value]
            .map(|linear| split_heads(linear.forward(x.clone()), self.n_heads));
        let context = cache.attend(layer, query, key, value, options)?;
        let output = self.output.forward(join_heads(context));
        Ok(match padding {
            // The bias of the output projection is at padding, too.
            Some(padding) => padding.clear(output),
            None => output,
        })
    }
}
