//! The same block over burn-oscar's cache.

use burn::module::Module;
use burn::nn::{Linear, RmsNorm, RotaryEncoding, SwiGlu};
use burn::tensor::Tensor;
use burn_oscar::{AttentionOptions, KvCache, Result};

/// One block: attention and feed-forward, each normalised before and added after.
#[derive(Module, Debug)]
pub struct LlamaBlock {
    pub attention_norm: RmsNorm,
    pub wq: Linear,
    pub wk: Linear,
    pub wv: Linear,
    pub wo: Linear,
    pub feed_forward_norm: RmsNorm,
    pub gate: SwiGlu,
    pub down: Linear,
    pub head_dim: usize,
}

impl LlamaBlock {
    /// `[batch, tokens, width]` to the same.
    pub fn forward(
        &self,
        input: Tensor<3>,
        cache: &mut KvCache,
        layer: usize,
        rope: &RotaryEncoding,
    ) -> Result<Tensor<3>> {
        let start = cache.lens()[0];
        let x = self.attention_norm.forward(input.clone());
        let query = rope.apply(self.heads(self.wq.forward(x.clone())), start);
        let key = rope.apply(self.heads(self.wk.forward(x.clone())), start);
        let value = self.heads(self.wv.forward(x));

        let context = cache.attend(layer, query, key, value, AttentionOptions::causal())?;

        let [batch, heads, tokens, head_dim] = context.dims();
        let context = context.swap_dims(1, 2);
        let context = context.reshape([batch, tokens, heads * head_dim]);
        let hidden = input + self.wo.forward(context);
        let x = self.feed_forward_norm.forward(hidden.clone());
        Ok(hidden + self.down.forward(self.gate.forward(x)))
    }

    /// `[batch, tokens, heads * head_dim]` to `[batch, heads, tokens, head_dim]`.
    fn heads(&self, x: Tensor<3>) -> Tensor<4> {
        let [batch, tokens, width] = x.dims();
        x.reshape([batch, tokens, width / self.head_dim, self.head_dim])
            .swap_dims(1, 2)
    }
}
