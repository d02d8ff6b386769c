//! Attention as the model was written: every call computes all tokens.

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Tensor};

use super::Attention;

impl Attention {
    /// `[batch, tokens, d_model]` to the same.
    pub fn forward(&self, hidden: Tensor<3>) -> Tensor<3> {
        let [_, tokens, _] = hidden.dims();
        let device = hidden.device();
        let [query, key, value] = self.project(hidden, 0);
        let scores = query.matmul(key.transpose()) / (self.head_dim as f64).sqrt();
        let later = Tensor::<2, Bool>::tril_mask([tokens, tokens], 0, &device);
        let scores = scores.mask_fill(later.unsqueeze::<4>(), f32::NEG_INFINITY);
        let context = softmax(scores, 3).matmul(value);
        self.join(context)
    }
}
