//! What a pack kernel is compiled for.

use burn::tensor::DType;

use crate::quantizer::layout::CHUNK_TOKENS;
use crate::quantizer::{ChannelBits, GroupAxis, PageSpec, Role, Rounding};

/// Parts of a chunk that are reduced on their own, 8 tokens each.
pub const PARTS: usize = 8;

/// Channels with parameters of their own, in quads of four channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// First quad of the head.
    pub first: usize,
    /// The quad after the last.
    pub end: usize,
    /// Bits of a code.
    pub bits: u32,
}

/// A plane of two-bit fields, in quads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuadPlane {
    /// First quad of the head.
    pub first: usize,
    /// First quad among the virtual channels.
    pub stored: usize,
    /// Quads.
    pub quads: usize,
    /// The lowest bit of the code in this plane.
    pub shift: u32,
}

/// A [`PageSpec`] as the kernels want it: everything here is known when a kernel is compiled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recipe {
    /// Keys or values.
    pub role: Role,
    /// The rounding rule.
    pub rounding: Rounding,
    /// Quads of a head.
    pub quads: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Tokens that share parameters: 1, or 16, 32 or 64 with groups along a channel.
    pub token_group: usize,
    /// Groups of channels; one for all with groups along a channel.
    pub groups: Vec<Group>,
    /// Planes in storage order.
    pub planes: Vec<QuadPlane>,
    /// Words of codes in a chunk.
    pub chunk_words: usize,
    /// Words of codes in a page and KV head.
    pub code_words: usize,
    /// Place of the clip among the sorted magnitudes of a token.
    pub clip: Option<usize>,
    /// Low bits of an f32 magnitude that are always 0 in the input.
    pub zero_bits: u32,
    /// Whether tokens are divided by their norms.
    pub token_norm: bool,
    /// Whether the mean of the page is taken off.
    pub page_mean: bool,
    /// Units that work on one token.
    pub lanes: usize,
    /// See [`Device`].
    pub plain_sums: bool,
}

/// What a kernel is compiled for besides the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Units that work on one token, 1 where units cannot shuffle.
    pub lanes: usize,
    /// The compiler adds floats in the order that is written.
    pub plain_sums: bool,
}

impl Recipe {
    /// The recipe of a page spec for vectors of `dtype`, or what the kernels do not cover.
    pub fn new(spec: &PageSpec, dtype: DType, device: Device) -> Result<Self, String> {
        let quantizer = &spec.quantizer;
        let fail = |reason: &str| Err(format!("packing {reason}"));
        if spec.planes.iter().any(|plane| plane.width != 2) {
            return fail("codes with an odd number of bits");
        }
        let odd = |count: usize| !count.is_multiple_of(4);
        if odd(spec.head_dim) || spec.planes.iter().any(|p| odd(p.start | p.channels)) {
            return fail("channels that are no multiple of 4");
        }
        if quantizer.token_norm && quantizer.page_mean {
            return fail("token norms of centred pages");
        }
        if quantizer.axis == GroupAxis::Channel && quantizer.clip.is_some() {
            return fail("clipped groups along channels");
        }
        let channel_group = spec.channel_group();
        let groups: Vec<Group> = match (&quantizer.bits, quantizer.rounding, quantizer.axis) {
            (_, Rounding::MidRise, _) => (spec.segments.iter())
                .map(|segment| Group {
                    first: segment.start / 4,
                    end: (segment.start + segment.channels) / 4,
                    bits: segment.bits.into(),
                })
                .collect(),
            (ChannelBits::Uniform(bits), _, GroupAxis::Channel) => vec![Group {
                first: 0,
                end: spec.head_dim / 4,
                bits: u32::from(*bits),
            }],
            (ChannelBits::Uniform(bits), _, GroupAxis::Token) => {
                if odd(channel_group) {
                    return fail("groups of channels that are no multiple of 4");
                }
                (0..spec.head_dim / 4)
                    .step_by(channel_group / 4)
                    .map(|first| Group {
                        first,
                        end: first + channel_group / 4,
                        bits: u32::from(*bits),
                    })
                    .collect()
            }
            (ChannelBits::Segments(_), ..) => return fail("affine segments"),
        };
        let mut stored = 0;
        let planes = (spec.planes.iter())
            .map(|plane| {
                let quads = plane.channels / 4;
                stored += quads;
                QuadPlane {
                    first: plane.start / 4,
                    stored: stored - quads,
                    quads,
                    shift: plane.shift,
                }
            })
            .collect();
        let derived = quantizer.page_mean || quantizer.token_norm;
        Ok(Self {
            role: spec.role,
            rounding: quantizer.rounding,
            quads: spec.head_dim / 4,
            page_tokens: spec.page_tokens,
            token_group: spec.token_group(),
            groups,
            planes,
            chunk_words: spec.code_words() / spec.chunks(),
            code_words: spec.code_words(),
            clip: quantizer.clip.map(|clip| {
                let place = (f64::from(clip) * spec.head_dim as f64) as usize;
                place.min(spec.head_dim - 1)
            }),
            zero_bits: match dtype {
                DType::BF16 if !derived => 16,
                DType::F16 if !derived => 13,
                _ => 0,
            },
            token_norm: quantizer.token_norm,
            page_mean: quantizer.page_mean,
            lanes: device.lanes,
            plain_sums: device.plain_sums,
        })
    }

