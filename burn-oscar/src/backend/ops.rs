//! The extension trait.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};

use super::plan::AttentionPlan;
use super::portable;
use super::types::{Demotion, KvLayer};
use crate::quantizer::Role;

/// Operations on packed key/value pages, for every backend.
///
/// Shapes are checked by the cache before a call; the bodies do not check them again.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "fusion"),
    Autodiff,
)]
pub trait KvCacheOps: Backend {
    /// Quantises whole pages of transformed keys and values
    /// (`[n, kv_heads, page_tokens, head_dim]`) and writes them to the pages named by `pages`
    /// (`[n]`, distinct). The layer is consumed so that its pools are written in place.
    #[fusion(meta = |layer, _key, _value, _pages| layer.clone())]
    fn kv_write_pages(
        #[extension_type] layer: KvLayer<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        pages: IntTensor<Self>,
    ) -> KvLayer<Self> {
        portable::write_pages::<Self>(layer, key, value, pages)
    }

    /// Packs the oldest page's worth of tokens of the recent tier of each named slot into its
    /// page, and moves the later tokens of the tier down to where the tier begins.
    #[fusion(meta = |layer, _moves| layer.clone())]
    fn kv_demote(#[extension_type] layer: KvLayer<Self>, moves: Vec<Demotion>) -> KvLayer<Self> {
        portable::demote::<Self>(layer, &moves)
    }

    /// Reads the pages named by `pages` (`[n]`) of one side back as f32
    /// `[n, kv_heads, page_tokens, head_dim]`, still transformed.
    #[fusion(dtype = burn::tensor::DType::F32, shape = super::types::read_shape(layer, pages))]
    fn kv_read_pages(
        #[extension_type] layer: KvLayer<Self>,
        pages: IntTensor<Self>,
        side: Role,
    ) -> FloatTensor<Self> {
        portable::read_pages::<Self>(layer, pages, side)
    }

    /// Causal attention of transformed queries `[rows, heads, tokens, head_dim]` over the sinks,
    /// pages and recent tokens of each row's sequence, and over the call's own keys and values
    /// `[rows, kv_heads, tokens, head_dim]`. Query token t sees own tokens up to t.
    #[fusion(dtype = query, shape = query)]
    fn kv_attend(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        #[extension_type] layer: KvLayer<Self>,
        #[extension_type] plan: AttentionPlan<Self>,
    ) -> FloatTensor<Self> {
        portable::attend::<Self>(query, key, value, layer, plan)
    }

    /// Writes one token per row (`[rows, kv_heads, 1, head_dim]`) to the exact tiers, at the
    /// plan's next position of the row's slot. The layer is consumed so that its tiers are written
    /// in place.
    #[fusion(meta = |layer, _key, _value, _plan| layer.clone())]
    fn kv_append(
        #[extension_type] layer: KvLayer<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        #[extension_type] plan: AttentionPlan<Self>,
    ) -> KvLayer<Self> {
        portable::append::<Self>(layer, key, value, plan)
    }
}

#[cfg(feature = "flex")]
impl KvCacheOps for burn::backend::Flex {}
