//! What a GGUF file says about its model, and its tokenizer, besides the weights.

use std::path::Path;

use candle_core::quantized::gguf_file::{Content, Value};

use super::LoadError;
use crate::config::{ConfigError, ModelConfig, RopeConfig, RopeScaling, required, yarn_scale};
use crate::tokenizer::{TokenizerError, Vocabulary};

/// The metadata of a file, read by key.
pub(super) struct Metadata<'a> {
    content: &'a Content,
    architecture: &'a str,
}

impl<'a> Metadata<'a> {
    pub(super) fn new(content: &'a Content) -> Self {
        let architecture = match content.metadata.get("general.architecture") {
            Some(Value::String(name)) => name,
            _ => "",
        };
        Self {
            content,
            architecture,
        }
    }

    /// The configuration, checked.
    pub(super) fn config(&self, path: &Path) -> Result<ModelConfig, LoadError> {
        let config = self.read_config().map_err(LoadError::config(path))?;
        config.validate().map_err(LoadError::config(path))?;
        Ok(config)
    }

    fn read_config(&self) -> Result<ModelConfig, ConfigError> {
        if !["qwen3", "qwen2", "llama"].contains(&self.architecture) {
            return Err(ConfigError::Architecture {
                architecture: self.architecture.to_string(),
            });
        }
        let hidden_size = required("embedding_length", self.size("embedding_length"))?;
        let num_heads = required("attention.head_count", self.size("attention.head_count"))?;
        let head_dim = match self.size("attention.key_length") {
            Some(given) => given,
            None => hidden_size.checked_div(num_heads).unwrap_or(0),
        };
        self.refuse_unsupported(head_dim)?;

        let embedding = self.content.tensor_infos.get("token_embd.weight");
        let rows = embedding.and_then(|info| info.shape.dims().first().copied());
        let has = |name: &str| self.content.tensor_infos.contains_key(name);
        let mut eos_token_ids: Vec<u32> = ["eos_token_id", "eot_token_id"]
            .iter()
            .filter_map(|key| self.token_id(key))
            .collect();
        eos_token_ids.dedup();
        Ok(ModelConfig {
            architecture: self.architecture.to_string(),
            vocab_size: required("token_embd.weight", rows)?,
            hidden_size,
            intermediate_size: required("feed_forward_length", self.size("feed_forward_length"))?,
            num_layers: required("block_count", self.size("block_count"))?,
            num_heads,
            num_kv_heads: self.size("attention.head_count_kv").unwrap_or(num_heads),
            head_dim,
            rms_norm_eps: required(
                "attention.layer_norm_rms_epsilon",
                self.number("attention.layer_norm_rms_epsilon"),
            )?,
            rope: self.rope()?,
            max_position_embeddings: self.size("context_length").unwrap_or(2048),
            tie_word_embeddings: !has("output.weight"),
            qk_norm: self.architecture == "qwen3",
            attention_bias: has("blk.0.attn_q.bias"),
            attention_output_bias: has("blk.0.attn_output.bias"),
            eos_token_ids,
        })
    }

    fn refuse_unsupported(&self, head_dim: usize) -> Result<(), ConfigError> {
        let feature = |feature: &str| {
            Err(ConfigError::Feature {
                feature: feature.to_string(),
            })
        };
        let differs = |key| self.size(key).is_some_and(|size| size != head_dim);
        if differs("attention.value_length") {
            return feature("value heads of another size than key heads");
        }
        if differs("rope.dimension_count") {
            return feature("rotation of a part of the channels");
        }
        if self.size("expert_count").is_some_and(|experts| experts > 0) {
            return feature("a mixture of experts");
        }
        let per_layer = |key| matches!(self.get(key), Some(Value::Array(_)));
        if per_layer("attention.head_count") || per_layer("attention.head_count_kv") {
            return feature("head counts that differ by layer");
        }
        Ok(())
    }

