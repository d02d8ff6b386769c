//! How vectors become bits: groups, rounding, clipping, parameters and packing.
//!
//! [`Quantizer`] is data. [`layout`] says where each two-bit field lies, [`PageSpec`] how large
//! the parts of a page are; the arithmetic itself is in `backend::portable`, made of Burn
//! operations.

pub mod layout;
mod scale8;
mod spec;

use std::borrow::Cow;

pub use scale8::{SCALE8_MAX, decode_scale8, encode_scale8};
pub use spec::{PageSpec, Role, SegmentSpec};

use crate::error::{Error, Result};
use layout::CHUNK_TOKENS;

/// Tokens that share one page mean.
pub const MEAN_TOKENS: usize = 256;

/// What the elements that share one scale have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupAxis {
    /// Consecutive channels of one token.
    Token,
    /// Consecutive tokens of one channel.
    Channel,
}

/// How a value becomes a code, and what is stored beside the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// OSCAR: real-valued zero, half rounds up; `code = floor((x - min) / scale + 1/2)`. An f16
    /// scale and minimum per group, rounded after coding.
    HalfUp,
    /// KIVI: an f16 scale and minimum, rounded before coding; half rounds to even.
    HalfEven,
    /// OScaR: the zero is rounded to an integer, half rounds to even; a group of zeros is exact.
    /// An f16 scale and offset per group.
    HalfEvenIntegerZero,
    /// `x = scale (code - (2^bits - 1) / 2)`: no offset, one 8-bit scale per token and segment,
    /// corrected so that the coded vector is not shrunk (the gain).
    MidRise,
}

/// A run of channels, in the order of the transform's output, with its own bits and scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Length in sixteenths of head_dim.
    pub sixteenths: usize,
    /// Bits per channel, 0 to 4; none at 0 are stored.
    pub bits: u8,
}

impl Segment {
    /// `sixteenths` of head_dim at `bits` bits.
    pub const fn new(sixteenths: usize, bits: u8) -> Self {
        Self { sixteenths, bits }
    }
}

/// Bits of each channel.
#[derive(Clone, Debug, PartialEq)]
pub enum ChannelBits {
    /// The same for all: 2, 4 or 8.
    Uniform(u8),
    /// By segment; the lengths add up to 16 sixteenths. Only with [`Rounding::MidRise`].
    Segments(Cow<'static, [Segment]>),
}

/// How a page of one side is packed.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantizer {
    /// The direction of a group.
    pub axis: GroupAxis,
    /// Elements that share parameters: channels (the largest common divisor with head_dim is
    /// taken; `None` is the whole head) or tokens (16, 32 or 64).
    pub group_size: Option<usize>,
    /// Bits per channel.
    pub bits: ChannelBits,
    /// The rounding rule and what it stores.
    pub rounding: Rounding,
    /// Each token's elements are clamped to this quantile of their magnitudes, in (0, 1).
    pub clip: Option<f32>,
    /// Each token is divided by its norm over all KV heads, stored as one f16.
    pub token_norm: bool,
    /// The mean of each page is removed first and stored as one f16 per channel.
    pub page_mean: bool,
}

impl Quantizer {
    /// Tokens of a page: 64, or 256 with page means.
    pub fn page_tokens(&self) -> usize {
        if self.page_mean {
            MEAN_TOKENS
        } else {
            CHUNK_TOKENS
        }
    }

    /// The segments as (channels, bits), in order.
    pub(crate) fn segments(&self, head_dim: usize) -> Vec<(usize, u8)> {
        match &self.bits {
            ChannelBits::Uniform(bits) => vec![(head_dim, *bits)],
            ChannelBits::Segments(segments) => segments
                .iter()
                .map(|segment| (segment.sixteenths * head_dim / 16, segment.bits))
                .collect(),
        }
    }

    /// Whether the parts fit together.
    pub(crate) fn validate(&self, method: &str) -> Result<()> {
        let fail = |reason: String| {
            Err(Error::Method {
                method: method.to_string(),
                reason,
            })
        };
        match &self.bits {
            ChannelBits::Uniform(2 | 4 | 8) => {}
            ChannelBits::Uniform(bits) => {
                return fail(format!(
                    "{bits} bits per channel: codes have 2, 4 or 8 bits"
                ));
            }
            ChannelBits::Segments(segments) => {
                if self.rounding != Rounding::MidRise {
                    return fail("segments of channels need mid-rise codes".into());
                }
                let total: usize = segments.iter().map(|s| s.sixteenths).sum();
                if total != 16 || segments.iter().any(|s| s.bits > 4 || s.sixteenths == 0) {
                    return fail(format!(
                        "segments {segments:?}: they must add up to 16 sixteenths of head_dim, \
                         each of 0 to 4 bits"
                    ));
                }
            }
        }
        if self.rounding == Rounding::MidRise
            && (self.axis != GroupAxis::Token || self.group_size.is_some())
        {
            return fail("mid-rise codes have one group per token and segment".into());
        }
        if self.axis == GroupAxis::Channel && !matches!(self.group_size, Some(16 | 32 | 64)) {
            let size = self
                .group_size
                .map_or("all".into(), |size| size.to_string());
            return fail(format!(
                "groups of {size} tokens: 16, 32 or 64 divide a page"
            ));
        }
        if self.group_size == Some(0) {
            return fail("groups of 0 channels: give at least 1".into());
        }
        match self.clip {
            Some(clip) if !(clip > 0.0 && clip < 1.0) => {
                fail(format!("clip {clip}: a quantile lies between 0 and 1"))
            }
            _ => Ok(()),
        }
    }
}
