//! The keys of one layer.

use super::allocation::{Allocation, Channels};
use super::clip::{self, CodedTokens};
use super::diagnostics::{HeadDiagnostics, LayerDiagnostics, mean_distance};
use super::matrix::{diagonal_in, eigen, identity, mean, product, reordered, trace, transposed};
use super::{Centring, Clips, KeyTarget, Reach, SolveOptions, Target};
use crate::calibration::statistics::{HeadStatistics, LayerStatistics, Moments};
use crate::calibration::{Matrices, SideCalibration};
use crate::error::{Error, Result};
use crate::method::{FOUR_TWO_NONE, centred};
use crate::quantizer::Segment;
use crate::rotation::{bit_reversal, hadamard};

/// What becomes of one side of a layer.
pub(super) struct SolvedSide {
    pub side: SideCalibration,
    /// Orthogonal, most important columns first; one for each basis.
    pub bases: Vec<Vec<f64>>,
}

/// The same for keys, with what is said about them.
pub(super) struct SolvedKeys {
    pub side: SideCalibration,
    pub bases: Vec<Vec<f64>>,
    pub diagnostics: LayerDiagnostics,
}

/// The keys of a layer up to the choice of segments, which may depend on the other layers.
pub(super) struct PreparedKeys {
    d: usize,
    heads: Vec<Head>,
    /// One for all heads, or one for each; columns in the order of the codes.
    bases: Vec<Vec<f64>>,
    /// Of each head, in the order of the codes.
    pub channels: Vec<Channels>,
}

/// The moments of one head, turned to the served positions.
struct Head {
    /// `C_Q`.
    queries: Vec<f64>,
    eigenvalues: Vec<f64>,
    /// Of the keys, about what is subtracted from them.
    keys: Vec<f64>,
    mean: Vec<f64>,
}

impl Head {
    fn new<'a>(
        head: &'a HeadStatistics,
        d: usize,
        options: &SolveOptions,
        reach: Reach,
    ) -> std::result::Result<Self, String> {
        let centring = options.centring;
        let heeded = |sensitive: &'a Moments, even: &'a Moments| {
            let known = options.sensitivity && sensitive.weight() > 0.0;
            if known { sensitive } else { even }
        };
        if head.queries.weight() <= 0.0 || head.keys.weight() <= 0.0 {
            return Err("has seen no keys past the sinks: observe longer texts".into());
        }
        let mean = reach.mean(head.keys.mean());
        let mut keys = match centring {
            Centring::None | Centring::Mean => reach.second(head.keys.second(), d),
            Centring::Page if head.keys_in_block.weight() > 0.0 => {
                let keys = heeded(&head.sensitive_keys_in_block, &head.keys_in_block);
                reach.second(keys.second(), d)
            }
            Centring::Page => {
                return Err(
                    "has seen no whole block of keys past the sinks: observe longer texts, or use \
                     Centring::Mean"
                        .into(),
                );
            }
        };
        if centring == Centring::Mean {
            for (row, a) in keys.chunks_exact_mut(d).zip(&mean) {
                row.iter_mut().zip(&mean).for_each(|(x, b)| *x -= a * b);
            }
        }
        let queries = heeded(&head.sensitive_queries, &head.queries);
        let queries = reach.second(queries.second(), d);
        let eigenvalues = eigen(&queries, d)
            .map_err(|error| error.to_string())?
            .values;
        Ok(Self {
            queries,
            eigenvalues,
            keys,
            mean,
        })
    }
}

