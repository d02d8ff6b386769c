//! Which channels get how many bits.
//!
//! Channels are sorted by importance and cut into segments of one number of bits each. Inside a
//! segment a Hadamard matrix spreads variances and errors evenly, so a segment of n channels with
//! variances σ² and query energies λ adds about
//!
//! ```text
//! D(b) n mean(σ²) mean(λ),    and Σ σ² λ at 0 bits, where channels are dropped and not mixed,
//! ```
//!
//! to the mean squared error of the logits, with D(b) the distortion of a Gaussian. There are 4,845
//! ways to share out 16 sixteenths among 0 to 4 bits: all are tried.

use crate::quantizer::{ChannelBits, PageSpec, Quantizer, Role, Segment};

/// Mean squared error of a normal number at 0 to 4 bits: D / (1 - D) with D that of the best uniform
/// quantiser (Max, 1960), since the gain undoes its shrinking and enlarges the error by as much.
const DISTORTION: [f64; 5] = [1.0, 0.570_8, 0.134_8, 0.038_9, 0.011_67];
const SIXTEENTHS: usize = 16;

/// One head's channels, most important first.
#[derive(Clone, Debug)]
pub(super) struct Channels {
    /// Variance of the keys along each.
    pub variance: Vec<f64>,
    /// Mean square of the queries along each.
    pub energy: Vec<f64>,
}

/// A way to spend bits, what it costs and what error it leaves.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Allocation {
    pub segments: Vec<Segment>,
    /// Bits per value, with the 8-bit scales, as the packer counts.
    pub bits: f64,
    /// Mean squared logit error, added up over the heads.
    pub error: f64,
}

impl Allocation {
    pub fn of(segments: &[Segment], heads: &[Channels], quantizer: &Quantizer) -> Self {
        let head_dim = heads[0].variance.len();
        Self {
            bits: packed_bits(segments, quantizer, head_dim),
            error: heads.iter().map(|head| logit_error(segments, head)).sum(),
            segments: segments.to_vec(),
        }
    }

    /// All ways to spend bits on a layer.
    pub fn all(heads: &[Channels], quantizer: &Quantizer) -> Vec<Self> {
        shares()
            .into_iter()
            .map(|segments| Self::of(&segments, heads, quantizer))
            .collect()
    }
}

/// Every way to share out the sixteenths, most bits first, but for no bits at all.
fn shares() -> Vec<Vec<Segment>> {
    let mut shares = Vec::new();
    for four in 0..=SIXTEENTHS {
        for three in 0..=SIXTEENTHS - four {
            for two in 0..=SIXTEENTHS - four - three {
                for one in 0..=SIXTEENTHS - four - three - two {
                    let none = SIXTEENTHS - four - three - two - one;
                    let counts = [(four, 4), (three, 3), (two, 2), (one, 1), (none, 0)];
                    let there = counts.into_iter().filter(|(count, _)| *count > 0);
                    if none < SIXTEENTHS {
                        let share = there.map(|(count, bits)| Segment::new(count, bits));
                        shares.push(share.collect());
                    }
                }
            }
        }
    }
    shares
}

fn packed_bits(segments: &[Segment], quantizer: &Quantizer, head_dim: usize) -> f64 {
    let quantizer = Quantizer {
        bits: ChannelBits::Segments(segments.to_vec().into()),
        ..quantizer.clone()
    };
    let tokens = quantizer.page_tokens();
    let spec = PageSpec::new(&quantizer, Role::Key, head_dim, tokens);
    let words = spec.code_words() + spec.scale_words();
    32.0 * words as f64 / (tokens * head_dim) as f64
}

fn logit_error(segments: &[Segment], channels: &Channels) -> f64 {
    let d = channels.variance.len();
    let mut start = 0;
    let mut error = 0.0;
    for segment in segments {
        let range = start..start + segment.sixteenths * d / SIXTEENTHS;
        let (variance, energy) = (
            &channels.variance[range.clone()],
            &channels.energy[range.clone()],
        );
        error += if segment.bits == 0 {
            variance.iter().zip(energy).map(|(v, e)| v * e).sum::<f64>()
        } else {
            let sums = variance.iter().sum::<f64>() * energy.iter().sum::<f64>();
            DISTORTION[usize::from(segment.bits)] * sums / range.len() as f64
        };
        start = range.end;
    }
    error
}

