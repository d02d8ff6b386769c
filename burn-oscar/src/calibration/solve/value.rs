//! The values of one layer.

use super::clip;
use super::key::{SolvedSide, coded_tokens, floats, matrices, oscar_transform};
use super::matrix::{eigen, identity, mean, reordered};
use super::{Centring, Clips, SolveOptions, Target, ValueTarget};
use crate::calibration::SideCalibration;
use crate::calibration::statistics::{HeadStatistics, LayerStatistics, Moments};
use crate::error::{Error, Result};

/// The values' transforms, means and clip. Values carry no positions: nothing is extended.
pub(super) fn solve(
    index: usize,
    layer: &LayerStatistics,
    d: usize,
    options: &SolveOptions,
) -> Result<SolvedSide> {
    let centred = options.centring == Centring::Mean;
    let means: Vec<Vec<f64>> = layer.heads.iter().map(|head| head.values.mean()).collect();
    let mean_of = |head: usize| centred.then(|| &means[head][..]);
    let mut side = SideCalibration {
        mean: centred.then(|| floats(means.iter().flatten())),
        ..SideCalibration::default()
    };
    if options.target == Target::TransformCoded {
        return Ok(SolvedSide {
            side,
            bases: Vec::new(),
        });
    }
    let targets = layer
        .heads
        .iter()
        .enumerate()
        .map(|(i, head)| {
            let moments = target(head, options.value_target);
            if moments.weight() <= 0.0 {
                let reason = format!(
                    "layer {index}, KV head {i} has seen no values past the sinks: observe longer \
                     texts"
                );
                return Err(Error::Calibration { reason });
            }
            Ok(about(moments, mean_of(i), d))
        })
        .collect::<Result<Vec<_>>>()?;
    let targets = if options.per_head {
        targets
    } else {
        vec![mean(targets.iter())]
    };
    let bases = targets
        .iter()
        .map(|target| {
            if !options.eigenbasis {
                return Ok(identity(d));
            }
            let descending: Vec<usize> = (0..d).rev().collect();
            Ok(reordered(&eigen(target, d)?.vectors, &descending, d))
        })
        .collect::<Result<Vec<_>>>()?;
    let transforms: Vec<_> = bases
        .iter()
        .map(|basis| oscar_transform(basis, d, options))
        .collect();
    side.transform = Some(matrices(&transforms, d));
    side.clip = match options.clips {
        Clips::Fixed { value, .. } => Some(value),
        Clips::Searched => {
            let coded = |head: usize| {
                let tokens = layer.sample(head).map(|token| (token.value, token.weight));
                let transform = &transforms[head.min(transforms.len() - 1)];
                coded_tokens(tokens, mean_of(head), transform)
            };
            clip::search(&(0..layer.heads.len()).map(coded).collect::<Vec<_>>())
        }
    };
    Ok(SolvedSide { side, bases })
}

fn target(head: &HeadStatistics, target: ValueTarget) -> &Moments {
    match target {
        ValueTarget::Attended => &head.attended,
        ValueTarget::Proxy => &head.proxy,
        ValueTarget::Values => &head.values,
    }
}

/// The second moment about `mean`, which need not be that of the same weights.
fn about(moments: &Moments, mean: Option<&[f64]>, d: usize) -> Vec<f64> {
    let mut second = moments.second();
    if let Some(mean) = mean {
        let own = moments.mean();
        for i in 0..d {
            for j in 0..d {
                second[i * d + j] += mean[i] * mean[j] - own[i] * mean[j] - mean[i] * own[j];
            }
        }
    }
    second
}
