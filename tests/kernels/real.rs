//! Real activations through the kernels, transforms and all, against the portable bodies on flex.

use burn::tensor::DType;
use burn::tensor::{Device, Tensor};
use burn_oscar::{AttentionOptions, KvCacheConfig, Method};
use capabilities::fixtures::Fixture;
use capabilities::golden::{HEAD_DIM, KV_HEADS, golden_calibration};
use capabilities::recipes::{Noise, kernel_device};

use super::{error, numbers};

/// The attention of a last token after all others, and what is stored of them.
fn run(method: &Method, device: &Device) -> [Vec<f64>; 3] {
    let golden = Fixture::golden();
    let [key, value] = ["k", "v"].map(|side| {
        let side: Tensor<3> = golden.tensor(&format!("layer20.{side}"), device);
        side.unsqueeze::<4>()
    });
    let tokens = key.dims()[2];
    let query = Noise(11).query([1, 3 * KV_HEADS, 1, HEAD_DIM], DType::F32, device) * 2.0;
    let mut cache = KvCacheConfig::new(1, KV_HEADS, HEAD_DIM)
        .with_method(method.clone().with_sink(5).with_recent(7))
        .with_max_tokens(tokens)
        .with_poison(true)
        .init(device)
        .unwrap();
    let options = AttentionOptions::causal();
    let [held, last] = [(0, tokens - 1), (tokens - 1, 1)]
        .map(|(start, count)| [&key, &value].map(|side| side.clone().narrow(2, start, count)));
    let [held_key, held_value] = held;
    cache
        .extend(0, held_key, held_value, options.clone())
        .unwrap();
    let [key, value] = last;
    let output = cache.attend(0, query, key, value, options).unwrap();
    assert!(cache.memory().page_bytes > 0);
    let [keys, values] = cache.dequantize(cache.sequences()[0], 0).unwrap();
    [numbers(output), numbers(keys), numbers(values)]
}

fn check(method: &Method) {
    let found = run(method, &kernel_device());
    let expected = run(method, &Device::flex());
    let errors = [0, 1, 2].map(|i| error(&found[i], &expected[i]));
    println!("{}: output, keys, values {errors:?}", method.name());
    // A product of matrices that is rounded otherwise moves a number in a thousand to another code.
    assert!(errors.iter().all(|&error| error < 1e-2), "{errors:?}");
}

#[test]
fn attention_of_real_activations() {
    check(&Method::kivi());
    check(&Method::hadamard_centred());
}

#[test]
fn attention_of_calibrated_real_activations() {
    let calibration = golden_calibration("transform_coded", 1);
    check(&Method::transform_coded(&calibration).unwrap());
}
