//! The decoder of Qwen3, Qwen2 and Llama, over a dense cache.
//!
//! The three differ by switches of [`ModelConfig`]: Qwen3 normalises queries and keys per head,
//! Qwen2 adds biases to their projections, Llama does neither.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::activation::silu;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::migration::dense_cache::KeyValueCache;
use models::config::ModelConfig;
use models::rope::{Rope, Rotation};

/// A decoder-only transformer of the Qwen3, Qwen2 and Llama family.
#[derive(Module, Debug)]
pub struct Model {
    pub(crate) embedding: Embedding,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: RmsNorm,
    /// `None` where the head is the embedding, transposed.
    pub(crate) head: Option<Linear>,
    #[module(skip)]
    rope: Rope,
}

/// One decoder layer: attention and feed-forward, each normalised before and added after.
#[derive(Module, Debug)]
pub(crate) struct Layer {
    pub(crate) attention_norm: RmsNorm,
    pub(crate) attention: Attention,
    pub(crate) feed_forward_norm: RmsNorm,
    pub(crate) feed_forward: FeedForward,
}

/// Projections into query, key and value heads and back.
#[derive(Module, Debug)]
pub(crate) struct Attention {
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    pub(crate) output: Linear,
    pub(crate) query_norm: Option<RmsNorm>,
    pub(crate) key_norm: Option<RmsNorm>,
    head_dim: usize,
}

/// SwiGLU: `down(silu(gate(x)) * up(x))`.
#[derive(Module, Debug)]
pub(crate) struct FeedForward {
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

impl Model {
    /// A model with random weights. Weights are drawn when first used, so replacing them costs
    /// nothing.
    ///
    /// # Panics
    /// Where [`ModelConfig::validate`] reports an error; the loaders check it first.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let hidden = config.hidden_size;
        let head = (!config.tie_word_embeddings)
            .then(|| projection(hidden, config.vocab_size, false, device));
        Self {
            embedding: EmbeddingConfig::new(config.vocab_size, hidden).init(device),
            layers: (0..config.num_layers)
                .map(|_| Layer::new(config, device))
                .collect(),
            norm: norm(hidden, config, device),
            head,
            rope: Rope::new(&config.rope, config.head_dim),
        }
    }

    /// Runs new tokens through the layers, after what the caches of the layers hold.
    ///
    /// # Shapes
    /// - tokens: `[batch, tokens]`, each below `vocab_size`
    /// - output: `[batch, tokens, hidden_size]`, normalised, ready for [`Model::logits`]
    pub fn forward(&self, tokens: Tensor<2, Int>, caches: &mut [KeyValueCache]) -> Tensor<3> {
        let [batch, length] = tokens.dims();
        let starts = vec![caches[0].len(); batch];
        let rotation = self.rope.rotation(&starts, length, &tokens.device());

        let mut hidden = self.embedding.forward(tokens);
        for (index, layer) in self.layers.iter().enumerate() {
            hidden = layer.forward(hidden, &rotation, &mut caches[index]);
        }
        self.norm.forward(hidden)
    }

    /// Scores over the vocabulary: `[batch, tokens, hidden_size]` to `[batch, tokens, vocab_size]`.
    pub fn logits(&self, hidden: Tensor<3>) -> Tensor<3> {
        let Some(head) = &self.head else {
            // A view of the embedding, which is the largest matrix of a small model: `linear`
            // would copy it. All rows share one product, for it is read once then.
            let [batch, tokens, width] = hidden.dims();
            let embedding = self.embedding.weight.val().unsqueeze::<3>();
            let logits = hidden
                .reshape([1, batch * tokens, width])
                .matmul(embedding.transpose());
            let vocab_size = logits.dims()[2];
            return logits.reshape([batch, tokens, vocab_size]);
        };
        head.forward(hidden)
    }

    /// Scores after the newest token only: `[batch, tokens, hidden_size]` to
    /// `[batch, vocab_size]`. During a prefill this saves most of the head's work.
    pub fn last_logits(&self, hidden: Tensor<3>) -> Tensor<2> {
        let tokens = hidden.dims()[1];
        self.logits(hidden.narrow(1, tokens - 1, 1)).squeeze_dim(1)
    }
}

impl Layer {
    fn new(config: &ModelConfig, device: &Device) -> Self {
        Self {
            attention_norm: norm(config.hidden_size, config, device),
            attention: Attention::new(config, device),
            feed_forward_norm: norm(config.hidden_size, config, device),
            feed_forward: FeedForward::new(config, device),
        }
    }

