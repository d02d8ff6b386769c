//! The sizes of a page's parts, worked out once from a quantiser and a head.

use super::layout::{self, CHUNK_TOKENS, Plane};
use super::{GroupAxis, Quantizer, Rounding, SCALE8_MAX};

/// Which side of the cache a page belongs to; the two are packed in different orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Packed for the product with queries.
    Key,
    /// Packed for the product with attention weights.
    Value,
}

/// A segment with its place in the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSpec {
    /// First channel, in the order of the transform's output.
    pub start: usize,
    /// Channels.
    pub channels: usize,
    /// Bits per channel.
    pub bits: u8,
}

/// Everything that packing and reading a page of one side needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct PageSpec {
    /// The recipe.
    pub quantizer: Quantizer,
    /// Keys or values.
    pub role: Role,
    /// Channels of a head.
    pub head_dim: usize,
    /// Tokens of a page, a multiple of 64.
    pub page_tokens: usize,
    /// Segments that are stored, in order.
    pub segments: Vec<SegmentSpec>,
    /// Planes of all segments, in storage order.
    pub planes: Vec<Plane>,
    /// Two-bit fields per token.
    pub virtual_channels: usize,
}

impl PageSpec {
    /// The sizes for pages of `page_tokens` tokens and `head_dim` channels.
    pub fn new(quantizer: &Quantizer, role: Role, head_dim: usize, page_tokens: usize) -> Self {
        let lengths = quantizer.segments(head_dim);
        let planes = layout::planes(&lengths);
        let mut start = 0;
        let mut segments = Vec::new();
        for (channels, bits) in lengths {
            if bits > 0 {
                segments.push(SegmentSpec {
                    start,
                    channels,
                    bits,
                });
            }
            start += channels;
        }
        Self {
            quantizer: quantizer.clone(),
            role,
            head_dim,
            page_tokens,
            virtual_channels: layout::virtual_channels(&planes),
            segments,
            planes,
        }
    }

    /// Chunks of 64 tokens in a page.
    pub fn chunks(&self) -> usize {
        self.page_tokens / CHUNK_TOKENS
    }

    /// u32 words of codes in a page and KV head.
    pub fn code_words(&self) -> usize {
        self.chunks() * layout::chunk_words(self.virtual_channels)
    }

    /// u32 words of 8-bit scales in a page and KV head, after the codes: for each segment and
    /// chunk, four slots of tokens in a word, lowest byte first.
    pub fn scale_words(&self) -> usize {
        match self.quantizer.rounding {
            Rounding::MidRise => self.segments.len() * self.page_tokens / 4,
            _ => 0,
        }
    }

    /// Channels that share parameters within a token.
    pub fn channel_group(&self) -> usize {
        match (self.quantizer.axis, self.quantizer.group_size) {
            (GroupAxis::Channel, _) => 1,
            (GroupAxis::Token, None) => self.head_dim,
            (GroupAxis::Token, Some(size)) => greatest_common_divisor(size, self.head_dim),
        }
    }

    /// Tokens that share parameters within a channel.
    pub fn token_group(&self) -> usize {
        match self.quantizer.axis {
            GroupAxis::Token => 1,
            GroupAxis::Channel => self.quantizer.group_size.unwrap_or(CHUNK_TOKENS),
        }
    }

    /// f16 numbers of affine parameters in a page and KV head: (scale, offset) pairs by token
    /// group (single tokens in row order), then channel group.
    pub fn pair_numbers(&self) -> usize {
        match self.quantizer.rounding {
            Rounding::MidRise => 0,
            _ => {
                2 * (self.page_tokens / self.token_group()) * (self.head_dim / self.channel_group())
            }
        }
    }

    /// The largest magnitude, after the transform, that the stored parameters represent, and
    /// what limits it.
    pub fn max_magnitude(&self, kv_heads: usize) -> (f32, &'static str) {
        let f16 = half::f16::MAX.to_f32();
        if self.quantizer.rounding == Rounding::MidRise {
            let levels = self
                .segments
                .iter()
                .map(|s| 1u32 << s.bits)
                .min()
                .unwrap_or(2);
            let limit = SCALE8_MAX * levels as f32 / 2.0;
            // A token may lie twice as far from the mean of its page as from zero.
            let limit = if self.quantizer.page_mean {
                limit / 2.0
            } else {
                limit
            };
            (limit, "8-bit scales")
        } else if self.quantizer.token_norm {
            let elements = (kv_heads * self.head_dim) as f32;
            (f16 / elements.sqrt(), "f16 token norms")
        } else {
            (f16, "f16 parameters")
        }
    }

    /// Bytes of one page over all KV heads: codes, scales, pairs, norms and means.
    pub fn page_bytes(&self, kv_heads: usize) -> usize {
        let words = self.code_words() + self.scale_words();
        let mean = if self.quantizer.page_mean {
            self.head_dim
        } else {
            0
        };
        let norms = if self.quantizer.token_norm {
            self.page_tokens
        } else {
            0
        };
        kv_heads * (4 * words + 2 * (self.pair_numbers() + mean)) + 2 * norms
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 {
        a
    } else {
        greatest_common_divisor(b, a % b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::Method;

    fn bits(method: &Method, head_dim: usize, kv_heads: usize) -> (f64, f64) {
        let side = |side: &crate::method::Side, role| {
            let quantizer = side.quantizer.as_ref().unwrap();
            let spec = PageSpec::new(quantizer, role, head_dim, method.page_tokens());
            let values = kv_heads * head_dim * spec.page_tokens;
            spec.page_bytes(kv_heads) as f64 * 8.0 / values as f64
        };
        (
            side(method.key_side(), Role::Key),
            side(method.value_side(), Role::Value),
        )
    }

    #[test]
    fn bits_per_value_are_those_of_the_papers() {
        assert_eq!(bits(&Method::hadamard(), 128, 8), (2.25, 2.25));
        assert_eq!(bits(&Method::hadamard(), 64, 3), (2.5, 2.5));
        assert_eq!(bits(&Method::kivi(), 128, 8), (3.0, 3.0));
        let (key, value) = bits(&Method::oscar_scaled(), 64, 3);
        assert!((key - 3.0833).abs() < 1e-3 && value == 3.0);
        assert_eq!(bits(&Method::hadamard_centred(), 64, 3), (2.1875, 2.1875));
        assert_eq!(
            bits(&Method::kivi().with_bits(4).unwrap(), 128, 8),
            (5.0, 5.0)
        );
    }
}
