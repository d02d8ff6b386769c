//! What travels across the dispatch boundary: the tensors of one layer of a cache.

use std::sync::Arc;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, ExtensionType, TensorMetadata};

use crate::quantizer::PageSpec;

/// A tensor that some methods store and others do not.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub enum OptionalTensor<B: Backend> {
    /// The method does not store it.
    Absent,
    /// Stored.
    Present(FloatTensor<B>),
}

/// Pages of one side as bits.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct PackedPages<B: Backend> {
    /// u32 `[pages, kv_heads, words]`: the codes of each chunk, then the 8-bit scales.
    pub words: IntTensor<B>,
    /// f16 `[pages, kv_heads, numbers]`: (scale, offset) of each affine group.
    #[extension_type]
    pub pairs: OptionalTensor<B>,
    /// f16 `[pages, page_tokens]`: the norm of each token over all KV heads.
    #[extension_type]
    pub norms: OptionalTensor<B>,
    /// f16 `[pages, kv_heads, head_dim]`: the mean of each page.
    #[extension_type]
    pub means: OptionalTensor<B>,
    /// Sizes and recipe.
    pub spec: Arc<PageSpec>,
}

/// Pages of one side.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub enum Pages<B: Backend> {
    /// `[pages, kv_heads, page_tokens, head_dim]` in the activation dtype.
    Exact(FloatTensor<B>),
    /// Packed bits and their parameters.
    Packed(#[extension_type] PackedPages<B>),
}

impl<B: Backend> Pages<B> {
    /// Tokens of a page.
    pub fn page_tokens(&self) -> usize {
        match self {
            Pages::Exact(held) => held.shape()[2],
            Pages::Packed(packed) => packed.spec.page_tokens,
        }
    }
}

/// The quantised key/value tensor: everything that one layer of a cache stores.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct KvLayer<B: Backend> {
    /// Pages of keys.
    #[extension_type]
    pub key: Pages<B>,
    /// Pages of values.
    #[extension_type]
    pub value: Pages<B>,
    /// Exact keys `[slots, kv_heads, sink + recent + page_tokens, head_dim]`: the sinks of a
    /// sequence, then its recent tokens, oldest first.
    pub key_tier: FloatTensor<B>,
    /// Exact values, laid out as the keys.
    pub value_tier: FloatTensor<B>,
    /// Positions of a slot that belong to the sinks.
    pub sink: usize,
}

/// The oldest page's worth of tokens leaves the recent tier of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demotion {
    /// The sequence's slot in the exact tiers.
    pub slot: usize,
    /// The page that takes the tokens.
    pub page: u32,
    /// Recent tokens held before, at least a page's worth.
    pub recent: usize,
}

/// The shape of [`read_pages`](crate::backend::read_pages)'s result, for lazy backends.
#[cfg(feature = "fusion")]
pub(super) fn read_shape(
    layer: &KvLayerMetadata,
    pages: &burn::tensor::Shape,
) -> burn::tensor::Shape {
    let page_tokens = match &layer.key {
        PagesMetadata::Exact(spec) => spec.shape[2],
        PagesMetadata::Packed(packed) => packed.spec.page_tokens,
    };
    let tier = &layer.key_tier.shape;
    burn::tensor::Shape::from(vec![pages[0], tier[1], page_tokens, tier[3]])
}
