//! How far one distribution over the vocabulary is from another, position by position.
//!
//! All sums run in f64 over the whole vocabulary: the divergences of interest are a hundredth of
//! a nat, and 50,000 terms of f32 would blur them.

use crate::sampling::{SamplingError, argmax};

/// The exact model's distribution at one position, ready to be compared with several others.
#[derive(Debug)]
pub struct Reference {
    probabilities: Vec<f64>,
    log_normaliser: f64,
    best: usize,
    nll: f64,
    hit: bool,
}

/// Sums over scored positions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Positions scored.
    pub positions: usize,
    /// Sum of the method's negative log likelihoods, in nats.
    pub nll: f64,
    /// Sum of the exact model's negative log likelihoods, in nats.
    pub exact_nll: f64,
    /// Sum of KL(exact || method), in nats.
    pub kl: f64,
    /// Positions where both prefer the same token.
    pub agreed: usize,
    /// Positions where the method prefers the text's own token.
    pub hits: usize,
    /// Positions where the exact model prefers the text's own token.
    pub exact_hits: usize,
    /// Sum of the squares of `nll - exact_nll` of each position.
    pub delta_squares: f64,
    /// Sum of the squares of the divergences.
    pub kl_squares: f64,
}

impl Tally {
    /// Adds the sums of `other`.
    pub fn add(&mut self, other: &Self) {
        self.positions += other.positions;
        self.nll += other.nll;
        self.exact_nll += other.exact_nll;
        self.kl += other.kl;
        self.agreed += other.agreed;
        self.hits += other.hits;
        self.exact_hits += other.exact_hits;
        self.delta_squares += other.delta_squares;
        self.kl_squares += other.kl_squares;
    }

    /// A mean over the scored positions.
    pub fn mean(&self, sum: f64) -> f64 {
        sum / self.positions as f64
    }

    /// The mean excess over the exact model's `nll`, and its standard error.
    pub fn delta(&self) -> (f64, Option<f64>) {
        self.mean_and_error(self.nll - self.exact_nll, self.delta_squares)
    }

    /// The mean divergence and its standard error.
    pub fn divergence(&self) -> (f64, Option<f64>) {
        self.mean_and_error(self.kl, self.kl_squares)
    }

    /// A mean and its standard error, as if positions were independent; neighbours are not quite,
    /// so it is a lower bound. Absent for fewer than two positions.
    fn mean_and_error(&self, sum: f64, squares: f64) -> (f64, Option<f64>) {
        let (count, mean) = (self.positions as f64, self.mean(sum));
        let error = (self.positions > 1).then(|| {
            let variance = (squares - count * mean * mean).max(0.0) / (count - 1.0);
            (variance / count).sqrt()
        });
        (mean, error)
    }
}

impl Reference {
    /// The softmax of `logits`, with `target` as the token that the text continues with.
    ///
    /// # Errors
    /// [`SamplingError::NotFinite`] if a logit is NaN or infinite, [`SamplingError::NoLogits`] if
    /// `target` is not among them.
    pub fn new(logits: &[f32], target: usize) -> Result<Self, SamplingError> {
        let best = finite_argmax(logits)?;
        let target_logit = *logits.get(target).ok_or(SamplingError::NoLogits)?;
        let log_normaliser = log_sum_exp(logits, logits[best]);
        let probabilities = logits
            .iter()
            .map(|&logit| (f64::from(logit) - log_normaliser).exp())
            .collect();
        Ok(Self {
            probabilities,
            log_normaliser,
            best,
            nll: log_normaliser - f64::from(target_logit),
            hit: best == target,
        })
    }

