//! Models before and after they gained the cache: the same outputs. The book shows the
//! differences of these files (`book/diffs.rs` counts them).

mod dense_cache;
mod llama {
    pub mod cached;
    pub mod dense;
}
mod qwen3 {
    pub mod dense;
}

use burn::module::Module;
use burn::nn::{LinearConfig, RmsNormConfig, RotaryEncodingConfig, SwiGluConfig};
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use burn_oscar::{KvCacheConfig, Method};

use crate::logits::checkpoint::Checkpoint;
use dense_cache::KeyValueCache;

const WIDTH: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;

/// Square root of the squared difference over that of the expected numbers.
fn error(found: Tensor<3>, expected: Tensor<3>) -> f32 {
    let size = |x: Tensor<3>| x.powf_scalar(2.0).sum().into_scalar::<f32>().sqrt();
    size(found - expected.clone()) / size(expected)
}

fn dense_llama(device: &Device) -> llama::dense::LlamaBlock {
    let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
    llama::dense::LlamaBlock {
        attention_norm: RmsNormConfig::new(WIDTH).init(device),
        wq: linear(WIDTH, HEADS * HEAD_DIM),
        wk: linear(WIDTH, KV_HEADS * HEAD_DIM),
        wv: linear(WIDTH, KV_HEADS * HEAD_DIM),
        wo: linear(HEADS * HEAD_DIM, WIDTH),
        feed_forward_norm: RmsNormConfig::new(WIDTH).init(device),
        gate: SwiGluConfig::new(WIDTH, 2 * WIDTH).init(device),
        down: linear(2 * WIDTH, WIDTH),
        head_dim: HEAD_DIM,
    }
}

fn cached_llama(block: llama::dense::LlamaBlock) -> llama::cached::LlamaBlock {
    llama::cached::LlamaBlock {
        attention_norm: block.attention_norm,
        wq: block.wq,
        wk: block.wk,
        wv: block.wv,
        wo: block.wo,
        feed_forward_norm: block.feed_forward_norm,
        gate: block.gate,
        down: block.down,
        head_dim: block.head_dim,
    }
}

/// Two rows, a prompt of 300 tokens in two calls, then one token at a time, far enough that pages
/// are packed.
#[test]
fn a_llama_block_on_the_cache() {
    let device = Device::flex();
    let dense = dense_llama(&device);
    let cached = cached_llama(dense.clone());
    let rope = RotaryEncodingConfig::new(1024, HEAD_DIM).init(&device);
    let x = Tensor::<3>::random([2, 420, WIDTH], Distribution::Normal(0.0, 1.0), &device);
    let mut calls = vec![(0, 200), (200, 100)];
    calls.extend((300..420).map(|start| (start, 1)));

    let mut keys = KeyValueCache::default();
    let expected = calls.iter().map(|&(start, count)| {
        let x = x.clone().narrow(1, start, count);
        dense.forward(x, &mut keys, &rope)
    });
    let expected = Tensor::cat(expected.collect(), 1);

    for (method, limit) in [(Method::exact(), 1e-5), (Method::hadamard_centred(), 0.1)] {
        let name = method.name().to_owned();
        let packs = method.key_side().quantizer.is_some();
        let mut cache = KvCacheConfig::new(1, KV_HEADS, HEAD_DIM)
            .with_method(method.with_sink(4).with_recent(32))
            .with_max_tokens(512)
            .with_max_sequences(2)
            .init(&device)
            .unwrap();
        cache.add_sequence().unwrap();
        let found = calls.iter().map(|&(start, count)| {
            let x = x.clone().narrow(1, start, count);
            cached.forward(x, &mut cache, 0, &rope).unwrap()
        });
        let error = error(Tensor::cat(found.collect(), 1), expected.clone());
        assert!(error < limit, "{name}: {error:e}");
        assert_eq!(error > 1e-4, packs, "{name}: {error:e}");
        assert!(cache.memory().page_bytes > 0);
    }
}

/// The model of the Qwen3 example as it would be without burn-oscar, with the same weights.
#[test]
fn qwen3_before_the_cache() {
    let checkpoint = Checkpoint::open("qwen3-tiny");
    let config = &checkpoint.loaded.config;
    let dense = qwen3::dense::Model::new(config, &checkpoint.device)
        .load_record(checkpoint.loaded.model.clone().into_record());
    let mut caches: Vec<_> = (0..config.num_layers)
        .map(|_| KeyValueCache::default())
        .collect();
    let tokens = Tensor::<2, Int>::from_data(
        TensorData::new(checkpoint.tokens.clone(), [1, checkpoint.tokens.len()]),
        &checkpoint.device,
    );
    let prefill = dense.forward(tokens.clone().narrow(1, 0, 96), &mut caches);
    let decoded = dense.forward(tokens.narrow(1, 96, 32), &mut caches);
    let hidden = Tensor::cat(vec![prefill, decoded], 1);
    let last = dense.last_logits(hidden.clone());
    let found = dense.logits(hidden);

    let expected: Vec<f32> = checkpoint.logits.concat();
    let expected = Tensor::from_data(TensorData::new(expected, found.dims()), &checkpoint.device);
    let last_expected = expected.clone().narrow(1, 127, 1);
    let (all, last) = (
        error(found, expected),
        error(last.unsqueeze_dim(1), last_expected),
    );
    assert!(all < 1e-4 && last < 1e-4, "{all:e} {last:e}");
}
