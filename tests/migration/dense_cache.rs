//! The cache that models have before: every key and value in one tensor that grows.

use burn::tensor::Tensor;

/// Keys and values of one layer, `[batch, kv_heads, tokens, head_dim]`.
#[derive(Debug, Default)]
pub struct KeyValueCache {
    held: Option<(Tensor<4>, Tensor<4>)>,
}

impl KeyValueCache {
    /// Appends to what is held and returns all of it.
    pub fn forward(&mut self, key: Tensor<4>, value: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let all = match self.held.take() {
            Some((keys, values)) => (
                Tensor::cat(vec![keys, key], 2),
                Tensor::cat(vec![values, value], 2),
            ),
            None => (key, value),
        };
        self.held = Some(all.clone());
        all
    }

    /// Tokens held.
    pub fn len(&self) -> usize {
        self.held.as_ref().map_or(0, |(key, _)| key.dims()[2])
    }
}
