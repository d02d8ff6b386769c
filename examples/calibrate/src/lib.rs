//! What both examples share: a model that can be calibrated, and what a job found.

use burn::tensor::{Int, Tensor};
use burn_oscar::calibration::learner::{CalibrationModel, ModelError, Outcome};
use burn_oscar::calibration::solve::{Pairing, Rope};
use burn_oscar::{AttentionOptions, KvCache};
use models::{config::ModelConfig, model::Model, rope};

/// A model as the job wants it: something that runs tokens through a cache. Nothing in the model
/// itself knows of calibration.
pub struct Frozen(pub Model);

impl CalibrationModel for Frozen {
    fn run(&mut self, tokens: Tensor<2, Int>, cache: &mut KvCache) -> Result<(), ModelError> {
        self.0.forward(tokens, cache, AttentionOptions::causal())?;
        Ok(())
    }
}

/// The model's rotary embedding, by which statistics of short texts are turned to longer ones.
pub fn rope_of(config: &ModelConfig) -> Rope {
    Rope {
        inv_freq: rope::Rope::new(&config.rope, config.head_dim)
            .frequencies()
            .to_vec(),
        pairing: Pairing::Half,
        rotary_dim: config.head_dim,
    }
}

/// What a job found, in lines.
pub fn summary(outcome: &Outcome) -> String {
    let tokens = outcome.statistics.tokens();
    let mut text = format!(
        "{:?} after {} windows, {tokens} tokens\n",
        outcome.ending, outcome.windows
    );
    if let Some(solution) = &outcome.solution {
        for warning in &solution.diagnostics.warnings {
            text += &format!("warning: {warning}\n");
        }
    }
    for (index, layer) in outcome.validation.iter().enumerate() {
        text += &format!(
            "layer {index:2}: squared error of attention's outputs {:.2} %, KL of its weights {:.4}\n",
            100.0 * layer.output_error(),
            layer.attention_kl()
        );
    }
    text
}
