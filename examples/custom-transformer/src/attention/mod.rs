//! Self-attention with rotary embeddings: the projections, and the two ways to attend.

pub mod cached;
pub mod dense;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, RotaryEncoding, RotaryEncodingConfig};
use burn::tensor::{Device, Tensor};

use crate::model::ModelConfig;

/// Projections into heads and back, and the position embedding between.
#[derive(Module, Debug)]
pub struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    rotary: RotaryEncoding,
    head_dim: usize,
}

impl Attention {
    /// Random weights.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let linear = || LinearConfig::new(config.d_model, config.d_model).init(device);
        let head_dim = config.d_model / config.heads;
        Self {
            query: linear(),
            key: linear(),
            value: linear(),
            output: linear(),
            rotary: RotaryEncodingConfig::new(config.max_tokens, head_dim).init(device),
            head_dim,
        }
    }

    /// Queries, keys and values `[batch, heads, tokens, head_dim]` of `[batch, tokens, d_model]`;
    /// `start` is the position of the first token.
    fn project(&self, hidden: Tensor<3>, start: usize) -> [Tensor<4>; 3] {
        let [batch, tokens, d_model] = hidden.dims();
        let heads = |linear: &Linear| {
            let states = linear.forward(hidden.clone());
            let shape = [batch, tokens, d_model / self.head_dim, self.head_dim];
            states.reshape(shape).swap_dims(1, 2)
        };
        let query = self.rotary.apply(heads(&self.query), start);
        let key = self.rotary.apply(heads(&self.key), start);
        [query, key, heads(&self.value)]
    }

    /// `[batch, heads, tokens, head_dim]` back to `[batch, tokens, d_model]`.
    fn join(&self, context: Tensor<4>) -> Tensor<3> {
        let [batch, heads, tokens, head_dim] = context.dims();
        let context = context.swap_dims(1, 2);
        let context = context.reshape([batch, tokens, heads * head_dim]);
        self.output.forward(context)
    }
}
