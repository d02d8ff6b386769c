//! Choosing the next token from the model's logits.
//!
//! The order of the steps is the customary one: divide by the temperature, keep the `top_k` best
//! tokens, of those keep the smallest set whose probability reaches `top_p`, draw one. A
//! temperature of zero skips all of it and takes the best token.
//!
//! Everything is deterministic: equal logits, options and seed give equal tokens. Ties are broken
//! towards the smaller token id.

use std::cmp::Ordering;

use rand::{Rng, SeedableRng, rngs::StdRng};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingOptions {
    /// Divides the logits before the softmax. 0 always takes the best token; 1 draws from the
    /// model's own distribution; larger values flatten it.
    pub temperature: f32,
    /// Draw among this many of the best tokens only. 0 keeps all of them.
    pub top_k: usize,
    /// Draw among the smallest set of best tokens whose probabilities add up to this, above 0 and
    /// at most 1. 1 keeps all of them.
    pub top_p: f32,
    /// Seed of the random numbers. The same seed repeats the same text.
    pub seed: u64,
}

impl Default for SamplingOptions {
    /// The best token, always.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            seed: 0,
        }
    }
}

/// Why no token could be chosen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// The temperature is negative or not a number.
    #[error("temperature {0} is not allowed: give 0 (always the best token) or a positive number")]
    Temperature(f32),
    /// `top_p` lies outside (0, 1].
    #[error("top-p {0} is not allowed: give a number above 0 and at most 1 (1 keeps every token)")]
    TopP(f32),
    /// There are no logits to choose from.
    #[error("the model returned no logits, so there is no token to choose")]
    NoLogits,
    /// A logit is NaN or positive infinity, or all of them are negative infinity.
    #[error(
        "the logit of token {token} is {value}: the model's output is broken, most likely by \
         weights that overflow the number format of this device"
    )]
    NotFinite {
        /// The token whose logit it is.
        token: usize,
        /// The offending value.
        value: f32,
    },
}

/// Draws tokens, one after the other, from one stream of random numbers.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplingOptions,
    random: StdRng,
}

impl Sampler {
    /// A sampler at the start of the stream that `options.seed` names.
    ///
    /// # Errors
    /// [`SamplingError::Temperature`] and [`SamplingError::TopP`] for values out of range.
    pub fn new(options: SamplingOptions) -> Result<Self, SamplingError> {
        if !(options.temperature >= 0.0 && options.temperature.is_finite()) {
            return Err(SamplingError::Temperature(options.temperature));
        }
        if !(options.top_p > 0.0 && options.top_p <= 1.0) {
            return Err(SamplingError::TopP(options.top_p));
        }
        let random = StdRng::seed_from_u64(options.seed);
        Ok(Self { options, random })
    }

    /// A sampler that always takes the best token.
    pub fn greedy() -> Self {
        let options = SamplingOptions::default();
        Self {
            options,
            random: StdRng::seed_from_u64(options.seed),
        }
    }

    /// The options this sampler was made from.
    pub fn options(&self) -> &SamplingOptions {
        &self.options
    }

    /// The id of the next token, given one logit per token of the vocabulary.
    ///
    /// Negative infinity excludes a token.
    ///
    /// # Errors
    /// [`SamplingError::NoLogits`] for an empty slice, [`SamplingError::NotFinite`] where the
    /// logits define no distribution.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        let best = argmax(logits)?;
        if self.options.temperature == 0.0 {
            return Ok(best as u32);
        }
        let candidates = self.candidates(logits, logits[best]);
        let total: f64 = candidates.iter().map(|&(_, weight)| weight).sum();
        let mut target = self.random.random::<f64>() * total;
        for &(token, weight) in &candidates {
            target -= weight;
            if target < 0.0 {
                return Ok(token);
            }
        }
        // Rounding can leave a hair of `target` after the last candidate.
        Ok(candidates.last().map_or(best as u32, |&(token, _)| token))
    }

    /// The tokens that may be drawn, best first, with their unnormalised probabilities. The best
    /// token has weight 1 and is always among them.
    fn candidates(&self, logits: &[f32], best: f32) -> Vec<(u32, f64)> {
        let SamplingOptions {
            temperature,
            top_k,
            top_p,
            ..
        } = self.options;
        // Subtracting before dividing keeps the quotient at or below 0 for every temperature.
        let weight =
            |logit: f32| ((f64::from(logit) - f64::from(best)) / f64::from(temperature)).exp();
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let by_rank = |a: &u32, b: &u32| rank(logits, *a, *b);
        if top_k > 0 && top_k < order.len() {
            order.select_nth_unstable_by(top_k - 1, by_rank);
            order.truncate(top_k);
        }
        order.sort_unstable_by(by_rank);
        let mut candidates: Vec<(u32, f64)> = order
            .into_iter()
            .map(|token| (token, weight(logits[token as usize])))
            .collect();
        if top_p < 1.0 {
            let total: f64 = candidates.iter().map(|&(_, weight)| weight).sum();
            let mut sum = 0.0;
            let kept = candidates
                .iter()
                .take_while(|&&(_, weight)| {
                    let wanted = sum < f64::from(top_p) * total;
                    sum += weight;
                    wanted
                })
                .count();
            candidates.truncate(kept.max(1));
        }
        candidates
    }
}

/// The index of the largest value; of equal ones, the first.
///
/// # Errors
/// [`SamplingError::NoLogits`] for an empty slice, [`SamplingError::NotFinite`] if a value is NaN
/// or positive infinity, or if all are negative infinity.
pub fn argmax(logits: &[f32]) -> Result<usize, SamplingError> {
    let mut best = 0;
    for (token, &value) in logits.iter().enumerate() {
        if value.is_nan() || value == f32::INFINITY {
            return Err(SamplingError::NotFinite { token, value });
        }
        if value > logits[best] {
            best = token;
        }
    }
    match logits.get(best) {
        None => Err(SamplingError::NoLogits),
        Some(&value) if value == f32::NEG_INFINITY => {
            Err(SamplingError::NotFinite { token: best, value })
        }
        Some(_) => Ok(best),
    }
}

/// Best first, then by token id. [`argmax`] has already refused logits that hold NaN.
fn rank(logits: &[f32], a: u32, b: u32) -> Ordering {
    logits[b as usize]
        .partial_cmp(&logits[a as usize])
        .unwrap_or(Ordering::Equal)
        .then(a.cmp(&b))
}

#[cfg(test)]
mod tests;
