//! The memory report against the buffers, and against the papers' bits.

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_oscar::backend::{OptionalTensor, Pages};
use burn_oscar::calibration::{CalibrationBuilder, LayerCalibration, Matrices, SideCalibration};
use burn_oscar::quantizer::Segment;
use burn_oscar::{AttentionOptions, KvCache, KvCacheConfig, Method};

fn filled(method: Method, kv_heads: usize, head_dim: usize, tokens: usize) -> KvCache {
    let device = Device::flex();
    let mut cache = KvCacheConfig::new(2, kv_heads, head_dim)
        .with_method(method)
        .with_max_tokens(1024)
        .with_max_sequences(2)
        .init(&device)
        .unwrap();
    let shape = [1, kv_heads, tokens, head_dim];
    for layer in 0..2 {
        let x = Tensor::<4>::random(shape, Distribution::Default, &device);
        cache
            .attend(layer, x.clone(), x.clone(), x, AttentionOptions::causal())
            .unwrap();
    }
    cache
}

fn float_bytes<const D: usize>(tensor: &DispatchTensor) -> usize {
    let data = Tensor::<D>::from_dispatch(tensor.clone()).into_data();
    data.as_bytes().len()
}

fn pages_bytes(pages: &Pages<Dispatch>) -> usize {
    match pages {
        Pages::Exact(tensor) => float_bytes::<4>(tensor),
        Pages::Packed(packed) => {
            let words = Tensor::<3, Int>::from_dispatch(packed.words.clone()).into_data();
            let mut bytes = words.as_bytes().len();
            if let OptionalTensor::Present(tensor) = &packed.pairs {
                bytes += float_bytes::<3>(tensor);
            }
            if let OptionalTensor::Present(tensor) = &packed.norms {
                bytes += float_bytes::<2>(tensor);
            }
            if let OptionalTensor::Present(tensor) = &packed.means {
                bytes += float_bytes::<3>(tensor);
            }
            bytes
        }
    }
}

#[test]
fn allocated_bytes_are_the_sum_of_the_buffers() {
    for name in [
        "exact",
        "kivi",
        "hadamard",
        "hadamard_centred",
        "oscar_scaled",
    ] {
        for (kv_heads, head_dim) in [(3, 64), (2, 128), (1, 80)] {
            let cache = filled(Method::preset(name).unwrap(), kv_heads, head_dim, 600);
            let mut sum = 0;
            for layer in 0..2 {
                let layer = cache.layer(layer).unwrap();
                sum += pages_bytes(&layer.key) + pages_bytes(&layer.value);
                sum += float_bytes::<4>(&layer.key_tier) + float_bytes::<4>(&layer.value_tier);
            }
            let report = cache.memory();
            assert_eq!(report.allocated_bytes, sum, "{name}");
            assert!(report.resident_bytes <= report.allocated_bytes);
            assert_eq!(
                report.resident_bytes,
                report.sink_bytes + report.page_bytes + report.recent_bytes
            );
        }
    }
}

#[test]
fn full_pages_have_the_papers_bits() {
    let bits = |method, kv_heads, head_dim| {
        let report = filled(method, kv_heads, head_dim, 600).memory();
        (report.key_page_bits, report.value_page_bits)
    };
    // One group of 128: 2 bits and an f16 pair.
    assert_eq!(bits(Method::hadamard(), 8, 128), (2.25, 2.25));
    assert_eq!(bits(Method::kivi(), 8, 128), (3.0, 3.0));
    assert_eq!(bits(Method::hadamard_centred(), 8, 128), (2.125, 2.125));
    assert_eq!(bits(Method::exact(), 8, 128), (32.0, 32.0));
    let (key, value) = bits(Method::oscar_scaled(), 8, 128);
    assert!((key - 3.0 - 16.0 / 1024.0).abs() < 1e-9 && value == 3.0);
}

/// Two layers whose keys have other bits: half of the channels at 4, and all at 2.
#[test]
fn bits_are_the_mean_over_layers() {
    let (kv_heads, head_dim) = (2, 64);
    let mut identity = vec![0.0; head_dim * head_dim];
    for i in 0..head_dim {
        identity[i * head_dim + i] = 1.0;
    }
    let layer = |segments: &[Segment]| LayerCalibration {
        key: SideCalibration {
            transform: Some(Matrices::shared(head_dim, identity.clone())),
            segments: Some(segments.to_vec()),
            ..SideCalibration::default()
        },
        value: SideCalibration::default(),
    };
    let calibration = CalibrationBuilder::new("transform_coded", 2, kv_heads, head_dim)
        .fingerprint("model")
        .served_length(1024)
        .tokens(1024)
        .layer(0, layer(&[Segment::new(16, 4)]))
        .layer(1, layer(&[Segment::new(16, 2)]))
        .build()
        .unwrap();
    let method = Method::transform_coded(&calibration).unwrap();
    let report = filled(method, kv_heads, head_dim, 600).memory();
    // An 8-bit scale for 64 channels, and 16 bits of mean for 256 tokens.
    let bits = |codes: f64| codes + 0.125 + 0.0625;
    assert_eq!(report.key_page_bits, (bits(4.0) + bits(2.0)) / 2.0);
    assert_eq!(report.value_page_bits, bits(2.0));
}

/// 64 sinks and 279 recent tokens of f32, and the rest in pages, by hand.
#[test]
fn resident_bytes_by_tier() {
    let (kv_heads, head_dim, tokens) = (2, 128, 64 + 4 * 64 + 279);
    let report = filled(Method::hadamard(), kv_heads, head_dim, tokens).memory();
    let vector = 2 * kv_heads * head_dim * 4 * 2;
    assert_eq!(report.tokens, tokens);
    assert_eq!(report.sink_bytes, 64 * vector);
    assert_eq!(report.recent_bytes, 279 * vector);
    // 36 bytes a token, head and side; two sides, two layers.
    assert_eq!(report.page_bytes, 4 * 64 * kv_heads * 36 * 2 * 2);
    assert_eq!(report.exact_bytes, tokens * vector / 2);
}

#[test]
fn shared_pages_count_once() {
    let mut cache = filled(Method::kivi(), 2, 64, 600);
    let alone = cache.memory();
    cache.fork(cache.sequences()[0]).unwrap();
    let both = cache.memory();
    assert_eq!(both.page_bytes, alone.page_bytes);
    assert_eq!(both.recent_bytes, 2 * alone.recent_bytes);
    assert_eq!(both.tokens, 1200);
}

/// Sizes that no machine has are refused, not computed with.
#[test]
fn impossible_sizes_are_refused() {
    let config = KvCacheConfig::new(2, 2, 64);
    let windows = |sink, recent| Method::exact().with_sink(sink).with_recent(recent);
    for config in [
        config.clone().with_max_tokens(usize::MAX),
        config.clone().with_max_sequences(usize::MAX),
        config.clone().with_method(windows(usize::MAX, 256)),
        config.with_method(windows(64, usize::MAX / 2)),
    ] {
        let error = config.init(&Device::flex()).unwrap_err().to_string();
        assert!(
            error.starts_with("max_tokens") && error.contains("lower"),
            "{error}"
        );
    }
}
