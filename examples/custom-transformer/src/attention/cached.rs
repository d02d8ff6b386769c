//! Attention as the model is served: a call computes its own tokens and reads the others.

use burn::tensor::Tensor;
use burn_oscar::{AttentionOptions, KvCache, Result};

use super::Attention;

impl Attention {
    /// `[batch, tokens, d_model]` to the same; the first token is number `start`.
    ///
    /// # Errors
    /// Those of [`KvCache::attend`].
    pub fn forward_cached(
        &self,
        hidden: Tensor<3>,
        start: usize,
        layer: usize,
        cache: &mut KvCache,
    ) -> Result<Tensor<3>> {
        let [query, key, value] = self.project(hidden, start);
        let context = cache.attend(layer, query, key, value, AttentionOptions::causal())?;
        Ok(self.join(context))
    }
}
