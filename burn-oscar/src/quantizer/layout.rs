//! Where each two-bit field of a chunk lies.
//!
//! A chunk is 64 tokens of one KV head. A code of b bits is cut into two-bit *planes* (an odd
//! last bit shares a plane with that of a second channel), and each plane is a *virtual channel*
//! of the chunk. The fields of all virtual channels are stored in the order in which the
//! fragments of `mma.m16n8k32` want their bytes, so that a decode kernel loads 16 bytes per lane
//! and masks fields instead of shifting them:
//!
//! - Keys, tokens x channels: word `((s 8 + token % 8) 4 + lane) 4 + r`, where channel is
//!   `32 s + 16 (r / 2) + 4 lane + byte` and token `16 field + 8 (r % 2) + token % 8`.
//! - Values, channels x tokens: word `(((m 2 + s) 8 + channel % 8) 4 + lane) 4 + r`, where
//!   channel is `64 m + 16 field + 8 (r % 2) + channel % 8` and token
//!   `32 (r / 2) + 8 byte + 2 lane + s`. Where two tiles of 16 channels are left over, the field
//!   is `2 s + tile` and s is no part of the word.
//!
//! In both, the bit is `8 byte + 2 field`. A packer in Burn operations is therefore one reshape
//! and one permutation.
//!
//! Parameters of single tokens, f16 pairs and 8-bit scales, are in *row order* within a chunk, see
//! [`token_slot`]; those of groups of tokens are in the order of the tokens.

/// Tokens of a chunk.
pub const CHUNK_TOKENS: usize = 64;
/// Two-bit fields of a word.
pub const FIELDS: usize = 16;
/// Virtual channels come in multiples of one k-step of the integer matrix product.
pub const CHANNEL_STEP: usize = 32;

/// The place of a two-bit field in its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// Which u32 of the chunk.
    pub word: usize,
    /// Its lowest bit.
    pub bit: usize,
}

/// Words of a chunk.
pub fn chunk_words(virtual_channels: usize) -> usize {
    virtual_channels * CHUNK_TOKENS / FIELDS
}

/// The field of a key.
pub fn key_field(token: usize, channel: usize) -> Field {
    let (field, r0, row) = (token / 16, token / 8 % 2, token % 8);
    let (step, r1, lane, byte) = (channel / 32, channel / 16 % 2, channel / 4 % 4, channel % 4);
    Field {
        word: ((step * 8 + row) * 4 + lane) * 4 + 2 * r1 + r0,
        bit: 8 * byte + 2 * field,
    }
}

/// The field of a value, among `virtual_channels` (a multiple of 32).
pub fn value_field(virtual_channels: usize, token: usize, channel: usize) -> Field {
    let (r1, byte, lane, step) = (token / 32, token / 8 % 4, token / 2 % 4, token % 2);
    let (tile, r0, row) = (channel / 16, channel / 8 % 2, channel % 8);
    let (block, rest) = (tile / 4, virtual_channels / 64 * 4);
    let (lead, field) = if tile < rest {
        (block * 2 + step, tile % 4)
    } else {
        (rest / 2, 2 * step + tile - rest)
    };
    Field {
        word: ((lead * 8 + row) * 4 + lane) * 4 + 2 * r1 + r0,
        bit: 8 * byte + 2 * field,
    }
}

/// Where the parameters of a token stand among those of its chunk.
///
/// A lane of the decode kernel owns the tokens of one row of the matrix fragments, `token % 8`;
/// in this order it reads the parameters of its eight tokens with one or two wide loads. The
/// function is its own inverse.
pub fn token_slot(token: usize) -> usize {
    (token % 8) * 8 + token / 8
}

/// One plane of codes of a segment: which bits of the code, from which channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// First channel of the segment's codes.
    pub start: usize,
    /// Channels.
    pub channels: usize,
    /// The lowest bit of the code in this plane.
    pub shift: u32,
    /// One or two bits of each code.
    pub width: u32,
}

impl Plane {
    /// Virtual channels of the plane: two channels share one where the plane is one bit wide.
    pub fn virtual_channels(&self) -> usize {
        (self.channels * self.width as usize).div_ceil(2)
    }
}

/// The planes of segments of (channels, bits), in storage order.
pub fn planes(segments: &[(usize, u8)]) -> Vec<Plane> {
    let mut planes = Vec::new();
    let mut start = 0;
    for &(channels, bits) in segments {
        for shift in (0..u32::from(bits)).step_by(2) {
            planes.push(Plane {
                start,
                channels,
                shift,
                width: (u32::from(bits) - shift).min(2),
            });
        }
        start += channels;
    }
    planes
}

/// Virtual channels of all planes, rounded up to a whole k-step.
pub fn virtual_channels(planes: &[Plane]) -> usize {
    let used: usize = planes.iter().map(Plane::virtual_channels).sum();
    used.next_multiple_of(CHANNEL_STEP)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_row_of_tokens_has_neighbouring_slots() {
        for token in 0..CHUNK_TOKENS {
            assert_eq!(token_slot(token_slot(token)), token);
            assert_eq!(token_slot(token) / 8, token % 8);
        }
    }

    #[test]
    fn every_field_has_its_own_place() {
        for channels in [32, 64, 96, 128, 160, 192, 224, 256] {
            let place: [&dyn Fn(usize, usize) -> Field; 2] =
                [&key_field, &|t, c| value_field(channels, t, c)];
            for field in place {
                let places: HashSet<_> = (0..CHUNK_TOKENS)
                    .flat_map(|t| (0..channels).map(move |c| (t, c)))
                    .map(|(t, c)| field(t, c))
                    .collect();
                assert_eq!(places.len(), CHUNK_TOKENS * channels);
                assert!(
                    places
                        .iter()
                        .all(|f| f.word < chunk_words(channels) && f.bit < 32 && f.bit % 2 == 0)
                );
            }
        }
    }

    /// The formulas of the matrix fragments, written from the lane's side.
    #[test]
    fn fragments_find_their_elements() {
        for lane in 0..32 {
            for r in 0..4 {
                for byte in 0..4 {
                    for field in 0..4 {
                        for s in 0..2 {
                            let key = key_field(
                                16 * field + lane / 4 + 8 * (r & 1),
                                32 * s + 4 * (lane % 4) + byte + 16 * (r >> 1),
                            );
                            let word = (s * 32 + lane) * 4 + r;
                            let bit = 8 * byte + 2 * field;
                            assert_eq!(key, Field { word, bit });
                            let e = 4 * (r >> 1) + byte;
                            let value = value_field(
                                128,
                                16 * (e / 2) + 8 * (e % 2) + 2 * (lane % 4) + s,
                                16 * (4 + field) + lane / 4 + 8 * (r & 1),
                            );
                            let word = ((2 + s) * 32 + lane) * 4 + r;
                            assert_eq!(value, Field { word, bit });
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn planes_of_the_project_s_own_pattern_fill_head_dim() {
        let four_two_none = planes(&[(32, 4), (64, 2), (32, 0)]);
        assert_eq!(four_two_none.len(), 3);
        assert_eq!(virtual_channels(&four_two_none), 128);
        let odd = planes(&[(16, 3), (48, 1)]);
        assert_eq!(
            odd[1],
            Plane {
                start: 0,
                channels: 16,
                shift: 2,
                width: 1
            }
        );
        assert_eq!(virtual_channels(&odd), 64);
        assert_eq!(virtual_channels(&planes(&[(80, 2)])), 96);
    }
}
