//! Cross-attention.

use burn::module::Module;
use burn::nn::attention::{CrossAttention, CrossAttentionConfig};
use burn::tensor::{Device, Tensor};
use burn_oscar::module::CachedCrossAttention;
use burn_oscar::{AttentionOptions, Method, Padding};

use super::{error, input, mask, on};

const D_MODEL: usize = 64;
const D_CONTEXT: usize = 48;

/// Four query heads over two KV heads.
fn config() -> CrossAttentionConfig {
    CrossAttentionConfig::new(D_MODEL, D_CONTEXT, 4, 2, 32)
}

fn trained() -> CrossAttention {
    let device = Device::flex();
    device.seed(4);
    config().init(&device)
}

/// Encodes a memory whose rows have the given `(start, tokens)`, and reads it with one and with
/// several queries.
pub fn check(method: &Method, rows: &[(usize, usize)], width: usize, device: &Device) -> f64 {
    let flex = Device::flex();
    let trained = trained();
    let on_device = trained.clone().to_device(device);
    let cross = CachedCrossAttention::new(&on_device, &config()).unwrap();
    let mut cache = cross
        .cache_config(1)
        .with_method(method.clone())
        .with_max_sequences(rows.len())
        .with_max_tokens(512)
        .with_poison(true)
        .init(device)
        .unwrap();
    for _ in 1..rows.len() {
        cache.add_sequence().unwrap();
    }
    let memory: Tensor<3> = input(1, [rows.len(), width, D_CONTEXT], &flex);
    let mask_pad = mask(rows, width, &flex);
    let padding = Padding::from_mask(mask(rows, width, device)).unwrap();
    let options = AttentionOptions::causal().padding(&padding);
    cross
        .encode(&mut cache, 0, on(&memory, device), options)
        .unwrap();
    assert_eq!(cache.lens(), padding.lens());
    let errors = [1, 1, 20].into_iter().enumerate().map(|(i, tokens)| {
        let x = input(2 + i as u64, [rows.len(), tokens, D_MODEL], &flex);
        let expected = trained.forward(x.clone(), memory.clone(), Some(mask_pad.clone()));
        let options = AttentionOptions::causal();
        let found = cross
            .forward(&mut cache, 0, on(&x, device), options)
            .unwrap();
        error(on(&found, &flex), expected, None)
    });
    let largest = errors.fold(0.0, f64::max);
    assert_eq!(cache.lens(), padding.lens(), "reading appends nothing");
    largest
}

#[test]
fn exact_is_the_undecorated_module() {
    let device = Device::flex();
    let rows = [(0, 200), (72, 128), (11, 64), (0, 1)];
    for (sink, recent) in [(0, 0), (4, 16)] {
        let method = Method::exact().with_sink(sink).with_recent(recent);
        let error = check(&method, &rows, 200, &device);
        assert!(error < 1e-5, "{sink} {recent}: {error}");
    }
}

#[test]
fn two_bits_stay_within_their_error() {
    for (method, limit) in [
        (Method::hadamard_centred(), 0.04),
        (Method::oscar_scaled(), 0.04),
    ] {
        let name = method.name().to_string();
        let method = method.with_sink(0).with_recent(0);
        let error = check(&method, &[(0, 300), (0, 300)], 300, &Device::flex());
        println!("{name}: {error:.4}");
        assert!(error > 1e-4 && error < limit, "{name}: {error}");
    }
}
