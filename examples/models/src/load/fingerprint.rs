//! A name for a set of weights.
//!
//! A calibration belongs to one model, so its artifact carries a fingerprint of that model.
//! The fingerprint is the SHA-256 of, in this order:
//!
//! 1. the text `qwen3-weights-1`, and the configuration as `name=value` lines;
//! 2. for each tensor, in the order of the model: its Hugging Face name, its shape, the type it
//!    is stored in, and at most 256 of its values, evenly spaced, as little-endian f32.
//!
//! A sample instead of all values keeps loading fast; weights that are trained on differ almost
//! everywhere. Files and shards do not matter, stored types do: a 4-bit GGUF and the
//! checkpoint it was made from are different models.

use sha2::{Digest, Sha256};

use crate::config::ModelConfig;

/// Values taken from each tensor.
const SAMPLES: usize = 256;

/// The hash so far.
pub(super) struct Fingerprint(Sha256);

impl Fingerprint {
    /// Starts with the configuration.
    pub(super) fn new(config: &ModelConfig) -> Self {
        let mut hash = Sha256::new();
        hash.update("qwen3-weights-1\n");
        for (name, value) in [
            ("vocab_size", config.vocab_size),
            ("hidden_size", config.hidden_size),
            ("intermediate_size", config.intermediate_size),
            ("num_layers", config.num_layers),
            ("num_heads", config.num_heads),
            ("num_kv_heads", config.num_kv_heads),
            ("head_dim", config.head_dim),
            ("tie_word_embeddings", config.tie_word_embeddings as usize),
            ("qk_norm", config.qk_norm as usize),
            ("attention_bias", config.attention_bias as usize),
            (
                "attention_output_bias",
                config.attention_output_bias as usize,
            ),
        ] {
            hash.update(format!("{name}={value}\n"));
        }
        // `{:?}` of an f64 is its shortest exact decimal form, the same on every machine. The
        // frequencies are what the rotary configuration amounts to.
        hash.update(format!("rms_norm_eps={:?}\n", config.rms_norm_eps as f32));
        hash.update(format!("rope={:?}\n", config.rope));
        Self(hash)
    }

    /// Adds a tensor.
    pub(super) fn add(&mut self, name: &str, shape: &[usize], dtype: &str, values: &[f32]) {
        self.0.update(format!("{name} {shape:?} {dtype}\n"));
        let samples = SAMPLES.min(values.len());
        for sample in 0..samples {
            // Spread from the first value to the last; u128 because the product may be large.
            let index = sample as u128 * values.len() as u128 / samples as u128;
            self.0.update(values[index as usize].to_le_bytes());
        }
    }

    /// 64 hexadecimal digits.
    pub(super) fn finish(self) -> String {
        self.0
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}