    /// `[batch, tokens, hidden]` to the same.
    fn forward(
        &self,
        hidden: Tensor<3>,
        rotation: &Rotation,
        cache: &mut KeyValueCache,
    ) -> Tensor<3> {
        let normed = self.attention_norm.forward(hidden.clone());
        let hidden = hidden + self.attention.forward(normed, rotation, cache);
        let normed = self.feed_forward_norm.forward(hidden.clone());
        hidden + self.feed_forward.forward(normed)
    }
}

impl Attention {
    fn new(config: &ModelConfig, device: &Device) -> Self {
        let queries = config.num_heads * config.head_dim;
        let keys = config.num_kv_heads * config.head_dim;
        let hidden = config.hidden_size;
        let head_norm = || {
            config
                .qk_norm
                .then(|| norm(config.head_dim, config, device))
        };
        Self {
            query: projection(hidden, queries, config.attention_bias, device),
            key: projection(hidden, keys, config.attention_bias, device),
            value: projection(hidden, keys, config.attention_bias, device),
            output: projection(queries, hidden, config.attention_output_bias, device),
            query_norm: head_norm(),
            key_norm: head_norm(),
            head_dim: config.head_dim,
        }
    }

    fn forward(
        &self,
        hidden: Tensor<3>,
        rotation: &Rotation,
        cache: &mut KeyValueCache,
    ) -> Tensor<3> {
        let query = self.heads(&self.query, self.query_norm.as_ref(), hidden.clone());
        let key = self.heads(&self.key, self.key_norm.as_ref(), hidden.clone());
        let value = self.heads(&self.value, None, hidden);

        let start = cache.len();
        let query = rotation.apply(query).swap_dims(1, 2);
        let key = rotation.apply(key).swap_dims(1, 2);
        let (key, value) = cache.forward(key, value.swap_dims(1, 2));
        let [batch, heads, tokens, _] = query.dims();
        let held = key.dims()[2];
        let later = Tensor::<2, Bool>::tril_mask([tokens, held], start as i64, &query.device());
        let context = attention(
            query,
            repeat(key, heads),
            repeat(value, heads),
            Some(later.unsqueeze::<4>().expand([batch, heads, tokens, held])),
            None,
            AttentionModuleOptions::default(),
        );

        let [batch, heads, tokens, head_dim] = context.dims();
        let context = context
            .swap_dims(1, 2)
            .reshape([batch, tokens, heads * head_dim]);
        self.output.forward(context)
    }

    /// Projects `[batch, tokens, hidden]` into `[batch, tokens, heads, head_dim]`.
    fn heads(&self, projection: &Linear, norm: Option<&RmsNorm>, hidden: Tensor<3>) -> Tensor<4> {
        let [batch, tokens, _] = hidden.dims();
        let states = projection.forward(hidden);
        let heads = states.dims()[2] / self.head_dim;
        let states = states.reshape([batch, tokens, heads, self.head_dim]);
        match norm {
            Some(norm) => norm.forward(states),
            None => states,
        }
    }
}

/// KV heads, each as often as query heads share it.
fn repeat(x: Tensor<4>, heads: usize) -> Tensor<4> {
    let [batch, kv_heads, tokens, head_dim] = x.dims();
    x.unsqueeze_dim::<5>(2)
        .expand([batch, kv_heads, heads / kv_heads, tokens, head_dim])
        .reshape([batch, heads, tokens, head_dim])
}

impl FeedForward {
    fn new(config: &ModelConfig, device: &Device) -> Self {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        Self {
            gate: projection(hidden, inner, false, device),
            up: projection(hidden, inner, false, device),
            down: projection(inner, hidden, false, device),
        }
    }

    fn forward(&self, hidden: Tensor<3>) -> Tensor<3> {
        let gate = silu(self.gate.forward(hidden.clone()));
        self.down.forward(gate * self.up.forward(hidden))
    }
}

fn norm(width: usize, config: &ModelConfig, device: &Device) -> RmsNorm {
    RmsNormConfig::new(width)
        .with_epsilon(config.rms_norm_eps)
        .init(device)
}

fn projection(input: usize, output: usize, bias: bool, device: &Device) -> Linear {
    LinearConfig::new(input, output)
        .with_bias(bias)
        .init(device)
}
