//! How good the data were, and what became of them.

use super::matrix::{diagonal_in, orthogonality_defect, subspace_distance};
use crate::quantizer::Segment;

/// Tokens per head below which the eigenvectors are mostly noise, in units of head_dim.
const TOKENS_PER_CHANNEL: f64 = 4.0;
/// A head whose queries span less than this is degenerate.
const LEAST_RANK: f64 = 2.0;

/// One KV head.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadDiagnostics {
    /// Keys past the sinks.
    pub tokens: f64,
    /// The largest entry of `|AᵀA - 1|` of the keys' transform, before it was rounded to f32.
    pub orthogonality: f64,
    /// The largest over the mean of the diagonal of `Aᵀ C_Q A`: 1 where all channels matter alike,
    /// what `H` is for.
    pub spread: f64,
    /// `(Σλ)² / Σλ²` of the eigenvalues of `C_Q`: directions that the queries use.
    pub effective_rank: f64,
    /// Share of the importance (key variance times query energy) in each segment.
    pub shares: Vec<f64>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerDiagnostics {
    /// Its KV heads.
    pub heads: Vec<HeadDiagnostics>,
    /// Mean distance of the spaces of the most important quarter of the channels, over all pairs
    /// of KV heads: 0 where one basis would do for all, 1 at right angles. 0 for one head.
    pub head_distance: f64,
    /// Segments of the keys; one of 2 bits for `oscar`.
    pub segments: Vec<Segment>,
    /// Bits per value of the keys, with 8-bit scales and without page means; 0 for `oscar`.
    pub key_bits: f64,
    /// Predicted squared error of the logits with these segments, over that with the method's own;
    /// 1 for `oscar`.
    pub predicted_gain: f64,
    /// Clip of the keys, where one is in the artifact.
    pub key_clip: Option<f32>,
    /// Clip of the values, where one is in the artifact.
    pub value_clip: Option<f32>,
}

/// The whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostics {
    /// Tokens that every layer has seen.
    pub tokens: u64,
    /// Tokens of the longest text.
    pub gathered_length: u64,
    /// Positions that the calibration serves.
    pub served_length: u64,
    /// All layers.
    pub layers: Vec<LayerDiagnostics>,
    /// What to worry about, in words.
    pub warnings: Vec<String>,
}

impl HeadDiagnostics {
    /// Of a transform `A` and the queries' second moment.
    pub(super) fn new(
        tokens: f64,
        transform: &[f64],
        queries: &[f64],
        eigenvalues: &[f64],
        shares: Vec<f64>,
        d: usize,
    ) -> Self {
        let diagonal = diagonal_in(transform, queries, d);
        let mean = diagonal.iter().sum::<f64>() / d as f64;
        let largest = diagonal.iter().copied().fold(0.0, f64::max);
        let squares: f64 = eigenvalues.iter().map(|x| x * x).sum();
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        Self {
            tokens,
            orthogonality: orthogonality_defect(transform, d),
            spread: ratio(largest, mean),
            effective_rank: ratio(eigenvalues.iter().sum::<f64>().powi(2), squares),
            shares,
        }
    }

    /// What to worry about.
    pub(super) fn warnings(&self, layer: usize, head: usize, d: usize) -> Vec<String> {
        let mut warnings = Vec::new();
        let wanted = TOKENS_PER_CHANNEL * d as f64;
        if self.tokens < wanted {
            warnings.push(format!(
                "layer {layer}, KV head {head}: {} tokens are too few for {d} channels, at least \
                 {wanted} make a basis: observe more text",
                self.tokens
            ));
        }
        if self.effective_rank < LEAST_RANK {
            warnings.push(format!(
                "layer {layer}, KV head {head} is degenerate: its queries span {:.2} directions \
                 (at least {LEAST_RANK} make a basis); its channels are sorted by little",
                self.effective_rank
            ));
        }
        warnings
    }
}

/// The mean distance of the leading spaces of all pairs of bases.
pub(super) fn mean_distance(bases: &[Vec<f64>], d: usize) -> f64 {
    let mut distances = Vec::new();
    for (i, a) in bases.iter().enumerate() {
        let others = bases[..i].iter();
        distances.extend(others.map(|b| subspace_distance(a, b, leading(d), d)));
    }
    // The sum of nothing is -0.
    distances.iter().sum::<f64>().max(0.0) / distances.len().max(1) as f64
}

/// Channels whose space is compared: the most important quarter.
pub(super) fn leading(d: usize) -> usize {
    (d / 4).max(1)
}
