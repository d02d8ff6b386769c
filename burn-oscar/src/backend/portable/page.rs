//! Whole pages: what is taken off before coding, where the parts go, and back.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::FloatDType;

use super::packing::{join, pack_chunks, split, unpack_chunks};
use super::tensor::{Ints, Real};
use super::{affine, midrise};
use crate::backend::types::{KvLayer, OptionalTensor, PackedPages, Pages};
use crate::quantizer::layout::CHUNK_TOKENS;
use crate::quantizer::{PageSpec, Role, Rounding};

/// The parts of n encoded pages, shaped as in [`PackedPages`].
pub struct Encoded<B: Backend> {
    pub words: Ints<B>,
    pub pairs: Option<Real<B>>,
    pub norms: Option<Real<B>>,
    pub means: Option<Real<B>>,
}

/// Encodes `[n, kv_heads, page_tokens, head_dim]`.
pub fn encode<B: Backend>(spec: &PageSpec, x: Real<B>) -> Encoded<B> {
    let [n, kv_heads, tokens, head_dim] = x.dims()[..] else {
        unreachable!("four dimensions by construction")
    };
    let quantizer = &spec.quantizer;
    let mut y = x.f32();

    let means = quantizer.page_mean.then(|| {
        // Scaled down before the sum, so that large activations do not overflow.
        let mean = y.clone().mul_scalar(1.0 / tokens as f32).sum_dim(2);
        mean.through_f16()
    });
    if let Some(mean) = &means {
        y = y.sub(mean.clone());
    }
    let norms = quantizer.token_norm.then(|| {
        let square = y.clone().mul(y.clone()).sum_dim(3).sum_dim(1);
        let norm = square.sqrt().through_f16();
        norm.clone().fill_where_not_positive(norm, 1.0)
    });
    if let Some(norm) = &norms {
        y = y.div(norm.clone());
    }
    if let Some(clip) = quantizer.clip {
        let index = ((f64::from(clip) * head_dim as f64) as usize).min(head_dim - 1);
        let limit = y.clone().abs().sort_last().narrow(3, index, 1);
        let upper = limit.expand_like(&y);
        y = y.min_pair(upper.clone()).max_pair(upper.neg());
    }

    let (codes, scales, pairs) = match quantizer.rounding {
        Rounding::MidRise => {
            let (codes, bytes) = midrise::encode(spec, y, midrise::scale8);
            let words = bytes
                .swap_rows(1)
                .reshape(&[n * kv_heads, spec.scale_words(), 4]);
            (codes, Some(join(words, 8)), None)
        }
        _ => {
            let (codes, pairs) = affine::encode(spec, y);
            (codes, None, Some(pairs.cast(FloatDType::F16)))
        }
    };
    let chunks = codes.reshape(&[n * kv_heads * spec.chunks(), CHUNK_TOKENS, head_dim]);
    let mut words = vec![pack_chunks(spec, chunks).reshape(&[n * kv_heads, spec.code_words()])];
    words.extend(scales);
    let row = spec.code_words() + spec.scale_words();
    Encoded {
        words: Ints::cat(words, 1).reshape(&[n, kv_heads, row]),
        pairs,
        norms: norms.map(|norm| norm.reshape(&[n, tokens]).cast(FloatDType::F16)),
        means: means.map(|mean| mean.reshape(&[n, kv_heads, head_dim]).cast(FloatDType::F16)),
    }
}

