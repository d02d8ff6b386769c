//! Head sizes, head ratios and activation dtypes, against a dense cache.

use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_oscar::{AttentionOptions, KvCacheConfig, Method};
use capabilities::dense::DenseSequence;

/// `[1, heads, tokens, head_dim]` as `[token][head * channel]`.
fn by_token(tensor: &Tensor<4>) -> Vec<Vec<f32>> {
    let [_, heads, tokens, head_dim] = tensor.dims();
    let flat = tensor.clone().cast(DType::F32).swap_dims(1, 2);
    let flat = flat.reshape([tokens * heads * head_dim]);
    let flat: Vec<f32> = flat.try_into_vec_as().unwrap();
    flat.chunks(heads * head_dim).map(<[f32]>::to_vec).collect()
}

/// Prefill and two single tokens; the largest difference from dense attention.
fn largest_difference(
    method: &Method,
    head_dim: usize,
    kv_heads: usize,
    ratio: usize,
    dtype: DType,
) -> f32 {
    let device = Device::flex();
    let mut cache = KvCacheConfig::new(1, kv_heads, head_dim)
        .with_method(method.clone().with_sink(3).with_recent(5))
        .with_dtype(dtype)
        .with_poison(true)
        .init(&device)
        .unwrap();
    let mut dense = DenseSequence::default();
    let mut largest = 0f32;
    for tokens in [300, 1, 1] {
        let random = |heads| {
            let shape = [1, heads, tokens, head_dim];
            Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &device).cast(dtype)
        };
        let (query, key, value) = (random(kv_heads * ratio), random(kv_heads), random(kv_heads));
        dense.keys.extend(by_token(&key));
        dense.values.extend(by_token(&value));
        let expected = dense.attend(&by_token(&query), kv_heads, head_dim);
        let options = AttentionOptions::causal();
        let output = cache.attend(0, query, key, value, options).unwrap();
        assert_eq!(output.dtype(), dtype);
        for (found, expected) in by_token(&output).concat().iter().zip(expected.concat()) {
            largest = largest.max((found - expected).abs());
        }
    }
    assert!(cache.memory().page_bytes > 0);
    largest
}

#[test]
fn every_head_size_and_ratio() {
    let bits8 = |method: Method| method.with_bits(8).unwrap();
    let methods = [
        (Method::exact(), 1e-5),
        (bits8(Method::kivi()), 0.03),
        (bits8(Method::oscar_scaled()), 0.03),
        (bits8(Method::hadamard_centred()), 0.05),
    ];
    for head_dim in [64, 80, 96, 112, 128, 160, 192, 256] {
        for (kv_heads, ratio) in [(2, 1), (3, 2), (1, 7), (1, 16)] {
            for (method, tolerance) in &methods {
                let found = largest_difference(method, head_dim, kv_heads, ratio, DType::F32);
                assert!(
                    found < *tolerance,
                    "{} {head_dim} {kv_heads}x{ratio}: {found}",
                    method.name()
                );
            }
        }
    }
}

#[test]
fn half_precision_activations() {
    for (dtype, tolerance) in [(DType::F16, 0.01), (DType::BF16, 0.05)] {
        for method in [Method::exact(), Method::hadamard().with_bits(8).unwrap()] {
            let found = largest_difference(&method, 64, 2, 4, dtype);
            assert!(found < tolerance, "{} in {dtype:?}: {found}", method.name());
        }
    }
}
