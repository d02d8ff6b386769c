//! The numbers that describe a checkpoint: sizes, flags and rotary embedding.
//!
//! Qwen3, Qwen2 and Llama are one architecture with a few switches. [`ModelConfig`] holds the
//! sizes and the switches; it is read from a Hugging Face `config.json` here and from GGUF
//! metadata in [`crate::load`]. Everything is checked before any memory is allocated, because
//! a checkpoint is a file from somewhere else.

use serde::Deserialize;

/// Largest value accepted for any size in a configuration; larger ones are a damaged file.
const LARGEST_SIZE: usize = 1 << 24;
/// Largest number of layers accepted.
const MOST_LAYERS: usize = 1024;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text is not the JSON of a model configuration.
    #[error("not a valid config.json: {0}")]
    Json(#[from] serde_json::Error),
    /// A field without which the model cannot be built is absent.
    #[error("the configuration has no `{field}`; it is needed to build the model")]
    Missing {
        /// Name of the field.
        field: &'static str,
    },
    /// A field has a value that no model can have.
    #[error("`{field}` is {value}, which must be {limit}")]
    Invalid {
        /// Name of the field.
        field: &'static str,
        /// The value found.
        value: String,
        /// What is accepted.
        limit: String,
    },
    /// The checkpoint is of another architecture.
    #[error("architecture `{architecture}` is not supported; use a qwen3, qwen2 or llama model")]
    Architecture {
        /// The name found in the checkpoint.
        architecture: String,
    },
    /// The rotary embedding is scaled in a way this crate does not know.
    #[error("rope scaling `{kind}` is not supported; known are default, linear, llama3 and yarn")]
    RopeScaling {
        /// The kind found in the checkpoint.
        kind: String,
    },
    /// The model needs something that this crate does not compute.
    #[error("the model uses {feature}, which is not supported")]
    Feature {
        /// What the model asks for.
        feature: String,
    },
}

/// How rotary frequencies are changed to serve more positions than the model was trained on.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// Every frequency divided by the same factor.
    Linear {
        /// Divisor of every frequency.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided, high ones kept, a smooth passage between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Frequencies that turn less often than this over the trained length are divided.
        low_freq_factor: f64,
        /// Frequencies that turn more often than this over the trained length are kept.
        high_freq_factor: f64,
        /// The trained length, in tokens.
        original_max_position_embeddings: usize,
    },
    /// YaRN: a ramp between divided and kept frequencies, and a factor on attention.
    Yarn {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Factor on both cosine and sine, hence squared on the attention scores.
        attention_factor: f64,
        /// Turns over the trained length above which a frequency is kept.
        beta_fast: f64,
        /// Turns over the trained length below which a frequency is divided.
        beta_slow: f64,
        /// The trained length, in tokens.
        original_max_position_embeddings: usize,
        /// Whether the ramp's ends are rounded to whole dimensions.
        truncate: bool,
    },
    /// One divisor per frequency, the form in which GGUF stores `llama3` scaling.
    Divisors(Vec<f64>),
}

/// The rotary position embedding of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// Change of the frequencies for longer texts.
    pub scaling: RopeScaling,
}

/// Sizes and switches of a decoder of the Qwen3, Qwen2 and Llama family.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// `qwen3`, `qwen2` or `llama`.
    pub architecture: String,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the feed-forward layers.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub num_layers: usize,
    /// Query heads per layer.
    pub num_heads: usize,
    /// Key and value heads per layer; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Channels per head; even.
    pub head_dim: usize,
    /// Added to the mean square before its root, in every normalisation.
    pub rms_norm_eps: f64,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// Longest text the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// Whether the output head is the embedding, transposed.
    pub tie_word_embeddings: bool,
    /// Whether queries and keys are normalised per head before rotation (Qwen3).
    pub qk_norm: bool,
    /// Whether query, key and value projections have biases (Qwen2).
    pub attention_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub attention_output_bias: bool,
    /// Tokens that end a text. More may come from the tokenizer.
    pub eos_token_ids: Vec<u32>,
}