/// The inverse of [`encode`], in f32.
pub fn decode<B: Backend>(spec: &PageSpec, parts: Encoded<B>) -> Real<B> {
    let [n, kv_heads, _] = parts.words.dims()[..] else {
        unreachable!("three dimensions by construction")
    };
    let (tokens, head_dim) = (spec.page_tokens, spec.head_dim);
    let codes = parts
        .words
        .clone()
        .narrow(2, 0, spec.code_words())
        .reshape(&[
            n * kv_heads * spec.chunks(),
            spec.code_words() / spec.chunks(),
        ]);
    let codes = unpack_chunks(spec, codes).reshape(&[n, kv_heads, tokens, head_dim]);
    let mut y = match parts.pairs {
        Some(pairs) => affine::decode(spec, codes, pairs),
        None => {
            let bytes = parts
                .words
                .narrow(2, spec.code_words(), spec.scale_words())
                .reshape(&[n * kv_heads, spec.scale_words()]);
            let bytes = split(bytes, 4, 8).swap_rows(1);
            let shape = [n, kv_heads, spec.segments.len(), tokens];
            midrise::decode(spec, codes, midrise::decode8(bytes.reshape(&shape)))
        }
    };
    if let Some(norms) = parts.norms {
        y = y.mul(norms.f32().reshape(&[n, 1, tokens, 1]));
    }
    if let Some(means) = parts.means {
        y = y.add(means.f32().reshape(&[n, kv_heads, 1, head_dim]));
    }
    y
}

/// See [`KvCacheOps::kv_write_pages`](crate::backend::KvCacheOps::kv_write_pages).
pub fn write_pages<B: Backend>(
    layer: KvLayer<B>,
    key: FloatTensor<B>,
    value: FloatTensor<B>,
    pages: IntTensor<B>,
) -> KvLayer<B> {
    KvLayer {
        key: write_side(layer.key, Real(key), Ints(pages.clone())),
        value: write_side(layer.value, Real(value), Ints(pages)),
        ..layer
    }
}

/// Encodes pages of one side and writes them to the pages named by `pages`.
pub fn write_side<B: Backend>(store: Pages<B>, x: Real<B>, pages: Ints<B>) -> Pages<B> {
    match store {
        Pages::Exact(held) => {
            let x = x.cast(held.dtype().into());
            Pages::Exact(Real(held).set_rows(pages, x).0)
        }
        Pages::Packed(held) => {
            let new = encode(&held.spec, x);
            Pages::Packed(PackedPages {
                words: Ints(held.words).set_rows(pages.clone(), new.words).0,
                pairs: set_optional(held.pairs, &pages, new.pairs),
                norms: set_optional(held.norms, &pages, new.norms),
                means: set_optional(held.means, &pages, new.means),
                spec: held.spec,
            })
        }
    }
}

fn set_optional<B: Backend>(
    held: OptionalTensor<B>,
    pages: &Ints<B>,
    new: Option<Real<B>>,
) -> OptionalTensor<B> {
    match (held, new) {
        (OptionalTensor::Present(held), Some(new)) => {
            OptionalTensor::Present(Real(held).set_rows(pages.clone(), new).0)
        }
        (held, _) => held,
    }
}

/// See [`KvCacheOps::kv_read_pages`](crate::backend::KvCacheOps::kv_read_pages).
pub fn read_pages<B: Backend>(
    layer: KvLayer<B>,
    pages: IntTensor<B>,
    side: Role,
) -> FloatTensor<B> {
    let store = match side {
        Role::Key => layer.key,
        Role::Value => layer.value,
    };
    read_side(&store, Ints(pages)).0
}

/// Pages of one side as f32 `[n, kv_heads, page_tokens, head_dim]`.
pub fn read_side<B: Backend>(store: &Pages<B>, pages: Ints<B>) -> Real<B> {
    match store {
        Pages::Exact(held) => Real(held.clone()).rows(pages).f32(),
        Pages::Packed(held) => {
            let optional = |tensor: &OptionalTensor<B>| match tensor {
                OptionalTensor::Present(tensor) => Some(Real(tensor.clone()).rows(pages.clone())),
                OptionalTensor::Absent => None,
            };
            let parts = Encoded {
                words: Ints(held.words.clone()).rows(pages.clone()),
                pairs: optional(&held.pairs),
                norms: optional(&held.norms),
                means: optional(&held.means),
            };
            decode(&held.spec, parts)
        }
    }
}