impl PreparedKeys {
    pub fn new(
        index: usize,
        layer: &LayerStatistics,
        d: usize,
        options: &SolveOptions,
        reach: Reach,
    ) -> Result<Self> {
        let heads = layer
            .heads
            .iter()
            .enumerate()
            .map(|(i, head)| {
                Head::new(head, d, options, reach).map_err(|reason| {
                    let reason = format!("layer {index}, KV head {i} {reason}");
                    Error::Calibration { reason }
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let groups: Vec<(Vec<f64>, Vec<f64>)> = if options.per_head {
            let heads = heads.iter();
            heads
                .map(|head| (head.queries.clone(), head.keys.clone()))
                .collect()
        } else {
            let queries = mean(heads.iter().map(|head| &head.queries));
            vec![(queries, mean(heads.iter().map(|head| &head.keys)))]
        };
        let bases = groups
            .iter()
            .map(|(queries, keys)| basis(queries, keys, d, options))
            .collect::<Result<Vec<_>>>()?;
        let channels = heads
            .iter()
            .enumerate()
            .map(|(i, head)| channels(&bases[i.min(bases.len() - 1)], head, d, options.damping))
            .collect();
        Ok(Self {
            d,
            heads,
            bases,
            channels,
        })
    }

    /// The transforms, clips and segments. `allocation` is there for `transform_coded`.
    pub fn finish(
        self,
        layer: &LayerStatistics,
        allocation: Option<&Allocation>,
        options: &SolveOptions,
    ) -> Result<SolvedKeys> {
        let d = self.d;
        let whole = [Segment::new(16, 2)];
        let segments = allocation.map_or(&whole[..], |allocation| &allocation.segments);
        let transforms: Vec<Vec<f64>> = self
            .bases
            .iter()
            .map(|basis| match options.target {
                Target::Oscar => oscar_transform(basis, d, options),
                Target::TransformCoded => segment_transform(basis, segments, d, options),
            })
            .collect();
        let of_head = |head: usize| &transforms[head.min(transforms.len() - 1)];

        let heads = self.heads.iter().enumerate().map(|(i, head)| {
            let tokens = layer.heads[i].keys.weight();
            let shares = shares(&self.channels[i], segments);
            HeadDiagnostics::new(
                tokens,
                of_head(i),
                &head.queries,
                &head.eigenvalues,
                shares,
                d,
            )
        });
        let heads: Vec<_> = heads.collect();
        let with_means = options.centring == Centring::Mean;
        let clip = match (options.target, options.clips) {
            (Target::TransformCoded, _) => None,
            (Target::Oscar, Clips::Fixed { key, .. }) => Some(key),
            (Target::Oscar, Clips::Searched) => {
                let coded = |(i, head): (usize, &Head)| {
                    let transform = of_head(i);
                    let turned = product(&head.queries, transform, d);
                    let tokens = layer.sample(i).map(|token| (token.key, token.weight));
                    let mean = with_means.then_some(&head.mean[..]);
                    CodedTokens {
                        metric: Some(product(&transposed(transform, d), &turned, d)),
                        ..coded_tokens(tokens, mean, transform)
                    }
                };
                let coded: Vec<_> = self.heads.iter().enumerate().map(coded).collect();
                clip::search(&coded)
            }
        };
        let own = |allocation: &&Allocation| allocation.segments[..] != *FOUR_TWO_NONE;
        let chosen = allocation.filter(own);
        let fixed = Allocation::of(FOUR_TWO_NONE, &self.channels, &centred());
        Ok(SolvedKeys {
            diagnostics: LayerDiagnostics {
                heads,
                head_distance: mean_distance(&self.bases, d),
                segments: segments.to_vec(),
                key_bits: allocation.map_or(0.0, |allocation| allocation.bits),
                predicted_gain: match allocation {
                    Some(allocation) if fixed.error > 0.0 => allocation.error / fixed.error,
                    _ => 1.0,
                },
                key_clip: clip,
                value_clip: None,
            },
            side: SideCalibration {
                transform: Some(matrices(&transforms, d)),
                inverse: None,
                mean: with_means.then(|| floats(self.heads.iter().flat_map(|head| &head.mean))),
                clip,
                segments: chosen.map(|allocation| allocation.segments.clone()),
            },
            bases: self.bases,
        })
    }
}

/// The basis of a group of heads, columns in the order of the codes: by importance for
/// `transform_coded`, by eigenvalue, largest first, for `oscar`.
fn basis(queries: &[f64], keys: &[f64], d: usize, options: &SolveOptions) -> Result<Vec<f64>> {
    let target = match options.key_target {
        KeyTarget::Queries => queries,
        KeyTarget::Keys => keys,
    };
    let (vectors, values) = if options.eigenbasis {
        let found = eigen(target, d)?;
        (found.vectors, found.values)
    } else {
        (identity(d), diagonal_in(&identity(d), target, d))
    };
    let importance = match options.target {
        Target::Oscar => values,
        Target::TransformCoded => {
            let damping = options.damping * trace(queries, d) / d as f64;
            let energy = diagonal_in(&vectors, queries, d);
            let variance = diagonal_in(&vectors, keys, d);
            let channels = energy.iter().zip(&variance);
            channels.map(|(e, v)| (e + damping) * v).collect()
        }
    };
    let mut order: Vec<usize> = (0..d).collect();
    order.sort_by(|&a, &b| importance[b].total_cmp(&importance[a]));
    Ok(reordered(&vectors, &order, d))
}

fn channels(basis: &[f64], head: &Head, d: usize, damping: f64) -> Channels {
    let damping = damping * trace(&head.queries, d) / d as f64;
    let positive = |x: f64| x.max(0.0);
    let of = |matrix: &[f64]| diagonal_in(basis, matrix, d).into_iter().map(positive);
    Channels {
        variance: of(&head.keys).collect(),
        energy: of(&head.queries).map(|e| e + damping).collect(),
    }
}

/// `U H P` of a basis whose columns are sorted by eigenvalue, largest first.
pub(super) fn oscar_transform(basis: &[f64], d: usize, options: &SolveOptions) -> Vec<f64> {
    if !options.eigenbasis && !options.hadamard && !options.reversal {
        return identity(d);
    }
    // OSCAR's U has its eigenvalues in ascending order; without one there is nothing to order.
    let mut matrix = if options.eigenbasis {
        let ascending: Vec<usize> = (0..d).rev().collect();
        reordered(basis, &ascending, d)
    } else {
        identity(d)
    };
    if options.hadamard {
        let hadamard: Vec<f64> = hadamard(d).into_iter().map(f64::from).collect();
        matrix = product(&matrix, &hadamard, d);
    }
    match bit_reversal(d).filter(|_| options.reversal) {
        Some(order) => reordered(&matrix, &order, d),
        None => matrix,
    }
}

/// The sorted basis times a Hadamard matrix inside each segment. Lengths that are no power of two
/// are split into powers of two, largest first.
pub(super) fn segment_transform(
    basis: &[f64],
    segments: &[Segment],
    d: usize,
    options: &SolveOptions,
) -> Vec<f64> {
    if !options.hadamard {
        return basis.to_vec();
    }
    let mut blocks = vec![0.0; d * d];
    let mut start = 0;
    for segment in segments {
        let mut left = segment.sixteenths * d / 16;
        while left > 0 {
            let size = 1 << left.ilog2();
            for (i, x) in hadamard(size).into_iter().enumerate() {
                blocks[(start + i / size) * d + start + i % size] = f64::from(x);
            }
            start += size;
            left -= size;
        }
    }
    product(basis, &blocks, d)
}

/// Share of the importance in each segment.
fn shares(channels: &Channels, segments: &[Segment]) -> Vec<f64> {
    let d = channels.variance.len();
    let importance: Vec<f64> = channels
        .variance
        .iter()
        .zip(&channels.energy)
        .map(|(v, e)| v * e)
        .collect();
    let total: f64 = importance.iter().sum();
    let mut start = 0;
    let share = |segment: &Segment| {
        let end = start + segment.sixteenths * d / 16;
        let part: f64 = importance[start..end].iter().sum();
        start = end;
        if total > 0.0 { part / total } else { 0.0 }
    };
    segments.iter().map(share).collect()
}

/// Sampled tokens as they are coded.
pub(super) fn coded_tokens<'a>(
    tokens: impl Iterator<Item = (&'a [f32], f64)>,
    mean: Option<&[f64]>,
    transform: &[f64],
) -> CodedTokens {
    let (mut vectors, mut weights) = (Vec::new(), Vec::new());
    for (token, weight) in tokens {
        let d = token.len();
        let mut turned = vec![0.0; d];
        for (i, row) in transform.chunks_exact(d).enumerate() {
            let x = f64::from(token[i]) - mean.map_or(0.0, |mean| mean[i]);
            turned.iter_mut().zip(row).for_each(|(y, a)| *y += x * a);
        }
        vectors.push(turned);
        weights.push(weight);
    }
    CodedTokens {
        vectors,
        weights,
        metric: None,
    }
}

/// f32 matrices, one for all heads or one for each.
pub(super) fn matrices(transforms: &[Vec<f64>], d: usize) -> Matrices {
    Matrices::per_head(transforms.len(), d, floats(transforms.iter().flatten()))
}

pub(super) fn floats<'a>(numbers: impl Iterator<Item = &'a f64>) -> Vec<f32> {
    numbers.map(|x| *x as f32).collect()
}