impl ModelConfig {
    /// Reads a Hugging Face `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`], when the text is not such a file, when a size is missing or impossible,
    /// or when the model needs something that is not computed here.
    pub fn from_hf_json(json: &str) -> Result<Self, ConfigError> {
        serde_json::from_str::<HfConfig>(json)?.resolve()
    }

    /// Checks that the sizes belong to a model that can be built.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] for the first field that does not fit.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (field, value, most) in [
            ("vocab_size", self.vocab_size, LARGEST_SIZE),
            ("hidden_size", self.hidden_size, LARGEST_SIZE),
            ("intermediate_size", self.intermediate_size, LARGEST_SIZE),
            ("num_hidden_layers", self.num_layers, MOST_LAYERS),
            ("num_attention_heads", self.num_heads, 4096),
            ("num_key_value_heads", self.num_kv_heads, 4096),
            ("head_dim", self.head_dim, 4096),
        ] {
            if value == 0 || value > most {
                return Err(invalid(field, value, format!("from 1 to {most}")));
            }
        }
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            let limit = format!("a divisor of the {} attention heads", self.num_heads);
            return Err(invalid("num_key_value_heads", self.num_kv_heads, limit));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(invalid("head_dim", self.head_dim, "even, to be rotated"));
        }
        positive("rms_norm_eps", self.rms_norm_eps)?;
        if !(self.rope.theta.is_finite() && self.rope.theta > 1.0) {
            return Err(invalid("rope_theta", self.rope.theta, "finite and above 1"));
        }
        match &self.rope.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => positive("rope factor", *factor)?,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, .. } => {
                positive("rope factor", *factor)?;
                positive("low_freq_factor", *low_freq_factor)?;
                positive("high_freq_factor", high_freq_factor - low_freq_factor)?;
            }
            RopeScaling::Yarn { factor, attention_factor, beta_fast, beta_slow, .. } => {
                positive("rope factor", *factor)?;
                positive("attention_factor", *attention_factor)?;
                positive("beta_fast", *beta_fast)?;
                positive("beta_slow", *beta_slow)?;
            }
            RopeScaling::Divisors(divisors) => {
                if divisors.len() != self.head_dim / 2 {
                    let limit = format!("one per frequency, {}", self.head_dim / 2);
                    return Err(invalid("number of rope divisors", divisors.len(), limit));
                }
                divisors.iter().try_for_each(|&divisor| positive("rope divisor", divisor))?;
            }
        }
        Ok(())
    }
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
            eos_token_ids: self.eos_token_id.map(OneOrMore::into_vec).unwrap_or_default(),
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
        let theta = rope.and_then(|rope| rope.rope_theta).or(self.rope_theta).unwrap_or(10_000.0);
        let Some(rope) = rope else {
            return Ok(RopeConfig { theta, scaling: RopeScaling::None });
        };
        let trained = self
            .original_max_position_embeddings
            .or(rope.original_max_position_embeddings.map(|length| length as usize))
            .or(self.max_position_embeddings);
        let scaling = match rope.rope_type.as_ref().or(rope.r#type.as_ref()).map_or("default", |kind| kind) {
            "default" | "none" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: required("rope factor", rope.factor)? },
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
            other => return Err(ConfigError::RopeScaling { kind: other.to_string() }),
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

/// The factor on cosine and sine that YaRN recommends for a context stretched by `factor`.
pub(crate) fn yarn_scale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// The value of a field that must be there.
pub(crate) fn required<T>(field: &'static str, value: Option<T>) -> Result<T, ConfigError> {
    value.ok_or(ConfigError::Missing { field })
}

/// The error for a field whose value cannot be.
fn invalid(field: &'static str, value: impl ToString, limit: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { field, value: value.to_string(), limit: limit.into() }
}

fn positive(field: &'static str, value: f64) -> Result<(), ConfigError> {
    match value.is_finite() && value > 0.0 {
        true => Ok(()),
        false => Err(invalid(field, value, "finite and above 0")),
    }
}
