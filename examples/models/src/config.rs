//! The numbers that describe a checkpoint: sizes, flags and rotary embedding.
//!
//! Qwen3, Qwen2 and Llama are one architecture with a few switches. [`ModelConfig`] holds the
//! sizes and the switches; it is read from a Hugging Face `config.json` here and from GGUF
//! metadata in [`crate::load`]. Everything is checked before any memory is allocated, because
//! a checkpoint is a file from somewhere else.

mod hf;

pub(crate) use hf::OneOrMore;

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
        hf::read(json)
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
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                ..
            } => {
                positive("rope factor", *factor)?;
                positive("low_freq_factor", *low_freq_factor)?;
                positive("high_freq_factor", high_freq_factor - low_freq_factor)?;
            }
            RopeScaling::Yarn {
                factor,
                attention_factor,
                beta_fast,
                beta_slow,
                ..
            } => {
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
                divisors
                    .iter()
                    .try_for_each(|&divisor| positive("rope divisor", divisor))?;
            }
        }
        Ok(())
    }
}

/// The factor on cosine and sine that YaRN recommends for a context stretched by `factor`.
pub(crate) fn yarn_scale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * mscale * factor.ln() + 1.0
    }
}

/// The value of a field that must be there.
pub(crate) fn required<T>(field: &'static str, value: Option<T>) -> Result<T, ConfigError> {
    value.ok_or(ConfigError::Missing { field })
}

/// The error for a field whose value cannot be.
fn invalid(field: &'static str, value: impl ToString, limit: impl Into<String>) -> ConfigError {
    ConfigError::Invalid {
        field,
        value: value.to_string(),
        limit: limit.into(),
    }
}

fn positive(field: &'static str, value: f64) -> Result<(), ConfigError> {
    match value.is_finite() && value > 0.0 {
        true => Ok(()),
        false => Err(invalid(field, value, "finite and above 0")),
    }
}

#[cfg(test)]
mod tests;
