//! Attention over all tiers of a sequence, one batch row after the other.

use burn::backend::Backend;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{Shape, TensorData};

use super::page::read_side;
use super::tensor::{Ints, Real};
use crate::backend::plan::{AttentionPlan, PlanRow};
use crate::backend::types::{KvLayer, Pages};

/// Scores held at once, in elements: longer prefills are cut into blocks of queries.
const SCORES_AT_ONCE: usize = 1 << 24;

/// See [`KvCacheOps::kv_attend`](crate::backend::KvCacheOps::kv_attend). Computes in f32.
pub fn attend<B: Backend>(
    query: FloatTensor<B>,
    key: FloatTensor<B>,
    value: FloatTensor<B>,
    layer: KvLayer<B>,
    plan: AttentionPlan<B>,
) -> FloatTensor<B> {
    let dtype = query.dtype();
    let (query, key, value) = (Real::<B>(query), Real::<B>(key), Real::<B>(value));
    let rows = plan
        .rows
        .iter()
        .enumerate()
        .map(|(i, row)| {
            // What the first query does not see need not be read: no later one sees it.
            let row = &match plan.window {
                Some(window) => row.since((row.len() + 1).saturating_sub(window)),
                None => row.clone(),
            };
            let key = gather(
                &layer.key,
                &layer.key_tier,
                layer.sink,
                row,
                key.clone().narrow(0, i, 1),
            );
            let value = gather(
                &layer.value,
                &layer.value_tier,
                layer.sink,
                row,
                value.clone().narrow(0, i, 1),
            );
            attend_row(
                query.clone().narrow(0, i, 1).f32(),
                key,
                value,
                plan.scale as f32,
                plan.window,
            )
        })
        .collect();
    Real::cat(rows, 0).cast(dtype.into()).0
}

/// All vectors of one side that a row attends to, oldest first: f32 `[kv_heads, n, head_dim]`.
fn gather<B: Backend>(
    pages: &Pages<B>,
    tier: &FloatTensor<B>,
    sink: usize,
    row: &PlanRow,
    own: Real<B>,
) -> Real<B> {
    let [_, kv_heads, tokens, head_dim] = own.dims()[..] else {
        unreachable!("four dimensions by construction")
    };
    let slot = Real::<B>(tier.clone()).narrow(0, row.slot, 1);
    let exact = |start, length| {
        slot.clone()
            .narrow(2, start, length)
            .reshape(&[kv_heads, length, head_dim])
            .f32()
    };
    let mut parts = Vec::new();
    if row.sinks > 0 {
        parts.push(exact(0, row.sinks));
    }
    if !row.pages.is_empty() {
        parts.extend(history(pages, &row.pages, tier));
    }
    if row.recent > 0 {
        parts.push(exact(sink, row.recent));
    }
    parts.push(own.reshape(&[kv_heads, tokens, head_dim]).f32());
    Real::cat(parts, 1)
}

/// The valid tokens of pages, by selection: what lies after them may be anything, even NaN.
fn history<B: Backend>(
    store: &Pages<B>,
    pages: &[(u32, usize)],
    like: &FloatTensor<B>,
) -> Vec<Real<B>> {
    let ids: Vec<i64> = pages.iter().map(|&(id, _)| i64::from(id)).collect();
    let data = TensorData::new(ids, Shape::from(vec![pages.len()]));
    let ids = Ints::<B>(B::int_from_data(data, &like.device()));
    let read = read_side(store, ids);
    let [_, kv_heads, page_tokens, head_dim] = read.dims()[..] else {
        unreachable!("four dimensions by construction")
    };
    // Runs of full pages are taken together.
    let mut parts = Vec::new();
    let mut start = 0;
    while start < pages.len() {
        let full = |&&(_, tokens): &&(u32, usize)| tokens == page_tokens;
        let run = pages[start..].iter().take_while(full).count().max(1);
        let tokens = pages[start].1;
        parts.push(
            read.clone()
                .narrow(0, start, run)
                .narrow(2, 0, tokens)
                .permute(&[1, 0, 2, 3])
                .reshape(&[kv_heads, run * tokens, head_dim]),
        );
        start += run;
    }
    parts
}

/// `[1, heads, tokens, head_dim]` queries over `[kv_heads, n, head_dim]` keys and values, of
/// which the last `tokens` are the queries' own. A query sees the newest `window` of the tokens up
/// to itself.
fn attend_row<B: Backend>(
    query: Real<B>,
    key: Real<B>,
    value: Real<B>,
    scale: f32,
    window: Option<usize>,
) -> Real<B> {
    let [_, heads, tokens, head_dim] = query.dims()[..] else {
        unreachable!("four dimensions by construction")
    };
    let [kv_heads, length, _] = key.dims()[..] else {
        unreachable!("three dimensions by construction")
    };
    let (group, past) = (heads / kv_heads, length - tokens);
    let query = query
        .mul_scalar(scale)
        .reshape(&[kv_heads, group, tokens, head_dim]);
    let block = (SCORES_AT_ONCE / (heads * length)).clamp(1, tokens);
    let mut outputs = Vec::new();
    for start in (0..tokens).step_by(block) {
        let count = block.min(tokens - start);
        let end = past + start + count;
        let first = window.map_or(0, |window| (past + start + 1).saturating_sub(window));
        let seen = end - first;
        let query =
            query
                .clone()
                .narrow(2, start, count)
                .reshape(&[kv_heads, group * count, head_dim]);
        let keys = key.clone().narrow(1, first, seen).permute(&[0, 2, 1]);
        let mut scores = query.matmul(keys);
        if count > 1 {
            let mask = causal_mask(&scores, count, seen - count, seen, window);
            scores = scores
                .reshape(&[kv_heads, group, count, seen])
                .add(mask)
                .reshape(&[kv_heads, group * count, seen]);
        }
        let context = scores
            .softmax(2)
            .matmul(value.clone().narrow(1, first, seen));
        outputs.push(context.reshape(&[kv_heads, group, count, head_dim]));
    }
    Real::cat(outputs, 2).reshape(&[1, heads, tokens, head_dim])
}

/// Added to scores: 0 where query `t` may see the column, minus infinity where it is later, or too
/// old for the window.
fn causal_mask<B: Backend>(
    like: &Real<B>,
    count: usize,
    before: usize,
    seen: usize,
    window: Option<usize>,
) -> Real<B> {
    let mut mask = vec![0f32; count * seen];
    for t in 0..count {
        let last = before + t + 1;
        mask[t * seen + last..(t + 1) * seen].fill(f32::NEG_INFINITY);
        let too_old = window.map_or(0, |window| last.saturating_sub(window));
        mask[t * seen..t * seen + too_old].fill(f32::NEG_INFINITY);
    }
    Real::from_vec(mask, &[1, 1, count, seen], &like.0)
}

/// See [`KvCacheOps::kv_append`](crate::backend::KvCacheOps::kv_append).
pub fn append<B: Backend>(
    layer: KvLayer<B>,
    key: FloatTensor<B>,
    value: FloatTensor<B>,
    plan: AttentionPlan<B>,
) -> KvLayer<B> {
    let write = |tier: FloatTensor<B>, tokens: FloatTensor<B>| {
        let (mut tier, tokens) = (Real::<B>(tier), Real::<B>(tokens));
        for (i, row) in plan.rows.iter().enumerate() {
            tier = tier.set_token(row.slot, row.next, tokens.clone().narrow(0, i, 1));
        }
        tier.0
    };
    KvLayer {
        key_tier: write(layer.key_tier, key),
        value_tier: write(layer.value_tier, value),
        ..layer
    }
}
