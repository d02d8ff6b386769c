//! Rotary position embedding, half-split as Hugging Face checkpoints expect it.
//!
//! Channel `i` of the first half of a head is paired with channel `i` of the second half, and
//! the pair is turned by `position * frequency[i]`. Angles are computed on the host in f64 for
//! just the positions of a call: a table for every position would be large for long contexts,
//! and f32 angles lose precision there.

use burn::tensor::{Device, Tensor, TensorData};

use crate::config::{RopeConfig, RopeScaling};

/// The frequencies of a model's rotary embedding.
#[derive(Debug, Clone)]
pub struct Rope {
    /// Radians per token for each pair of channels, `head_dim / 2` of them.
    frequencies: Vec<f64>,
    /// Factor on cosine and sine; 1 but for YaRN.
    attention_factor: f64,
}

impl Rope {
    /// Frequencies for heads of `head_dim` channels.
    pub fn new(config: &RopeConfig, head_dim: usize) -> Self {
        let half = head_dim / 2;
        let trained = (0..half).map(|i| config.theta.powf(-((2 * i) as f64) / head_dim as f64));
        let frequencies = match &config.scaling {
            RopeScaling::None => trained.collect(),
            RopeScaling::Linear { factor } => trained.map(|f| f / factor).collect(),
            RopeScaling::Divisors(divisors) => trained
                .zip(divisors)
                .map(|(frequency, divisor)| frequency / divisor)
                .collect(),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let length = *original_max_position_embeddings as f64;
                trained
                    .map(|frequency| {
                        let turns = length * frequency / std::f64::consts::TAU;
                        let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        blend(frequency / factor, frequency, kept)
                    })
                    .collect()
            }
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_position_embeddings,
                truncate,
                ..
            } => {
                // The channel pair that makes `turns` full turns over the trained length.
                let length = *original_max_position_embeddings as f64;
                let pair = |turns: f64| {
                    head_dim as f64 * (length / (turns * std::f64::consts::TAU)).ln()
                        / (2.0 * config.theta.ln())
                };
                let (mut first, mut last) = (pair(*beta_fast), pair(*beta_slow));
                if *truncate {
                    (first, last) = (first.floor(), last.ceil());
                }
                first = first.max(0.0);
                last = last.min((head_dim - 1) as f64);
                if first == last {
                    last += 0.001;
                }
                trained
                    .enumerate()
                    .map(|(i, frequency)| {
                        let divided = (i as f64 - first) / (last - first);
                        blend(frequency, frequency / factor, divided)
                    })
                    .collect()
            }
        };
        let attention_factor = match config.scaling {
            RopeScaling::Yarn {
                attention_factor, ..
            } => attention_factor,
            _ => 1.0,
        };
        Self {
            frequencies,
            attention_factor,
        }
    }

    /// Radians per token for each pair of channels, after any scaling.
    pub fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    /// Cosines and sines for `tokens` positions of each row, row `r` starting at `starts[r]`.
    pub fn rotation(&self, starts: &[usize], tokens: usize, device: &Device) -> Rotation {
        // Rows at the same position share one table, which then broadcasts over the batch.
        let shared = starts.windows(2).all(|pair| pair[0] == pair[1]);
        let starts = if shared {
            &starts[..starts.len().min(1)]
        } else {
            starts
        };

        let half = self.frequencies.len();
        let mut cosines = Vec::with_capacity(starts.len() * tokens * half);
        let mut sines = Vec::with_capacity(starts.len() * tokens * half);
        for position in starts.iter().flat_map(|&start| start..start + tokens) {
            for frequency in &self.frequencies {
                let (sine, cosine) = (position as f64 * frequency).sin_cos();
                cosines.push((cosine * self.attention_factor) as f32);
                sines.push((sine * self.attention_factor) as f32);
            }
        }
        let shape = [starts.len(), tokens, 1, half];
        Rotation {
            cosine: Tensor::from_data(TensorData::new(cosines, shape), device),
            sine: Tensor::from_data(TensorData::new(sines, shape), device),
        }
    }
}

/// The rotation of one call's positions.
#[derive(Debug, Clone)]
pub struct Rotation {
    /// `[batch or 1, tokens, 1, head_dim / 2]`.
    cosine: Tensor<4>,
    /// `[batch or 1, tokens, 1, head_dim / 2]`.
    sine: Tensor<4>,
}

impl Rotation {
    /// Rotates heads of shape `[batch, tokens, heads, head_dim]`.
    pub fn apply(&self, heads: Tensor<4>) -> Tensor<4> {
        let half = heads.dims()[3] / 2;
        let first = heads.clone().narrow(3, 0, half);
        let second = heads.narrow(3, half, half);
        Tensor::cat(
            vec![
                first.clone() * self.cosine.clone() - second.clone() * self.sine.clone(),
                second * self.cosine.clone() + first * self.sine.clone(),
            ],
            3,
        )
    }
}

/// `from` at a share of 0 and below, `to` at 1 and above, a straight line between.
fn blend(from: f64, to: f64, share: f64) -> f64 {
    let share = share.clamp(0.0, 1.0);
    from * (1.0 - share) + to * share
}

#[cfg(test)]
mod tests;
