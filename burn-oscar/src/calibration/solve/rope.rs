//! Statistics of short texts, turned to the positions of long ones.
//!
//! A query or key at position `p + D` is the one at `p`, turned by the rotary embedding of `D`. So
//! the moments over the offsets `D` of a longer context follow from those gathered, exactly and
//! without another token. Take each rotated pair of channels as a complex number `z`; the embedding
//! multiplies it by `e^{iωD}`, and over the offsets 0 to N
//!
//! ```text
//! E z_a z_b*  is multiplied by m(ω_a - ω_b),    E z_a z_b  by m(ω_a + ω_b),    E z_a  by m(ω_a),
//! m(θ) = (1 / (N + 1)) Σ_D e^{iθD} = e^{iθN/2} sin((N + 1) θ/2) / ((N + 1) sin(θ/2)).
//! ```

use crate::error::{Error, Result};

/// Which two channels turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Channel `i` with `i + rotary_dim / 2` (Llama and its like on HF, NeoX).
    Half,
    /// Channel `2 i` with `2 i + 1` (GPT-J, GGUF's "normal").
    Interleaved,
}

/// A model's rotary embedding: `(x, y) -> (x cos - y sin, x sin + y cos)` of angle
/// `inv_freq[i] * position` for pair `i`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians per token of each pair, `[rotary_dim / 2]`, after any scaling of the model's.
    pub inv_freq: Vec<f64>,
    /// Which two channels turn together.
    pub pairing: Pairing,
    /// The first channels of a head, which turn; the others do not.
    pub rotary_dim: usize,
}

impl Rope {
    /// The plain embedding: `inv_freq[i] = theta^(-2 i / rotary_dim)`.
    pub fn new(theta: f64, rotary_dim: usize, pairing: Pairing) -> Self {
        let inv_freq = (0..rotary_dim / 2)
            .map(|i| theta.powf(-2.0 * i as f64 / rotary_dim as f64))
            .collect();
        Self {
            inv_freq,
            pairing,
            rotary_dim,
        }
    }

    /// Whether it fits a head of `head_dim` channels.
    pub(super) fn validate(&self, head_dim: usize) -> Result<()> {
        let reason = if !self.rotary_dim.is_multiple_of(2) || self.rotary_dim > head_dim {
            "rotary_dim is even and at most head_dim: give the model's"
        } else if self.inv_freq.len() * 2 != self.rotary_dim {
            "there is one frequency for each two of rotary_dim: give the model's"
        } else if !self.inv_freq.iter().all(|x| x.is_finite()) {
            "frequencies are finite: give the model's"
        } else {
            return Ok(());
        };
        Err(Error::Option {
            option: "rope",
            value: format!(
                "of {} channels with {} frequencies, head_dim {head_dim}",
                self.rotary_dim,
                self.inv_freq.len()
            ),
            reason,
        })
    }

    /// All channels in pairs, with their frequency: 0 for those that do not turn. A last channel
    /// without a partner is paired with itself, which changes nothing at frequency 0.
    fn pairs(&self, head_dim: usize) -> Vec<(usize, usize, f64)> {
        let half = self.rotary_dim / 2;
        let turning = self
            .inv_freq
            .iter()
            .enumerate()
            .map(|(i, &w)| match self.pairing {
                Pairing::Half => (i, i + half, w),
                Pairing::Interleaved => (2 * i, 2 * i + 1, w),
            });
        let fixed = (self.rotary_dim..head_dim).step_by(2);
        turning
            .chain(fixed.map(|i| (i, (i + 1).min(head_dim - 1), 0.0)))
            .collect()
    }

    /// The mean of vectors over all offsets 0 to `offsets`, from that at offset 0.
    pub fn extend_mean(&self, mean: &[f64], offsets: u64) -> Vec<f64> {
        let mut extended = mean.to_vec();
        for (i, j, w) in self.pairs(mean.len()) {
            if w != 0.0 {
                let [re, im] = times([mean[i], mean[j]], average(w, offsets));
                extended[i] = re;
                extended[j] = im;
            }
        }
        extended
    }

