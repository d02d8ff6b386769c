//! Codes to words and back, in the order of [`layout`](crate::quantizer::layout): one reshape and
//! one permutation, then the sixteen fields of a word are put together.

use burn::backend::Backend;

use super::tensor::Ints;
use crate::quantizer::layout::{CHUNK_TOKENS, FIELDS, chunk_words};
use crate::quantizer::{PageSpec, Role};

/// Digits of (token, channel) for a tensor `[n, 64, channels]`, and the order in which they
/// appear in words and fields. The names are those of the layout's formulas.
struct Digits {
    shape: Vec<usize>,
    order: &'static [usize],
    inverse: &'static [usize],
}

impl Digits {
    /// Tokens field 4, r0 2, row 8; channels step, r1 2, lane 4, byte 4.
    fn key(channels: usize) -> Self {
        Self {
            shape: vec![4, 2, 8, channels / 32, 2, 4, 4],
            order: &[0, 4, 3, 6, 5, 2, 7, 1],
            inverse: &[0, 7, 5, 2, 1, 4, 3, 6],
        }
    }

    /// Tokens r1 2, byte 4, lane 4, step 2; channels block, field 4, r0 2, row 8.
    fn value(channels: usize) -> Self {
        Self {
            shape: vec![2, 4, 4, 2, channels / 64, 4, 2, 8],
            order: &[0, 5, 4, 8, 3, 1, 7, 2, 6],
            inverse: &[0, 5, 7, 4, 2, 1, 8, 6, 3],
        }
    }

    /// The last 32 channels where they do not fill a block: the step is part of the field.
    fn value_tail() -> Self {
        Self {
            shape: vec![2, 4, 4, 2, 2, 2, 8],
            order: &[0, 7, 3, 1, 6, 2, 4, 5],
            inverse: &[0, 3, 5, 2, 6, 7, 4, 1],
        }
    }

    fn pack<B: Backend>(&self, fields: Ints<B>) -> Ints<B> {
        let n = fields.dims()[0];
        let shape = [&[n], self.shape.as_slice()].concat();
        let words = self.shape.iter().product::<usize>() / FIELDS;
        let fields = fields.reshape(&shape).permute(self.order);
        join(fields.reshape(&[n, words, FIELDS]), 2)
    }

    fn unpack<B: Backend>(&self, words: Ints<B>) -> Ints<B> {
        let n = words.dims()[0];
        let shape = [&[n], self.shape.as_slice()].concat();
        let stored: Vec<usize> = self.order.iter().map(|&axis| shape[axis]).collect();
        let channels = self.shape.iter().product::<usize>() / CHUNK_TOKENS;
        split(words, FIELDS, 2)
            .reshape(&stored)
            .permute(self.inverse)
            .reshape(&[n, CHUNK_TOKENS, channels])
    }
}

/// `[n, words, count]` numbers of `bits` bits into `[n, words]`, the first one lowest.
pub fn join<B: Backend>(mut parts: Ints<B>, bits: u32) -> Ints<B> {
    let [n, words, mut count] = parts.dims()[..] else {
        unreachable!("three dimensions by construction")
    };
    while count > 1 {
        count /= 2;
        let low = parts.clone().narrow(2, 0, count);
        let high = parts.narrow(2, count, count);
        parts = low.or(high.shift_left(bits * count as u32));
    }
    parts.reshape(&[n, words])
}

/// The inverse of [`join`].
pub fn split<B: Backend>(words: Ints<B>, count: usize, bits: u32) -> Ints<B> {
    let [n, length] = words.dims()[..] else {
        unreachable!("two dimensions by construction")
    };
    let mut parts = words.reshape(&[n, length, 1, 1]);
    let mut held = count;
    while held > 1 {
        held /= 2;
        let shift = bits * held as u32;
        let low = parts.clone().and_scalar((1u32 << shift) - 1);
        let high = parts.shift_right(shift);
        parts = Ints::cat(vec![low, high], 3).reshape(&[n, length, count / held, 1]);
    }
    parts.reshape(&[n, length, count])
}

