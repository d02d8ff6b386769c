//! From statistics to a calibration.
//!
//! With `C_Q` the mean of `qᵀq` and Σ the covariance of the keys of one KV head:
//! - `oscar` (arXiv 2605.17757): keys are turned by `U H P`, `U` the eigenvectors of `C_Q`, `H` the
//!   Hadamard matrix, `P` the bit-reversed order; values likewise by those of the attended values
//! - `transform_coded`: keys are turned to the same `U`, its columns `u` sorted by
//!   `(uᵀΣu)(uᵀC_Q u)`, what dropping the channel would add to the squared logits; then by a Hadamard
//!   matrix inside each segment of equal bits
//!
//! No optimiser and no gradients: sums, eigenvectors, and a search over a grid.

mod allocation;
mod clip;
mod diagnostics;
mod key;
mod matrix;
mod options;
mod rope;
#[cfg(test)]
mod tests;
mod value;

pub use diagnostics::{Diagnostics, HeadDiagnostics, LayerDiagnostics};
pub use options::{Allocate, Centring, Clips, KeyTarget, SolveOptions, Target, ValueTarget};
pub use rope::{Pairing, Rope};

use super::{Calibration, CalibrationBuilder, LayerCalibration, Statistics};
use crate::error::{Error, Result};
use crate::method::{FOUR_TWO_NONE, Method, centred};
use allocation::Allocation;
use diagnostics::leading;
use key::PreparedKeys;

/// What the solver found.
#[derive(Clone, Debug)]
pub struct Solution {
    /// To be saved, or used at once.
    pub calibration: Calibration,
    /// How good it is likely to be.
    pub diagnostics: Diagnostics,
    /// Of keys and then values of each layer: orthogonal, most important columns first.
    bases: Vec<Vec<f64>>,
    page_means: bool,
}

impl Solution {
    /// The method with this calibration, with or without page means as it was solved for.
    ///
    /// # Errors
    /// Those of [`Method::calibrated`].
    pub fn method(&self) -> Result<Method> {
        let method = Method::calibrated(self.calibration.method(), &self.calibration)?;
        Ok(method.with_page_means(self.page_means))
    }

    /// How far the bases of another solution are: the mean over layers, sides and heads of the
    /// distance of the spaces of the most important quarter of the channels, from 0 to 1. Where it
    /// stays small from one solution to the next, more tokens change little.
    ///
    /// # Errors
    /// [`Error::Calibration`] for solutions of other sizes, or with other bases.
    pub fn distance(&self, other: &Self) -> Result<f64> {
        let d = self.calibration.head_dim();
        let fits = self.bases.len() == other.bases.len() && d == other.calibration.head_dim();
        if !fits {
            return Err(Error::Calibration {
                reason: format!(
                    "{} bases of {d} channels and {} of {} are not compared: solve both with the \
                     same options",
                    self.bases.len(),
                    other.bases.len(),
                    other.calibration.head_dim()
                ),
            });
        }
        let pairs = self.bases.iter().zip(&other.bases);
        let distances = pairs.map(|(a, b)| matrix::subspace_distance(a, b, leading(d), d));
        Ok(distances.sum::<f64>() / self.bases.len().max(1) as f64)
    }
}

/// How far statistics are turned, and by what.
#[derive(Clone, Copy)]
struct Reach<'a> {
    rope: Option<&'a Rope>,
    offsets: u64,
}

impl Reach<'_> {
    fn mean(&self, mean: Vec<f64>) -> Vec<f64> {
        match self.rope {
            Some(rope) => rope.extend_mean(&mean, self.offsets),
            None => mean,
        }
    }

    fn second(&self, second: Vec<f64>, d: usize) -> Vec<f64> {
        match self.rope {
            Some(rope) => rope.extend_second(&second, d, self.offsets),
            None => second,
        }
    }
}

/// Solves for a calibration. The same statistics and options give the same bytes on the same
/// machine.
///
/// # Errors
/// [`Error::Option`] for options that do not fit each other; [`Error::Calibration`] where a layer
/// has seen nothing, or other tokens than the first; [`Error::Artifact`] where the model's sizes or
/// fingerprint make no artifact.
pub fn solve(statistics: &Statistics, options: &SolveOptions) -> Result<Solution> {
    let mut solution = solve_unsigned(statistics, options)?;
    let digest = statistics.digest()?;
    solution.calibration = solution
        .calibration
        .with_note("statistics_sha256", digest)?;
    Ok(solution)
}