    /// The second moments `[head_dim, head_dim]` of vectors over all offsets 0 to `offsets`, from
    /// those at offset 0; about the mean or not, as they were given.
    pub fn extend_second(&self, second: &[f64], head_dim: usize, offsets: u64) -> Vec<f64> {
        let d = head_dim;
        let mut extended = second.to_vec();
        let pairs = self.pairs(d);
        for &(ai, aj, wa) in &pairs {
            for &(bi, bj, wb) in &pairs {
                if wa == 0.0 && wb == 0.0 {
                    continue;
                }
                let at = |i: usize, j: usize| second[i * d + j];
                let (xx, xy, yx, yy) = (at(ai, bi), at(ai, bj), at(aj, bi), at(aj, bj));
                // E z_a z_b* and E z_a z_b.
                let h = times([xx + yy, yx - xy], average(wa - wb, offsets));
                let p = times([xx - yy, yx + xy], average(wa + wb, offsets));
                extended[ai * d + bi] = (h[0] + p[0]) / 2.0;
                extended[aj * d + bj] = (h[0] - p[0]) / 2.0;
                extended[aj * d + bi] = (p[1] + h[1]) / 2.0;
                extended[ai * d + bj] = (p[1] - h[1]) / 2.0;
            }
        }
        extended
    }
}

fn times([a, b]: [f64; 2], [c, e]: [f64; 2]) -> [f64; 2] {
    [a * c - b * e, a * e + b * c]
}

/// `m(θ)`: the mean of `e^{iθD}` for D from 0 to `last`.
fn average(theta: f64, last: u64) -> [f64; 2] {
    let (last, count) = (last as f64, last as f64 + 1.0);
    let half = theta / 2.0;
    let sine = half.sin();
    // Near a whole turn the quotient is 1 but for rounding, which it would blow up.
    let length = if sine.abs() < 1e-12 {
        1.0
    } else {
        (count * half).sin() / (count * sine)
    };
    let (sin, cos) = (half * last).sin_cos();
    [length * cos, length * sin]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(rope: &Rope, x: &[f64], position: f64) -> Vec<f64> {
        let mut y = x.to_vec();
        for (i, j, w) in rope.pairs(x.len()) {
            if w != 0.0 {
                let (sin, cos) = (w * position).sin_cos();
                y[i] = x[i] * cos - x[j] * sin;
                y[j] = x[i] * sin + x[j] * cos;
            }
        }
        y
    }

    fn moments(vectors: &[Vec<f64>]) -> (Vec<f64>, Vec<f64>) {
        let d = vectors[0].len();
        let count = vectors.len() as f64;
        let mean = (0..d).map(|i| vectors.iter().map(|x| x[i]).sum::<f64>() / count);
        let second = (0..d * d).map(|at| {
            let products = vectors.iter().map(|x| x[at / d] * x[at % d]);
            products.sum::<f64>() / count
        });
        (mean.collect(), second.collect())
    }

    /// What is extended from offset 0 is what is gathered at every offset.
    #[test]
    fn extended_statistics_are_those_gathered_at_the_offsets() {
        let d = 12;
        for (pairing, rotary_dim) in [
            (Pairing::Half, 12),
            (Pairing::Interleaved, 12),
            (Pairing::Half, 8),
            (Pairing::Interleaved, 4),
        ] {
            let rope = Rope::new(100.0, rotary_dim, pairing);
            rope.validate(d).unwrap();
            let number = |i: usize| ((i * i * 13 + 7 * i) as f64).sin() + 0.3;
            // Positions of a short text.
            let short: Vec<Vec<f64>> = (0..20)
                .map(|t| {
                    let x: Vec<f64> = (0..d).map(|c| number(t * d + c)).collect();
                    turned(&rope, &x, t as f64)
                })
                .collect();
            let (mean, second) = moments(&short);
            let offsets = 37;
            let long: Vec<_> = (0..=offsets)
                .flat_map(|offset| short.iter().map(move |x| (x, offset as f64)))
                .map(|(x, offset)| turned(&rope, x, offset))
                .collect();
            let (long_mean, long_second) = moments(&long);
            let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
            assert!(close(&rope.extend_mean(&mean, offsets), &long_mean));
            assert!(close(
                &rope.extend_second(&second, d, offsets),
                &long_second
            ));
            assert!(close(&rope.extend_second(&second, d, 0), &second));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let rope = Rope::new(1e4, 16, Pairing::Half);
        assert!(rope.validate(16).is_ok());
        assert!(rope.validate(8).is_err());
        let odd = Rope {
            inv_freq: vec![1.0; 3],
            ..rope.clone()
        };
        assert!(odd.validate(16).is_err());
        let infinite = Rope {
            inv_freq: vec![f64::INFINITY; 8],
            ..rope
        };
        assert!(infinite.validate(16).is_err());
    }
}
