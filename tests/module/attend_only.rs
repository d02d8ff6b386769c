//! Reading without appending, against attention in f64 over what the cache gives back.

use burn::tensor::{Device, Tensor};
use burn_oscar::{AttentionOptions, Error, KvCache, KvCacheConfig, Method};

use capabilities::recipes::product_limit;

use super::{input, numbers};

pub const HEAD_DIM: usize = 32;
const KV_HEADS: usize = 2;
const GROUP: usize = 3;

/// A cache of two rows, `lens` tokens each.
fn filled(method: &Method, lens: [usize; 2], device: &Device) -> KvCache {
    let mut cache = KvCacheConfig::new(1, KV_HEADS, HEAD_DIM)
        .with_method(method.clone())
        .with_max_tokens(512)
        .with_max_sequences(2)
        .with_poison(true)
        .init(device)
        .unwrap();
    cache.add_sequence().unwrap();
    for (row, tokens) in lens.into_iter().enumerate() {
        let shape = [1, KV_HEADS, tokens, HEAD_DIM];
        let [key, value] = [1, 2].map(|side| input(10 * row as u64 + side, shape, device));
        let rows = AttentionOptions::causal().rows(&[cache.sequences()[row]]);
        cache.extend(0, key, value, rows).unwrap();
    }
    cache
}

/// Attention in f64 of every query over every token of its row.
fn reference(cache: &KvCache, query: &Tensor<4>) -> Vec<f64> {
    let [_, heads, tokens, head_dim] = query.dims();
    let mut out = Vec::new();
    for (row, id) in cache.sequences().into_iter().enumerate() {
        let [keys, values] = cache.dequantize(id, 0).unwrap();
        let held = keys.dims()[1];
        let [keys, values] = [keys, values].map(numbers);
        let queries = numbers(query.clone().narrow(0, row, 1));
        for (at, query) in queries.chunks(head_dim).enumerate() {
            let kv_head = at / tokens / (heads / KV_HEADS);
            let own = |side: &[f64], t: usize| {
                let start = (kv_head * held + t) * head_dim;
                side[start..start + head_dim].to_vec()
            };
            let scores = (0..held).map(|t| {
                let products = own(&keys, t).into_iter().zip(query).map(|(k, q)| k * q);
                (products.sum::<f64>() / (head_dim as f64).sqrt()).exp()
            });
            let weights: Vec<f64> = scores.collect();
            let total: f64 = weights.iter().sum();
            let mut sums = vec![0.0; head_dim];
            for (t, weight) in weights.iter().enumerate() {
                for (sum, value) in sums.iter_mut().zip(own(&values, t)) {
                    *sum += weight / total * value;
                }
            }
            out.extend(sums);
        }
    }
    out
}

/// Reads with one query and with several, and checks that nothing has changed.
pub fn check(name: &str, method: &Method, lens: [usize; 2], cut: Option<usize>, device: &Device) {
    let build = || {
        let mut cache = filled(method, lens, device);
        if let Some(len) = cut {
            cache.truncate(cache.sequences()[0], len).unwrap();
        }
        cache
    };
    let (mut cache, mut untouched) = (build(), build());
    let (before, memory) = (cache.lens(), cache.memory());
    for tokens in [1, 2, 9] {
        let shape = [2, KV_HEADS * GROUP, tokens, HEAD_DIM];
        let query = input::<4>(tokens as u64, shape, device) * 3.0;
        let expected = reference(&cache, &query);
        let found = cache
            .attend_only(0, query, AttentionOptions::causal())
            .unwrap();
        assert_eq!(found.dims(), shape);
        let largest = numbers(found)
            .iter()
            .zip(&expected)
            .map(|(found, expected)| (found - expected).abs())
            .fold(0.0, f64::max);
        assert!(
            largest < product_limit(device, 2e-5),
            "{name} {lens:?} {cut:?} {tokens}: {largest}"
        );
    }
    assert_eq!((cache.lens(), cache.memory()), (before, memory));
    // A step afterwards is that of a cache that was never read.
    let step = |cache: &mut KvCache| {
        let query = input(7, [2, KV_HEADS, 1, HEAD_DIM], device);
        let own = input(8, [2, KV_HEADS, 1, HEAD_DIM], device);
        let options = AttentionOptions::causal();
        numbers(cache.attend(0, query, own.clone(), own, options).unwrap())
    };
    assert_eq!(step(&mut cache), step(&mut untouched), "{name} {lens:?}");
}

#[test]
fn every_stored_token_is_seen_and_nothing_changes() {
    let device = Device::flex();
    for (name, method) in [
        ("exact", Method::exact()),
        ("kivi", Method::kivi()),
        ("oscar_scaled", Method::oscar_scaled()),
        ("hadamard_centred", Method::hadamard_centred()),
    ] {
        let page = method.page_tokens();
        let windows = |sink, recent| method.clone().with_sink(sink).with_recent(recent);
        // The newest token is a sink, a recent one, and one of a page, whole and cut.
        check(name, &windows(3, 5), [2, 3], None, &device);
        check(name, &windows(3, 5), [10, page + 20], None, &device);
        check(name, &windows(0, 0), [page, page + 1], None, &device);
        check(
            name,
            &windows(2, 5),
            [page + 7, 30],
            Some(page / 2),
            &device,
        );
        check(name, &windows(0, 5), [page + 5, 30], Some(1), &device);
    }
}

#[test]
fn rows_in_any_order() {
    let device = Device::flex();
    let mut cache = filled(
        &Method::kivi().with_sink(0).with_recent(0),
        [90, 70],
        &device,
    );
    let ids = cache.sequences();
    let query: Tensor<4> = input(3, [2, KV_HEADS, 2, HEAD_DIM], &device);
    let all = cache
        .attend_only(0, query.clone(), AttentionOptions::causal())
        .unwrap();
    let swapped = AttentionOptions::causal().rows(&[ids[1], ids[0]]);
    let found = cache.attend_only(0, query.flip([0]), swapped).unwrap();
    assert_eq!(numbers(found.flip([0])), numbers(all));
}

#[test]
fn a_sequence_without_tokens_is_refused() {
    let device = Device::flex();
    let mut cache = filled(&Method::exact(), [9, 5], &device);
    cache.truncate(cache.sequences()[1], 0).unwrap();
    let query = input(3, [2, KV_HEADS, 1, HEAD_DIM], &device);
    let error = cache.attend_only(0, query, AttentionOptions::causal());
    assert!(matches!(error, Err(Error::NoTokens { layer: 0, id: 1 })));
}
