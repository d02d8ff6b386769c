//! Layers that differ, on the kernels' device against flex: an exact one beside packed ones, a
//! sliding window, which no kernel serves, and values that arrive transformed.

use burn::tensor::{DType, Device};
use burn_oscar::backend::fused_calls;
use burn_oscar::{AttentionOptions, KvCacheConfig, Method};
use capabilities::recipes::{Noise, kernel_device, method, product_limit};

use super::{alone, error, numbers};

const KV_HEADS: usize = 2;
const HEADS: usize = 4;
const HEAD_DIM: usize = 64;

/// Outputs of a decoded token in each layer, after a history of 300 tokens; and how many layers
/// were served by a fused kernel.
fn decoded(config: &KvCacheConfig, device: &Device) -> (Vec<Vec<f64>>, u64) {
    let mut noise = Noise(5);
    let mut cache = config.init(device).unwrap();
    let mut launches = 0;
    let outputs = (0..cache.n_layers())
        .map(|layer| {
            let mut side =
                |tokens| noise.tensor([1, KV_HEADS, tokens, HEAD_DIM], DType::F32, device);
            let options = AttentionOptions::causal();
            cache.extend(layer, side(300), side(300), options).unwrap();
            let (key, value) = (side(1), side(1));
            let query = noise.query([1, HEADS, 1, HEAD_DIM], DType::F32, device);
            let before = fused_calls();
            let options = AttentionOptions::causal();
            // With fusion the kernel is launched when its result is read.
            let output = numbers(cache.attend(layer, query, key, value, options).unwrap());
            launches += fused_calls() - before;
            output
        })
        .collect();
    (outputs, launches)
}

fn compare(what: &str, config: &KvCacheConfig, fused: u64) {
    let device = kernel_device();
    let limit = product_limit(&device, 4e-4);
    let (found, launches) = decoded(config, &device);
    assert_eq!(launches, fused, "{what}");
    let (expected, _) = decoded(config, &Device::flex());
    for (layer, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let error = error(found, expected);
        println!("{what}, layer {layer}: {error:.1e}");
        assert!(error < limit, "{what}, layer {layer}: {error:e}");
    }
}

fn caches(layers: usize, method: Method) -> KvCacheConfig {
    KvCacheConfig::new(layers, KV_HEADS, HEAD_DIM)
        .with_method(method.with_sink(3).with_recent(5))
        .with_max_tokens(512)
        .with_poison(true)
}

#[test]
fn exact_layers_and_windows() {
    let _alone = alone();
    for name in ["kivi", "hadamard_centred"] {
        let config = caches(3, method(name))
            .with_exact_layers([0])
            .with_sliding_window(2, 150);
        compare(name, &config, 2);
    }
}

#[test]
fn values_that_arrive_transformed() {
    let _alone = alone();
    let config = caches(1, Method::hadamard()).with_folded_values(true);
    compare("folded", &config, 1);
}