    /// Scores the `logits` of a method at the same position, `exact` being the logits that this
    /// reference was made from.
    ///
    /// # Errors
    /// As [`Reference::new`].
    pub fn score(
        &self,
        exact: &[f32],
        logits: &[f32],
        target: usize,
    ) -> Result<Tally, SamplingError> {
        let best = finite_argmax(logits)?;
        let target_logit = *logits.get(target).ok_or(SamplingError::NoLogits)?;
        let log_normaliser = log_sum_exp(logits, logits[best]);
        // sum p (log p - log q), with log p = e - log_normaliser of each side taken out.
        let expected_gap: f64 = self
            .probabilities
            .iter()
            .zip(exact.iter().zip(logits))
            .map(|(p, (&e, &m))| p * (f64::from(e) - f64::from(m)))
            .sum();
        let nll = log_normaliser - f64::from(target_logit);
        // Rounding may leave a hair below 0 where both are equal.
        let kl = (expected_gap + log_normaliser - self.log_normaliser).max(0.0);
        Ok(Tally {
            positions: 1,
            nll,
            exact_nll: self.nll,
            kl,
            agreed: usize::from(best == self.best),
            hits: usize::from(best == target),
            exact_hits: usize::from(self.hit),
            delta_squares: (nll - self.nll).powi(2),
            kl_squares: kl * kl,
        })
    }

    /// The score of the exact model against itself.
    pub fn own_score(&self) -> Tally {
        Tally {
            positions: 1,
            nll: self.nll,
            exact_nll: self.nll,
            kl: 0.0,
            agreed: 1,
            hits: usize::from(self.hit),
            exact_hits: usize::from(self.hit),
            delta_squares: 0.0,
            kl_squares: 0.0,
        }
    }
}

fn finite_argmax(logits: &[f32]) -> Result<usize, SamplingError> {
    match logits.iter().position(|value| !value.is_finite()) {
        Some(token) => Err(SamplingError::NotFinite {
            token,
            value: logits[token],
        }),
        None => argmax(logits),
    }
}

fn log_sum_exp(logits: &[f32], max: f32) -> f64 {
    let max = f64::from(max);
    let sum: f64 = logits
        .iter()
        .map(|&logit| (f64::from(logit) - max).exp())
        .sum();
    max + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_tokens_by_hand() {
        // p = (3/4, 1/4), q = (1/2, 1/2).
        let exact = [3.0f32.ln(), 0.0];
        let method = [0.3f32, 0.3];
        let score = Reference::new(&exact, 1)
            .and_then(|reference| reference.score(&exact, &method, 1))
            .expect("finite");
        assert!((score.exact_nll - 4.0f64.ln()).abs() < 1e-6);
        assert!((score.nll - 2.0f64.ln()).abs() < 1e-6);
        let kl = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert!((score.kl - kl).abs() < 1e-6);
        assert_eq!((score.agreed, score.hits, score.exact_hits), (1, 0, 0));

        let mut two = score;
        two.add(&Tally {
            positions: 1,
            ..Tally::default()
        });
        let (mean, error) = two.divergence();
        assert!((mean - kl / 2.0).abs() < 1e-6);
        // Two values, kl and 0: the deviation is kl / sqrt(2), the error of the mean kl / 2.
        assert!((error.expect("two positions") - kl / 2.0).abs() < 1e-6);
        assert_eq!(score.delta().1, None);
    }

    #[test]
    fn wrong_inputs_are_errors() {
        assert!(Reference::new(&[], 0).is_err());
        assert!(Reference::new(&[0.0, 1.0], 2).is_err());
        assert!(Reference::new(&[0.0, f32::NAN], 0).is_err());
        let reference = Reference::new(&[0.0, 1.0], 0).expect("finite");
        let broken = [0.0, f32::NEG_INFINITY];
        assert!(reference.score(&[0.0, 1.0], &broken, 0).is_err());
    }

    proptest! {
        #[test]
        fn shifting_all_logits_changes_nothing(
            exact in prop::collection::vec(-30.0f32..30.0, 2..300),
            shift in -20.0f32..20.0,
        ) {
            let shifted: Vec<f32> = exact.iter().map(|logit| logit + shift).collect();
            let reference = Reference::new(&exact, 1).expect("finite");
            let score = reference.score(&exact, &shifted, 1).expect("finite");
            prop_assert!(score.kl < 1e-4);
            prop_assert!((score.nll - score.exact_nll).abs() < 1e-4);
        }

        #[test]
        fn divergence_is_never_negative(
            pairs in prop::collection::vec((-30.0f32..30.0, -30.0f32..30.0), 2..300),
        ) {
            let (exact, method): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            let reference = Reference::new(&exact, 0).expect("finite");
            let score = reference.score(&exact, &method, 0).expect("finite");
            prop_assert!(score.kl >= 0.0 && score.kl.is_finite());
            prop_assert!(score.nll >= 0.0);
        }
    }
}