    fn rope(&self) -> Result<RopeConfig, ConfigError> {
        let theta = self.number("rope.freq_base").unwrap_or(10_000.0);
        let factor = || required("rope.scaling.factor", self.number("rope.scaling.factor"));
        let scaling = match self.text("rope.scaling.type").unwrap_or("none") {
            "none" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: factor()? },
            "yarn" => RopeScaling::Yarn {
                factor: factor()?,
                attention_factor: yarn_scale(factor()?, 1.0)
                    * self.number("rope.scaling.attn_factor").unwrap_or(1.0),
                beta_fast: self.number("rope.scaling.yarn_beta_fast").unwrap_or(32.0),
                beta_slow: self.number("rope.scaling.yarn_beta_slow").unwrap_or(1.0),
                original_max_position_embeddings: required(
                    "rope.scaling.original_context_length",
                    self.size("rope.scaling.original_context_length"),
                )?,
                truncate: true,
            },
            other => {
                return Err(ConfigError::RopeScaling {
                    kind: other.to_string(),
                });
            }
        };
        // Llama 3's scaling is stored as a tensor of divisors, whose values are read with the
        // weights.
        if self.content.tensor_infos.contains_key(DIVISORS) && scaling != RopeScaling::None {
            let kind = format!("{scaling:?} together with `{DIVISORS}`");
            return Err(ConfigError::RopeScaling { kind });
        }
        Ok(RopeConfig { theta, scaling })
    }

    /// The tokenizer's data.
    pub(super) fn vocabulary(&self) -> Result<Vocabulary, TokenizerError> {
        let text = |key: &str| match self.content.metadata.get(key) {
            Some(Value::String(text)) => Some(text.clone()),
            _ => None,
        };
        let model = text("tokenizer.ggml.model").unwrap_or_default();
        if model != "gpt2" {
            return Err(TokenizerError::Model { model });
        }
        Ok(Vocabulary {
            pre_tokenizer: text("tokenizer.ggml.pre").unwrap_or_default(),
            tokens: self.list("tokenizer.ggml.tokens", |value| match value {
                Value::String(token) => Some(token.clone()),
                _ => None,
            })?,
            kinds: self.list("tokenizer.ggml.token_type", |value| match value {
                Value::I32(kind) => Some(*kind),
                Value::U32(kind) => i32::try_from(*kind).ok(),
                _ => None,
            })?,
            merges: self.list("tokenizer.ggml.merges", |value| match value {
                Value::String(pair) => pair
                    .split_once(' ')
                    .map(|(left, right)| (left.to_string(), right.to_string())),
                _ => None,
            })?,
            bos: self.token_id("bos_token_id"),
            eos: self.token_id("eos_token_id"),
            eot: self.token_id("eot_token_id"),
            add_bos: matches!(
                self.content.metadata.get("tokenizer.ggml.add_bos_token"),
                Some(Value::Bool(true))
            ),
            chat_template: text("tokenizer.chat_template"),
        })
    }

    fn list<T>(
        &self,
        key: &str,
        item: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, TokenizerError> {
        let broken = || TokenizerError::Vocabulary {
            reason: format!("`{key}` is no proper list"),
        };
        match self.content.metadata.get(key) {
            Some(Value::Array(values)) => values
                .iter()
                .map(item)
                .collect::<Option<_>>()
                .ok_or_else(broken),
            _ => Err(broken()),
        }
    }

    fn token_id(&self, key: &str) -> Option<u32> {
        let value = self
            .content
            .metadata
            .get(&format!("tokenizer.ggml.{key}"))?;
        value.to_u64().ok().and_then(|id| u32::try_from(id).ok())
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.content
            .metadata
            .get(&format!("{}.{key}", self.architecture))
    }

    fn size(&self, key: &str) -> Option<usize> {
        self.get(key)?
            .to_u64()
            .ok()
            .and_then(|size| usize::try_from(size).ok())
    }

    fn number(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            // Through the shortest decimal form: 1e-5 stored as f32 means 1e-5.
            Value::F32(number) => number.to_string().parse().ok(),
            Value::F64(number) => Some(*number),
            _ => None,
        }
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        match self.get(key)? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }
}

/// The tensor that holds Llama 3's frequency divisors.
pub(super) const DIVISORS: &str = "rope_freqs.weight";