/// `[n, 64, head_dim]` codes into `[n, words]`.
pub fn pack_chunks<B: Backend>(spec: &PageSpec, codes: Ints<B>) -> Ints<B> {
    let fields = planes_of(spec, codes);
    let channels = spec.virtual_channels;
    match spec.role {
        Role::Key => Digits::key(channels).pack(fields),
        Role::Value => {
            let whole = channels / 64 * 64;
            let mut parts = Vec::new();
            if whole > 0 {
                parts.push(Digits::value(whole).pack(fields.clone().narrow(2, 0, whole)));
            }
            if whole < channels {
                parts.push(Digits::value_tail().pack(fields.narrow(2, whole, 32)));
            }
            Ints::cat(parts, 1)
        }
    }
}

/// The inverse of [`pack_chunks`]; channels without bits come back as code 0.
pub fn unpack_chunks<B: Backend>(spec: &PageSpec, words: Ints<B>) -> Ints<B> {
    let channels = spec.virtual_channels;
    let fields = match spec.role {
        Role::Key => Digits::key(channels).unpack(words),
        Role::Value => {
            let whole = channels / 64 * 64;
            let split = chunk_words(whole);
            let mut parts = Vec::new();
            if whole > 0 {
                let words = words.clone().narrow(1, 0, split);
                parts.push(Digits::value(whole).unpack(words));
            }
            if whole < channels {
                parts.push(Digits::value_tail().unpack(words.narrow(1, split, chunk_words(32))));
            }
            Ints::cat(parts, 2)
        }
    };
    codes_of(spec, fields)
}

/// Codes `[n, 64, head_dim]` to the two-bit fields of all planes `[n, 64, virtual_channels]`.
fn planes_of<B: Backend>(spec: &PageSpec, codes: Ints<B>) -> Ints<B> {
    let n = codes.dims()[0];
    let mut parts = Vec::new();
    let mut used = 0;
    for plane in &spec.planes {
        let codes = codes.clone().narrow(2, plane.start, plane.channels);
        let bits = codes
            .shift_right(plane.shift)
            .and_scalar((1 << plane.width) - 1);
        used += plane.virtual_channels();
        parts.push(if plane.width == 2 {
            bits
        } else {
            // Channels have even counts: head_dim's sixteenths are combined in pairs, or the
            // second of a lone last pair is empty.
            let half = plane.virtual_channels();
            let low = bits.clone().narrow(2, 0, half);
            let rest = plane.channels - half;
            let high = bits.narrow(2, half, rest).shift_left(1);
            let high = pad_channels(high, half - rest);
            low.or(high)
        });
    }
    debug_assert!(parts.iter().all(|part| part.dims()[0] == n));
    pad_channels(Ints::cat(parts, 2), spec.virtual_channels - used)
}

fn codes_of<B: Backend>(spec: &PageSpec, fields: Ints<B>) -> Ints<B> {
    let mut parts: Vec<Ints<B>> = Vec::new();
    let (mut channels, mut first) = (0, 0);
    for segment in &spec.segments {
        if segment.start > channels {
            let gap = segment.start - channels;
            parts.push(fields.zeros_like_with(&[fields.dims()[0], CHUNK_TOKENS, gap]));
        }
        let planes = spec
            .planes
            .iter()
            .filter(|plane| plane.start == segment.start);
        let code = planes
            .map(|plane| {
                let stored = plane.virtual_channels();
                let bits = fields.clone().narrow(2, first, stored);
                first += stored;
                let bits = if plane.width == 2 {
                    bits
                } else {
                    let low = bits.clone().and_scalar(1);
                    let high = bits.shift_right(1).narrow(2, 0, plane.channels - stored);
                    Ints::cat(vec![low, high], 2)
                };
                bits.shift_left(plane.shift)
            })
            .reduce(Ints::or);
        parts.extend(code);
        channels = segment.start + segment.channels;
    }
    pad_channels(Ints::cat(parts, 2), spec.head_dim - channels)
}

fn pad_channels<B: Backend>(codes: Ints<B>, missing: usize) -> Ints<B> {
    if missing == 0 {
        return codes;
    }
    let [n, tokens, _] = codes.dims()[..] else {
        unreachable!("three dimensions by construction")
    };
    let zeros = codes.zeros_like_with(&[n, tokens, missing]);
    Ints::cat(vec![codes, zeros], 2)
}
