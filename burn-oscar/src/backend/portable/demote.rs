//! A page's worth of tokens leaves the recent tier.

use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Shape, TensorData};

use super::page::write_side;
use super::tensor::{Ints, Real};
use crate::backend::types::{Demotion, KvLayer};

/// See [`KvCacheOps::kv_demote`](crate::backend::KvCacheOps::kv_demote).
pub fn demote<B: Backend>(layer: KvLayer<B>, moves: &[Demotion]) -> KvLayer<B> {
    if moves.is_empty() {
        return layer;
    }
    let page_tokens = layer.key.page_tokens();
    let ids: Vec<i64> = moves.iter().map(|m| i64::from(m.page)).collect();
    let data = TensorData::new(ids, Shape::from(vec![moves.len()]));
    let ids = Ints::<B>(B::int_from_data(data, &layer.key_tier.device()));
    let slots: Vec<usize> = moves.iter().map(|m| m.slot).collect();
    let side = |store, tier| {
        let mut tier = Real::<B>(tier);
        // Pages hold constants.
        let vectors = leaving(&tier, &slots, layer.sink, page_tokens).detach();
        let store = write_side(store, vectors, ids.clone());
        for m in moves {
            tier = shift_down(tier, m, layer.sink, page_tokens);
        }
        (store, tier.0)
    };
    let (key, key_tier) = side(layer.key, layer.key_tier);
    let (value, value_tier) = side(layer.value, layer.value_tier);
    KvLayer {
        key,
        value,
        key_tier,
        value_tier,
        sink: layer.sink,
    }
}

/// `[n, kv_heads, page_tokens, head_dim]`: the oldest recent tokens of slots of a tier.
pub fn leaving<B: Backend>(
    tier: &Real<B>,
    slots: &[usize],
    start: usize,
    page_tokens: usize,
) -> Real<B> {
    let rows = slots
        .iter()
        .map(|&slot| {
            tier.clone()
                .narrow(0, slot, 1)
                .narrow(2, start, page_tokens)
        })
        .collect();
    Real::cat(rows, 0)
}

fn shift_down<B: Backend>(
    tier: Real<B>,
    demotion: &Demotion,
    start: usize,
    page_tokens: usize,
) -> Real<B> {
    let rest = demotion.recent.saturating_sub(page_tokens);
    if rest == 0 {
        return tier;
    }
    let kept = tier
        .clone()
        .narrow(0, demotion.slot, 1)
        .narrow(2, start + page_tokens, rest);
    tier.assign(&[(0, demotion.slot, 1), (2, start, rest)], kept)
}