    /// Registers of four channels that a unit needs for its share of a token.
    pub fn share(&self) -> usize {
        self.quads.div_ceil(self.lanes)
    }

    /// Whether every unit of a token has work in all its registers of these quads.
    pub fn even(&self, group: Group) -> bool {
        group.first.is_multiple_of(self.lanes) && group.end.is_multiple_of(self.lanes)
    }

    /// Chunks of a page.
    pub fn chunks(&self) -> usize {
        self.page_tokens / CHUNK_TOKENS
    }

    /// Whether groups run along a channel.
    pub fn along_channel(&self) -> bool {
        self.token_group > 1
    }

    /// Words between the codes of two tokens in shared memory; the odd ones out keep the units
    /// that gather words off each other's banks.
    pub fn stride(&self) -> usize {
        self.quads + 4
    }

    /// Parameters of a chunk: pairs, or bytes of scales.
    pub fn parameters(&self) -> usize {
        match self.along_channel() {
            true => CHUNK_TOKENS / self.token_group * self.quads * 4,
            false => CHUNK_TOKENS * self.groups.len(),
        }
    }

    /// Quads of the partial results of a chunk's parts.
    pub fn partials(&self) -> usize {
        match self.along_channel() || self.page_mean {
            true => PARTS * self.quads,
            false => 1,
        }
    }

    /// Bytes of shared memory.
    pub fn shared_bytes(&self) -> usize {
        let mean = if self.page_mean { self.quads } else { 1 };
        4 * (CHUNK_TOKENS * self.stride() + self.parameters()) + 16 * (2 * self.partials() + mean)
    }

    /// Whether mid-rise codes are used: 8-bit scales in place of pairs.
    pub fn midrise(&self) -> bool {
        self.rounding == Rounding::MidRise
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::method::Method;
    use crate::quantizer::Segment;

    fn specs(method: &Method, head_dim: usize) -> Vec<PageSpec> {
        [
            (method.key_side(), Role::Key),
            (method.value_side(), Role::Value),
        ]
        .into_iter()
        .filter_map(|(side, role)| {
            let quantizer = side.quantizer.as_ref()?;
            Some(PageSpec::new(
                quantizer,
                role,
                head_dim,
                method.page_tokens(),
            ))
        })
        .collect()
    }

    #[test]
    fn every_preset_has_kernels() {
        for name in Method::PRESETS
            .iter()
            .filter(|name| !Method::needs_calibration(name))
        {
            for bits in [2, 4, 8] {
                let method = Method::preset(name).unwrap().with_bits(bits).unwrap();
                for head_dim in [16, 64, 80, 96, 128, 192, 256] {
                    for spec in specs(&method, head_dim) {
                        for lanes in [1, 8] {
                            let device = Device {
                                lanes,
                                plain_sums: true,
                            };
                            let recipe = Recipe::new(&spec, DType::BF16, device).unwrap();
                            assert!(recipe.shared_bytes() <= 48 << 10, "{name} {head_dim}");
                            let stored: usize = recipe.planes.iter().map(|p| p.quads).sum();
                            assert!(stored * 4 <= spec.virtual_channels);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_covered_says_so() {
        let mut spec = specs(&Method::hadamard_centred(), 64).remove(0);
        let quantizer = &mut spec.quantizer;
        quantizer.bits = ChannelBits::Segments(Cow::Owned(vec![Segment::new(16, 3)]));
        let spec = PageSpec::new(&spec.quantizer, spec.role, 64, spec.page_tokens);
        let device = Device {
            lanes: 1,
            plain_sums: false,
        };
        let reason = Recipe::new(&spec, DType::F32, device).unwrap_err();
        assert!(reason.contains("odd number of bits"), "{reason}");
    }
}