/// [`solve`] without the digest of the statistics, which are large: for what is only compared.
pub(in crate::calibration) fn solve_unsigned(
    statistics: &Statistics,
    options: &SolveOptions,
) -> Result<Solution> {
    let config = statistics.config();
    let d = config.head_dim;
    options.validate(d)?;
    check_layers(statistics)?;
    let gathered = statistics.longest();
    let asked = options
        .served_length
        .map_or(gathered, |length| length as u64);
    if asked < gathered {
        return Err(Error::Option {
            option: "served_length",
            value: asked.to_string(),
            reason: "the texts were longer: give at least their length",
        });
    }
    let mut warnings = Vec::new();
    let served = if asked > gathered && options.rope.is_none() {
        warnings.push(format!(
            "{asked} positions are to be served and the texts have {gathered}: give the model's \
             rotary embedding (`rope`), or observe longer texts; the artifact serves {gathered}"
        ));
        gathered
    } else {
        asked
    };
    let reach = Reach {
        rope: options.rope.as_ref(),
        offsets: served - gathered,
    };

    let layers = statistics.layers();
    let keys: Vec<PreparedKeys> = layers
        .iter()
        .enumerate()
        .map(|(index, layer)| PreparedKeys::new(index, layer, d, options, reach))
        .collect::<Result<_>>()?;
    let segments = allocations(&keys, options);

    let mut builder =
        CalibrationBuilder::new(options.target.name(), layers.len(), config.n_kv_heads, d)
            .fingerprint(config.fingerprint.clone())
            .served_length(served as usize)
            .tokens(statistics.tokens() as usize)
            .note("burn_oscar_version", env!("CARGO_PKG_VERSION"));
    let mut bases = Vec::new();
    let mut diagnostics = Vec::new();
    for (index, (layer, keys)) in layers.iter().zip(keys).enumerate() {
        let key = keys.finish(layer, segments.get(index), options)?;
        let value = value::solve(index, layer, d, options)?;
        for (head, found) in key.diagnostics.heads.iter().enumerate() {
            warnings.extend(found.warnings(index, head, d));
        }
        let searched = options.target == Target::Oscar && options.clips == Clips::Searched;
        if searched && layer.sample(0).next().is_none() {
            warnings.push(format!(
                "layer {index}: no token past the sinks was sampled, the clips are the method's own"
            ));
        }
        let mut found = key.diagnostics;
        found.value_clip = value.side.clip;
        diagnostics.push(found);
        bases.extend(key.bases.into_iter().chain(value.bases));
        let layer = LayerCalibration {
            key: key.side,
            value: value.side,
        };
        builder = builder.layer(index, layer);
    }
    Ok(Solution {
        calibration: builder.build()?,
        diagnostics: Diagnostics {
            tokens: statistics.tokens(),
            gathered_length: gathered,
            served_length: served,
            layers: diagnostics,
            warnings,
        },
        bases,
        page_means: options.centring == Centring::Page,
    })
}

/// Whether all layers have seen the same.
fn check_layers(statistics: &Statistics) -> Result<()> {
    let layers = statistics.layers();
    for (index, layer) in layers.iter().enumerate() {
        let reason = if layer.tokens == 0 {
            format!("layer {index} has seen no tokens: run the model over a text first")
        } else if layer.tokens != layers[0].tokens {
            format!(
                "layer {index} has seen {} tokens and layer 0 {}: finish the step, and call every \
                 layer once a step",
                layer.tokens, layers[0].tokens
            )
        } else {
            continue;
        };
        return Err(Error::Calibration { reason });
    }
    Ok(())
}

/// The segments of each layer; none for `oscar`.
fn allocations(keys: &[PreparedKeys], options: &SolveOptions) -> Vec<Allocation> {
    if options.target == Target::Oscar {
        return Vec::new();
    }
    let quantizer = centred();
    let all = || -> Vec<Vec<Allocation>> {
        let layers = keys.iter();
        layers
            .map(|keys| Allocation::all(&keys.channels, &quantizer))
            .collect()
    };
    match options.allocate {
        Allocate::Fixed => {
            let layers = keys.iter();
            layers
                .map(|keys| Allocation::of(FOUR_TWO_NONE, &keys.channels, &quantizer))
                .collect()
        }
        Allocate::PerLayer { bits } => {
            let layers = all();
            layers
                .iter()
                .map(|options| allocation::within(options, bits).clone())
                .collect()
        }
        Allocate::AcrossLayers { bits } => allocation::across_layers(&all(), bits),
    }
}
