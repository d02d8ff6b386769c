//! A Llama block over a dense cache, in the shape of burn-lm's.

use burn::module::Module;
use burn::nn::{Linear, RmsNorm, RotaryEncoding, SwiGlu};
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, Tensor};

use crate::migration::dense_cache::KeyValueCache;

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
        cache: &mut KeyValueCache,
        rope: &RotaryEncoding,
    ) -> Tensor<3> {
        let start = cache.len();
        let x = self.attention_norm.forward(input.clone());
        let query = rope.apply(self.heads(self.wq.forward(x.clone())), start);
        let key = rope.apply(self.heads(self.wk.forward(x.clone())), start);
        let value = self.heads(self.wv.forward(x));

        let (key, value) = cache.forward(key, value);
        let [batch, heads, tokens, _] = query.dims();
        let held = key.dims()[2];
        let later = Tensor::<2, Bool>::tril_mask([tokens, held], start as i64, &query.device());
        let later = later.unsqueeze::<4>().expand([batch, heads, tokens, held]);
        let context = attention(
            query,
            repeat(key, heads),
            repeat(value, heads),
            Some(later),
            None,
            AttentionModuleOptions::default(),
        );

        let [batch, heads, tokens, head_dim] = context.dims();
        let context = context.swap_dims(1, 2);
        let context = context.reshape([batch, tokens, heads * head_dim]);
        let hidden = input + self.wo.forward(context);
        let x = self.feed_forward_norm.forward(hidden.clone());
        hidden + self.down.forward(self.gate.forward(x))
    }

    /// `[batch, tokens, heads * head_dim]` to `[batch, heads, tokens, head_dim]`.
    fn heads(&self, x: Tensor<3>) -> Tensor<4> {
        let [batch, tokens, width] = x.dims();
        x.reshape([batch, tokens, width / self.head_dim, self.head_dim])
            .swap_dims(1, 2)
    }
}

/// KV heads, each as often as query heads share it.
fn repeat(x: Tensor<4>, heads: usize) -> Tensor<4> {
    let [batch, kv_heads, tokens, head_dim] = x.dims();
    x.unsqueeze_dim::<5>(2)
        .expand([batch, kv_heads, heads / kv_heads, tokens, head_dim])
        .reshape([batch, heads, tokens, head_dim])
}
