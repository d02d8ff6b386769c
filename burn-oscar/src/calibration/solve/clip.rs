//! Clips chosen by what they do to attention.
//!
//! OSCAR clamps each token to a quantile of its magnitudes before it is coded. The quantile is
//! chosen here on sampled tokens: each is turned, clamped, coded and decoded as the cache does it,
//! and its error counts as attention sees it, `w e C eᵀ`: `w` the squared attention weights on the
//! token, and `C` the queries' second moment for keys, the identity for values.

use half::f16;

use super::matrix::quadratic;

/// Quantiles tried. The last one is the largest magnitude of up to 256 channels: no clip.
pub(super) const GRID: [f32; 7] = [0.88, 0.90, 0.92, 0.94, 0.96, 0.98, 0.999];

/// Tokens of one head, as they are coded, and how their errors count.
pub(super) struct CodedTokens {
    /// Turned and centred.
    pub vectors: Vec<Vec<f64>>,
    /// One for each token.
    pub weights: Vec<f64>,
    /// In the turned basis; `None` is the identity.
    pub metric: Option<Vec<f64>>,
}

impl CodedTokens {
    fn error(&self, clip: f32) -> f64 {
        let tokens = self.vectors.iter().zip(&self.weights);
        tokens
            .map(|(x, weight)| {
                let error = coding_error(x, clip);
                weight
                    * match &self.metric {
                        Some(metric) => quadratic(&error, metric),
                        None => error.iter().map(|e| e * e).sum(),
                    }
            })
            .sum()
    }
}

/// The quantile of [`GRID`] with the smallest error over all heads; `None` without tokens.
pub(super) fn search(heads: &[CodedTokens]) -> Option<f32> {
    if heads.iter().all(|head| head.vectors.is_empty()) {
        return None;
    }
    let errors = GRID.map(|clip| heads.iter().map(|head| head.error(clip)).sum::<f64>());
    let best = (0..GRID.len()).min_by(|&a, &b| errors[a].total_cmp(&errors[b]))?;
    Some(GRID[best])
}

/// What OSCAR's two-bit quantiser makes of a token, minus the token
/// ([`Rounding::HalfUp`](crate::quantizer::Rounding::HalfUp)).
fn coding_error(x: &[f64], clip: f32) -> Vec<f64> {
    let mut magnitudes: Vec<f64> = x.iter().map(|x| x.abs()).collect();
    magnitudes.sort_unstable_by(f64::total_cmp);
    let index = (f64::from(clip) * x.len() as f64) as usize;
    let limit = magnitudes[index.min(x.len() - 1)];
    let clamped = x.iter().map(|x| x.clamp(-limit, limit));
    let (min, max) = clamped.clone().fold((f64::MAX, f64::MIN), |(min, max), x| {
        (min.min(x), max.max(x))
    });
    let scale = (max - min).max(1e-8) / 3.0;
    let [stored_scale, stored_min] = [scale, min].map(|x| f16::from_f64(x).to_f64());
    let decoded = clamped.map(|x| {
        let code = ((x - min) / scale + 0.5).floor().clamp(0.0, 3.0);
        stored_scale * code + stored_min
    });
    decoded.zip(x).map(|(y, x)| y - x).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantiser_is_that_of_the_golden_vectors() {
        // From methods.md 1.4: scale 16/15, zero 1.125.
        let x = [0.10, -0.40, 0.75, -1.20, 2.00, 0.05, -0.30, 0.60];
        let expected = [
            -0.13333, -0.13333, 0.93333, -1.2, 2.0, -0.13333, -0.13333, 0.93333,
        ];
        let errors = coding_error(&x, 0.999);
        for ((error, x), expected) in errors.iter().zip(x).zip(expected) {
            assert!((x + error - expected).abs() < 2e-3, "{x}");
        }
    }

    #[test]
    fn outliers_are_clipped_where_they_do_not_matter() {
        let token = |outlier: f64| {
            let mut x: Vec<f64> = (0..32)
                .map(|i| f64::from(i * 7 % 32) / 16.0 - 1.0)
                .collect();
            x[5] = outlier;
            x
        };
        let of = |metric| CodedTokens {
            vectors: vec![token(9.0), token(-12.0)],
            weights: vec![1.0, 2.0],
            metric,
        };
        // Of 32 channels, 0.98 and above clip nothing.
        assert!(search(&[of(None)]).unwrap() > 0.97);
        // Nothing reads that channel.
        let metric = (0..32 * 32)
            .map(|i| f64::from(u8::from(i % 33 == 0 && i != 5 * 33)))
            .collect();
        assert!(search(&[of(Some(metric))]).unwrap() < 0.97);
        assert_eq!(search(&[]), None);
    }
}
