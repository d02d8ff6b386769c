//! A transformer block imported from ONNX, with its attention on the cache.
//!
//! `block` and `dense` are what burn-onnx generated from the same graph, `fixtures/onnx/block.onnx`,
//! with and without an override of `Attention` (`fixtures/scripts/import_block`).

// As generated, with ways to load that no test uses.
#[rustfmt::skip]
#[allow(dead_code, missing_docs, clippy::all)]
mod block;
#[rustfmt::skip]
#[allow(dead_code, missing_docs, clippy::all)]
mod dense;

use std::cell::RefCell;

use burn::tensor::{Device, Distribution, Tensor};
use burn_oscar::{AttentionOptions, Error, KvCache, KvCacheConfig, Method, Result};
use capabilities::fixtures::folder;

thread_local! {
    /// Generated code takes tensors only, so it finds the cache here, and leaves its error.
    static CACHE: RefCell<Option<(KvCache, Option<Error>)>> = const { RefCell::new(None) };
}

/// Runs a generated model, whose attention reads and extends `cache`.
fn with_cache<T>(cache: KvCache, run: impl FnOnce() -> T) -> (KvCache, Result<T>) {
    CACHE.set(Some((cache, None)));
    let found = run();
    let (cache, error) = CACHE.take().expect("put there above");
    (cache, error.map_or(Ok(found), Err))
}

/// What the generated code calls in place of Burn's attention: query `[batch, tokens, heads *
/// head_dim]`, key and value `[batch, tokens, kv_heads * head_dim]`. After an error the numbers have
/// no meaning; `with_cache` returns the error.
pub fn attend(
    layer: usize,
    [heads, kv_heads]: [usize; 2],
    query: Tensor<3>,
    key: Tensor<3>,
    value: Tensor<3>,
) -> Tensor<3> {
    let [batch, tokens, width] = query.dims();
    let head_dim = width / heads;
    let split = |x: Tensor<3>, heads| x.reshape([batch, tokens, heads, head_dim]).swap_dims(1, 2);
    CACHE.with_borrow_mut(|held| {
        let (cache, error) = held.as_mut().expect("called within with_cache");
        let nothing = query.zeros_like();
        let (key, value) = (split(key, kv_heads), split(value, kv_heads));
        let options = AttentionOptions::causal();
        match cache.attend(layer, split(query, heads), key, value, options) {
            Ok(context) => context.swap_dims(1, 2).reshape([batch, tokens, width]),
            Err(refused) => {
                error.get_or_insert(refused);
                nothing
            }
        }
    })
}

fn cache(method: Method, device: &Device) -> KvCache {
    KvCacheConfig::new(1, 2, 16)
        .with_method(method.with_sink(4).with_recent(32))
        .with_max_tokens(512)
        .init(device)
        .expect("a cache")
}

/// A prompt, then a token at a time, against the same graph over all tokens at once.
#[test]
fn an_imported_block_on_the_cache() {
    let device = Device::flex();
    let weights = folder().join("onnx/block.bpk");
    let dense = dense::Model::from_file(&weights, &device);
    let block = block::Model::from_file(&weights, &device);
    let x = Tensor::<3>::random([1, 420, 64], Distribution::Normal(0.0, 1.0), &device);
    let expected = dense.forward(x.clone());
    let size = |x: Tensor<3>| x.powf_scalar(2.0).sum().into_scalar::<f32>().sqrt();

    for (method, limit) in [(Method::exact(), 1e-5), (Method::hadamard_centred(), 0.1)] {
        let name = method.name().to_owned();
        let mut cache = cache(method, &device);
        let mut parts = Vec::new();
        let mut start = 0;
        while start < 420 {
            let count = if start == 0 { 300 } else { 1 };
            let part = x.clone().narrow(1, start, count);
            let (held, found) = with_cache(cache, || block.forward(part));
            cache = held;
            parts.push(found.unwrap());
            start += count;
        }
        let error = size(Tensor::cat(parts, 1) - expected.clone()) / size(expected.clone());
        assert!(error < limit, "{name}: {error:e}");
        assert_eq!(error > 1e-4, name != "exact", "{name}: {error:e}");
        assert!(cache.memory().page_bytes > 0);
    }
}

#[test]
fn errors_come_out_of_generated_code() {
    let device = Device::flex();
    let block = block::Model::from_file(folder().join("onnx/block.bpk"), &device);
    let x = Tensor::<3>::full([1, 3, 64], f32::NAN, &device);
    let (cache, found) = with_cache(cache(Method::exact(), &device), || block.forward(x));
    assert!(matches!(found, Err(Error::NotFinite { .. })));
    assert_eq!(cache.lens(), [0]);
}
