//! What a kernel is specialised by: a page's recipe and sizes as compile-time data.

use crate::quantizer::{ChannelBits, GroupAxis, PageSpec, Role, Rounding, layout};

/// How the pages of one side are stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Store {
    /// Vectors in the activation dtype.
    Exact,
    /// Bits.
    Packed(PackedSide),
}

/// A plane of codes: two bits (or one) of each code of some channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlaneSide {
    /// First virtual channel of the chunk.
    pub first: usize,
    /// First channel of the head.
    pub start: usize,
    pub channels: usize,
    /// Place of the plane's lowest bit in the code.
    pub shift: usize,
    pub width: usize,
}

/// Channels that share one scale within a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartSide {
    pub start: usize,
    pub channels: usize,
    pub bits: usize,
}

/// What stands beside the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parameters {
    /// An f16 (scale, offset) pair for each part of each token.
    TokenPairs,
    /// An f16 (scale, offset) pair for each channel of each group of tokens.
    ChannelPairs {
        /// 16, 32 or 64.
        tokens: usize,
    },
    /// An 8-bit scale for each part of each token, codes around zero.
    Scales,
}

/// One packed side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PackedSide {
    pub is_key: bool,
    pub head_dim: usize,
    pub page_tokens: usize,
    pub virtual_channels: usize,
    pub planes: Vec<PlaneSide>,
    /// In the order of their parameters.
    pub parts: Vec<PartSide>,
    pub parameters: Parameters,
    pub norms: bool,
    pub means: bool,
}

impl PackedSide {
    pub fn new(spec: &PageSpec) -> Self {
        let mut first = 0;
        let planes = spec.planes.iter().map(|plane| {
            let side = PlaneSide {
                first,
                start: plane.start,
                channels: plane.channels,
                shift: plane.shift as usize,
                width: plane.width as usize,
            };
            first += plane.virtual_channels();
            side
        });
        let planes = planes.collect();
        let quantizer = &spec.quantizer;
        let parameters = match (quantizer.rounding, quantizer.axis) {
            (Rounding::MidRise, _) => Parameters::Scales,
            (_, GroupAxis::Token) => Parameters::TokenPairs,
            (_, GroupAxis::Channel) => Parameters::ChannelPairs {
                tokens: spec.token_group(),
            },
        };
        let parts = match (parameters, &quantizer.bits) {
            (Parameters::TokenPairs, ChannelBits::Uniform(bits)) => (0..spec.head_dim)
                .step_by(spec.channel_group())
                .map(|start| PartSide {
                    start,
                    channels: spec.channel_group(),
                    bits: usize::from(*bits),
                })
                .collect(),
            _ => spec
                .segments
                .iter()
                .map(|segment| PartSide {
                    start: segment.start,
                    channels: segment.channels,
                    bits: usize::from(segment.bits),
                })
                .collect(),
        };
        Self {
            is_key: spec.role == Role::Key,
            head_dim: spec.head_dim,
            page_tokens: spec.page_tokens,
            virtual_channels: spec.virtual_channels,
            planes,
            parts,
            parameters,
            norms: quantizer.token_norm,
            means: quantizer.page_mean,
        }
    }

    /// u32 words of codes in a chunk.
    pub fn chunk_words(&self) -> usize {
        layout::chunk_words(self.virtual_channels)
    }

    pub fn chunks(&self) -> usize {
        self.page_tokens / layout::CHUNK_TOKENS
    }

    /// u32 words of a page and KV head: codes, then 8-bit scales.
    pub fn row_words(&self) -> usize {
        let scales = match self.parameters {
            Parameters::Scales => self.parts.len() * self.page_tokens / 4,
            _ => 0,
        };
        self.chunks() * self.chunk_words() + scales
    }

    /// Pairs of a page and KV head.
    pub fn row_pairs(&self) -> usize {
        match self.parameters {
            Parameters::Scales => 0,
            Parameters::TokenPairs => self.page_tokens * self.parts.len(),
            Parameters::ChannelPairs { tokens } => self.page_tokens / tokens * self.head_dim,
        }
    }
}

impl Store {
    /// The packed side; kernels ask only where there is one.
    pub fn packed(&self) -> Option<&PackedSide> {
        match self {
            Store::Exact => None,
            Store::Packed(side) => Some(side),
        }
    }
}
