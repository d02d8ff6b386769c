//! The operations on high-level tensors.

use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};

use super::KvCacheOps;
use super::plan::AttentionPlan;
use super::types::{Demotion, KvLayer};
use crate::quantizer::Role;

/// Quantises pages of transformed keys and values and writes them; see
/// [`KvCacheOps::kv_write_pages`]. Pages hold constants: no gradient flows into them.
pub fn write_pages(
    layer: KvLayer<Dispatch>,
    key: Tensor<4>,
    value: Tensor<4>,
    pages: Tensor<1, Int>,
) -> KvLayer<Dispatch> {
    <Dispatch as KvCacheOps>::kv_write_pages(
        layer,
        key.detach().into_dispatch(),
        value.detach().into_dispatch(),
        pages.into_dispatch(),
    )
}

/// Reads pages of one side as f32 `[n, kv_heads, page_tokens, head_dim]`; see
/// [`KvCacheOps::kv_read_pages`].
pub fn read_pages(layer: KvLayer<Dispatch>, pages: Tensor<1, Int>, side: Role) -> Tensor<4> {
    Tensor::from_dispatch(<Dispatch as KvCacheOps>::kv_read_pages(
        layer,
        pages.into_dispatch(),
        side,
    ))
}

/// Causal attention over all tiers of a layer; see [`KvCacheOps::kv_attend`].
pub fn attend(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    layer: KvLayer<Dispatch>,
    plan: AttentionPlan<Dispatch>,
) -> Tensor<4> {
    Tensor::from_dispatch(<Dispatch as KvCacheOps>::kv_attend(
        query.into_dispatch(),
        key.into_dispatch(),
        value.into_dispatch(),
        layer,
        plan,
    ))
}

/// Writes one token per row to the exact tiers; see [`KvCacheOps::kv_append`].
pub fn append(
    layer: KvLayer<Dispatch>,
    key: Tensor<4>,
    value: Tensor<4>,
    plan: AttentionPlan<Dispatch>,
) -> KvLayer<Dispatch> {
    <Dispatch as KvCacheOps>::kv_append(layer, key.into_dispatch(), value.into_dispatch(), plan)
}

/// Packs the oldest tokens of recent tiers into pages; see [`KvCacheOps::kv_demote`].
pub fn demote(layer: KvLayer<Dispatch>, moves: Vec<Demotion>) -> KvLayer<Dispatch> {
    <Dispatch as KvCacheOps>::kv_demote(layer, moves)
}
