//! Real activations through the kernels, transforms and all, against the portable bodies on flex.

use burn::tensor::{DType, Device, Tensor};
use burn_oscar::{AttentionOptions, KvCacheConfig, Method};
use capabilities::fixtures::Fixture;
use capabilities::golden::{HEAD_DIM, KV_HEADS, golden_calibration};
use capabilities::recipes::{Noise, kernel_device};

use super::{alone, error, numbers};

const SINK: usize = 5;
const RECENT: usize = 7;

/// The attention of a last token after those that fill a page, and the words of the pages.
fn run(method: &Method, device: &Device) -> (Vec<f64>, [Vec<u32>; 2]) {
    let golden = Fixture::golden();
    let tokens = SINK + RECENT + method.page_tokens() + 2;
    let [key, value] = ["k", "v"].map(|side| {
        let side: Tensor<3> = golden.tensor(&format!("layer20.{side}"), device);
        side.narrow(1, 0, tokens).unsqueeze::<4>()
    });
    let query = Noise(11).query([1, 3 * KV_HEADS, 1, HEAD_DIM], DType::F32, device) * 0.5;
    let mut cache = KvCacheConfig::new(1, KV_HEADS, HEAD_DIM)
        .with_method(method.clone().with_sink(SINK).with_recent(RECENT))
        .with_max_tokens(2 * tokens)
        .with_poison(true)
        .init(device)
        .unwrap();
    let options = AttentionOptions::causal();
    let part = |start, count| [&key, &value].map(|side| side.clone().narrow(2, start, count));
    let [key, value] = part(0, tokens - 1);
    cache.extend(0, key, value, options.clone()).unwrap();
    let [key, value] = part(tokens - 1, 1);
    let output = cache.attend(0, query, key, value, options).unwrap();
    let words = cache.packed_words(cache.sequences()[0], 0).unwrap();
    let words = words.map(|words| match words {
        Some(words) => words.try_into_vec_as().unwrap(),
        None => Vec::new(),
    });
    (numbers(output), words)
}

fn check(method: &Method) {
    let (found, found_words) = run(method, &kernel_device());
    let (expected, expected_words) = run(method, &Device::flex());
    let exact = Method::exact();
    let exact = exact.with_sink(SINK + RECENT + method.page_tokens() + 2);
    let (exact, _) = run(&exact, &Device::flex());
    let different = |side: usize| {
        let pairs = found_words[side].iter().zip(&expected_words[side]);
        let different = pairs.filter(|(found, expected)| found != expected).count();
        different as f64 / expected_words[side].len() as f64
    };
    let different = [different(0), different(1)];
    let [wrong, cost] = [error(&found, &expected), error(&expected, &exact)];
    println!(
        "{}: {wrong:.1e} beside {cost:.1e} that packing costs, other words {different:?}",
        method.name()
    );
    // A product of matrices that is rounded otherwise moves some numbers to another code, and a GPU
    // may multiply in TF32; its attention rounds queries and weights to 16 bits.
    let (words_limit, limit) = match std::env::var("BURN_OSCAR_DEVICE") {
        Ok(_) => (5e-2, cost / 50.0),
        Err(_) => (1e-2, 1e-4),
    };
    assert!(
        different.iter().all(|&share| share < words_limit),
        "{different:?}"
    );
    assert!(wrong < limit && cost > 1e-3, "{wrong:e}, {cost:e}");
}

#[test]
fn attention_of_real_activations() {
    let _alone = alone();
    check(&Method::kivi());
    check(&Method::hadamard_centred());
}

#[test]
fn attention_of_calibrated_real_activations() {
    let _alone = alone();
    let calibration = golden_calibration("transform_coded", 1);
    check(&Method::transform_coded(&calibration).unwrap());
}
