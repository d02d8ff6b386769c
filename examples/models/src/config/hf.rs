//! Hugging Face's `config.json`, in the spellings of old and new transformers.

use serde::Deserialize;

use super::{ConfigError, ModelConfig, RopeConfig, RopeScaling, invalid, required, yarn_scale};

/// Reads a `config.json` and checks it.
pub(super) fn read(json: &str) -> Result<ModelConfig, ConfigError> {
    serde_json::from_str::<HfConfig>(json)?.resolve()
}

/// Fields of a Hugging Face `config.json` that matter here.
#[derive(Deserialize)]
struct HfConfig {
    model_type: Option<String>,
    vocab_size: Option<usize>,
    hidden_size: Option<usize>,
    intermediate_size: Option<usize>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    hidden_act: Option<String>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<HfRope>,
    rope_parameters: Option<HfRope>,
    partial_rotary_factor: Option<f64>,
    max_position_embeddings: Option<usize>,
    original_max_position_embeddings: Option<usize>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    use_sliding_window: Option<bool>,
    layer_types: Option<Vec<String>>,
    eos_token_id: Option<OneOrMore>,
    quantization_config: Option<serde_json::Value>,
}

/// Rotary parameters, in the old (`rope_scaling`) and the new (`rope_parameters`) place.
#[derive(Deserialize)]
struct HfRope {
    rope_type: Option<String>,
    /// The former name of `rope_type`; some files have both.
    r#type: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    truncate: Option<bool>,
}

/// A token id, or several.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMore {
    /// A single id.
    One(u32),
    /// A list of ids.
    More(Vec<u32>),
}

impl OneOrMore {
    /// The ids as a list.
    pub(crate) fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::More(ids) => ids,
        }
    }
}

impl HfConfig {
    fn resolve(self) -> Result<ModelConfig, ConfigError> {
        let architecture = required("model_type", self.model_type.clone())?;
        if !["qwen3", "qwen2", "llama"].contains(&architecture.as_str()) {
            return Err(ConfigError::Architecture { architecture });
        }
        self.refuse_unsupported()?;
        let rope = self.rope()?;

        let hidden_size = required("hidden_size", self.hidden_size)?;
        let num_heads = required("num_attention_heads", self.num_attention_heads)?;
        let head_dim = match self.head_dim {
            Some(head_dim) => head_dim,
            // What Hugging Face takes for this architecture, whatever the hidden size.
            None if architecture == "qwen3" => 128,
            None if num_heads == 0 || !hidden_size.is_multiple_of(num_heads) => {
                let limit = format!("a divisor of hidden_size {hidden_size}, or head_dim given");
                return Err(invalid("num_attention_heads", num_heads, limit));
            }
            None => hidden_size / num_heads,
        };
        let declared_bias = self.attention_bias.unwrap_or(false);
        let config = ModelConfig {
            vocab_size: required("vocab_size", self.vocab_size)?,
            hidden_size,
            intermediate_size: required("intermediate_size", self.intermediate_size)?,
            num_layers: required("num_hidden_layers", self.num_hidden_layers)?,
            num_heads,
            num_kv_heads: self.num_key_value_heads.unwrap_or(num_heads),
            head_dim,
            rms_norm_eps: self.rms_norm_eps.unwrap_or(1e-6),
            rope,
            max_position_embeddings: self.max_position_embeddings.unwrap_or(2048),
            tie_word_embeddings: self.tie_word_embeddings.unwrap_or(false),
            qk_norm: architecture == "qwen3",
            // Qwen2 has biases on q, k and v and says so nowhere; the others say so, and then
            // mean the output projection too.
            attention_bias: architecture == "qwen2" || declared_bias,
            attention_output_bias: architecture != "qwen2" && declared_bias,
            eos_token_ids: self
                .eos_token_id
                .map(OneOrMore::into_vec)
                .unwrap_or_default(),
            architecture,
        };
        config.validate()?;
        Ok(config)
    }

    fn refuse_unsupported(&self) -> Result<(), ConfigError> {
        let feature = |feature: String| Err(ConfigError::Feature { feature });
        match self.hidden_act.as_deref() {
            None | Some("silu" | "swish") => {}
            Some(other) => return feature(format!("the activation `{other}`")),
        }
        if self.mlp_bias == Some(true) {
            return feature("biases in the feed-forward layers".to_string());
        }
        let slides = |kind: &String| kind != "full_attention";
        let layers = self.layer_types.as_deref().unwrap_or_default();
        if self.use_sliding_window == Some(true) || layers.iter().any(slides) {
            return feature("sliding-window attention".to_string());
        }
        if self.quantization_config.is_some() {
            return feature("quantised weights in a Hugging Face folder".to_string());
        }
        let rope = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let partial = rope.and_then(|rope| rope.partial_rotary_factor);
        match partial.or(self.partial_rotary_factor) {
            Some(part) if part != 1.0 => feature("rotation of a part of the channels".to_string()),
            _ => Ok(()),
        }
    }

    fn rope(&self) -> Result<RopeConfig, ConfigError> {
        let rope = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let theta = rope
            .and_then(|rope| rope.rope_theta)
            .or(self.rope_theta)
            .unwrap_or(10_000.0);
        let Some(rope) = rope else {
            return Ok(RopeConfig {
                theta,
                scaling: RopeScaling::None,
            });
        };
        let trained = self
            .original_max_position_embeddings
            .or(rope
                .original_max_position_embeddings
                .map(|length| length as usize))
            .or(self.max_position_embeddings);
        let scaling = match rope
            .rope_type
            .as_ref()
            .or(rope.r#type.as_ref())
            .map_or("default", |kind| kind)
        {
            "default" | "none" => RopeScaling::None,
            "linear" => RopeScaling::Linear {
                factor: required("rope factor", rope.factor)?,
            },
            "llama3" => RopeScaling::Llama3 {
                factor: required("rope factor", rope.factor)?,
                low_freq_factor: required("low_freq_factor", rope.low_freq_factor)?,
                high_freq_factor: required("high_freq_factor", rope.high_freq_factor)?,
                original_max_position_embeddings: required("max_position_embeddings", trained)?,
            },
            "yarn" => {
                let factor = required("rope factor", rope.factor)?;
                RopeScaling::Yarn {
                    factor,
                    attention_factor: rope.yarn_attention_factor(factor),
                    beta_fast: rope.beta_fast.unwrap_or(32.0),
                    beta_slow: rope.beta_slow.unwrap_or(1.0),
                    original_max_position_embeddings: required("max_position_embeddings", trained)?,
                    truncate: rope.truncate.unwrap_or(true),
                }
            }
            other => {
                return Err(ConfigError::RopeScaling {
                    kind: other.to_string(),
                });
            }
        };
        Ok(RopeConfig { theta, scaling })
    }
}

impl HfRope {
    fn yarn_attention_factor(&self, factor: f64) -> f64 {
        match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(given), _, _) => given,
            (None, Some(top), Some(bottom)) if top != 0.0 && bottom != 0.0 => {
                yarn_scale(factor, top) / yarn_scale(factor, bottom)
            }
            _ => yarn_scale(factor, 1.0),
        }
    }
}
