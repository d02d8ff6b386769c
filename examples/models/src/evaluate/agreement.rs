//! Does a method choose the tokens that the exact cache chose?

use burn::tensor::Device;
use burn_oscar::{AttentionOptions, KvCache};

use super::EvaluateError;
use crate::{
    generate::{forward, read_f32},
    model::Model,
    sampling::argmax,
};

/// How often a method prefers the next token of a given continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Agreement {
    /// Tokens compared.
    pub compared: usize,
    /// Tokens where the method's best token is the continuation's.
    pub agreed: usize,
    /// Agreeing tokens before the first that differs: how long both would write the same text.
    pub common_prefix: usize,
}

impl Agreement {
    /// The share of tokens that agree, 0 to 1; 1 where there was nothing to compare.
    pub fn share(&self) -> f64 {
        if self.compared == 0 {
            1.0
        } else {
            self.agreed as f64 / self.compared as f64
        }
    }

    fn count(chosen: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut result = Self {
            compared: 0,
            agreed: 0,
            common_prefix: 0,
        };
        for (best, expected) in chosen {
            if best == expected {
                result.common_prefix += usize::from(result.agreed == result.compared);
                result.agreed += 1;
            }
            result.compared += 1;
        }
        result
    }
}

/// Feeds `continuation` to the newest sequence of a cache, which holds the prompt, and compares, at
/// every position, the method's best token with the continuation's ("teacher forcing": a token that
/// differs does not change what comes after it). Fork the sequence to keep it as it is.
///
/// `prompt_logits` are the logits after the last token of the prompt.
///
/// # Errors
/// What the model and its cache give, and [`EvaluateError::Logits`] for logits that are not finite.
pub fn agreement(
    model: &Model,
    device: &Device,
    cache: &mut KvCache,
    prompt_logits: &[f32],
    continuation: &[u32],
) -> Result<Agreement, EvaluateError> {
    let best = |position: usize, logits: &[f32]| {
        argmax(logits)
            .map(|token| token as u32)
            .map_err(|source| EvaluateError::Logits {
                window: 0,
                position,
                source,
            })
    };
    let Some(fed) = continuation.len().checked_sub(1) else {
        return Ok(Agreement::count(std::iter::empty()));
    };
    let mut chosen = vec![best(0, prompt_logits)?];
    if fed > 0 {
        let options = AttentionOptions::causal().streaming();
        let hidden = forward(model, device, cache, &continuation[..fed], options)?;
        for position in 0..fed {
            let logits = model.logits(hidden.clone().narrow(1, position, 1));
            let logits = read_f32(logits).map_err(EvaluateError::Read)?;
            chosen.push(best(position + 1, &logits)?);
        }
    }
    Ok(Agreement::count(
        chosen.into_iter().zip(continuation.iter().copied()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_prefix_ends_at_the_first_difference() {
        let count = |best: [u32; 5]| Agreement::count(best.into_iter().zip([1, 2, 3, 4, 5]));
        let all = count([1, 2, 3, 4, 5]);
        assert_eq!((all.agreed, all.common_prefix), (5, 5));
        let gap = count([1, 2, 0, 4, 5]);
        assert_eq!((gap.compared, gap.agreed, gap.common_prefix), (5, 4, 2));
        let first = count([0, 2, 3, 4, 5]);
        assert_eq!((first.agreed, first.common_prefix), (4, 0));
        assert!((first.share() - 0.8).abs() < 1e-12);
    }

    #[test]
    fn nothing_to_compare_agrees() {
        assert_eq!(Agreement::count(std::iter::empty()).share(), 1.0);
    }
}