/// The smallest error within `bits` per value; the cheapest where the budget is below all.
pub(super) fn within(options: &[Allocation], bits: f64) -> &Allocation {
    let affordable = options.iter().filter(|option| option.bits <= bits + 1e-9);
    affordable
        .min_by(|a, b| a.error.total_cmp(&b.error).then(a.bits.total_cmp(&b.bits)))
        .unwrap_or_else(|| cheapest(options))
}

fn cheapest(options: &[Allocation]) -> &Allocation {
    let order = |a: &&Allocation, b: &&Allocation| {
        a.bits.total_cmp(&b.bits).then(a.error.total_cmp(&b.error))
    };
    // There are thousands, see `shares`.
    options.iter().min_by(order).unwrap_or(&options[0])
}

/// One allocation for each layer, whose bits are at most `bits` on average: every step of more
/// bits goes to the layer where it saves most error per bit.
pub(super) fn across_layers(layers: &[Vec<Allocation>], bits: f64) -> Vec<Allocation> {
    let mut chosen: Vec<&Allocation> = layers.iter().map(|options| cheapest(options)).collect();
    let mut left = bits * layers.len() as f64 - chosen.iter().map(|c| c.bits).sum::<f64>();
    loop {
        let mut best: Option<(f64, usize, &Allocation)> = None;
        for (layer, options) in layers.iter().enumerate() {
            let now = chosen[layer];
            for option in options {
                let (cost, gain) = (option.bits - now.bits, now.error - option.error);
                if cost > 1e-12 && cost <= left + 1e-9 && gain > 0.0 {
                    let rate = gain / cost;
                    if best.is_none_or(|(found, _, _)| rate > found) {
                        best = Some((rate, layer, option));
                    }
                }
            }
        }
        let Some((_, layer, option)) = best else {
            return chosen.into_iter().cloned().collect();
        };
        left -= option.bits - chosen[layer].bits;
        chosen[layer] = option;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::{FOUR_TWO_NONE, centred as quantizer};

    fn channels(decay: f64) -> Channels {
        let variance: Vec<f64> = (0..64).map(|i| (-decay * f64::from(i)).exp()).collect();
        Channels {
            energy: variance.clone(),
            variance,
        }
    }

    #[test]
    fn bits_are_those_of_the_packer() {
        let spent = Allocation::of(FOUR_TWO_NONE, &[channels(0.1)], &quantizer());
        assert_eq!(spent.bits, 2.25);
        assert_eq!(shares().len(), 4844);
    }

    #[test]
    fn steep_spectra_get_steep_allocations_and_never_more_error() {
        for decay in [0.0, 0.02, 0.1, 0.5] {
            let heads = [channels(decay), channels(decay * 1.5)];
            let options = Allocation::all(&heads, &quantizer());
            let fixed = Allocation::of(FOUR_TWO_NONE, &heads, &quantizer());
            let found = within(&options, fixed.bits);
            assert!(found.error <= fixed.error && found.bits <= fixed.bits);
            if decay == 0.0 {
                assert_eq!(found.segments, [Segment::new(16, 2)]);
            }
        }
    }

    #[test]
    fn layers_share_a_budget() {
        let of = |decay, size: f64| {
            let mut channels = channels(decay);
            channels.variance.iter_mut().for_each(|v| *v *= size);
            Allocation::all(&[channels], &quantizer())
        };
        let layers = [of(0.1, 1.0), of(0.1, 1000.0)];
        let chosen = across_layers(&layers, 2.5);
        let bits: Vec<f64> = chosen.iter().map(|c| c.bits).collect();
        assert!(
            bits[0] < bits[1] && bits.iter().sum::<f64>() <= 5.0 + 1e-9,
            "{bits:?}"
        );
        let even: f64 = layers
            .iter()
            .map(|options| within(options, 2.5).error)
            .sum();
        assert!(chosen.iter().map(|c| c.error).sum::<f64>() <= even);
    }
}
