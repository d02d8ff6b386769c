//! Layers that differ: exact ones, sliding windows, other shapes; and partial rotary embeddings.

use burn::tensor::{Device, Distribution, Tensor};
use burn_oscar::{AttentionOptions, Error, KvCache, KvCacheConfig, Method};
use capabilities::dense::DenseSequence;
use capabilities::golden::golden_calibration_for;

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;

fn random(heads: usize, tokens: usize, device: &Device) -> Tensor<4> {
    let shape = [1, heads, tokens, HEAD_DIM];
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

/// `[1, heads, tokens, head_dim]` as `[token][head * channel]`.
fn by_token(tensor: &Tensor<4>) -> Vec<Vec<f32>> {
    let [_, heads, tokens, head_dim] = tensor.dims();
    let flat = tensor.clone().swap_dims(1, 2);
    let flat: Vec<f32> = flat
        .reshape([tokens * heads * head_dim])
        .try_into_vec_as()
        .unwrap();
    flat.chunks(heads * head_dim).map(<[f32]>::to_vec).collect()
}

fn largest(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    pairs.fold(0.0, |largest, (a, b)| (a - b).abs().max(largest))
}

#[test]
fn exact_layers_are_exact_and_the_others_are_not() {
    let device = Device::flex();
    let golden = golden_calibration_for("transform_coded", 3, KV_HEADS);
    for method in [
        Method::kivi(),
        Method::hadamard_centred(),
        Method::oscar_scaled(),
        Method::transform_coded(&golden).unwrap(),
    ] {
        let method = method.with_sink(3).with_recent(5);
        let name = method.name().to_string();
        let mut cache = KvCacheConfig::new(3, KV_HEADS, HEAD_DIM)
            .with_method(method)
            .with_exact_layers([0])
            .with_exact_layers([2])
            .with_poison(true)
            .init(&device)
            .unwrap();
        let mut dense = DenseSequence::default();
        let mut errors = [0f32; 3];
        for tokens in [300, 1, 1] {
            let (query, key, value) = (
                random(HEADS, tokens, &device),
                random(KV_HEADS, tokens, &device),
                random(KV_HEADS, tokens, &device),
            );
            dense.keys.extend(by_token(&key));
            dense.values.extend(by_token(&value));
            let expected = dense.attend(&by_token(&query), KV_HEADS, HEAD_DIM);
            for (layer, error) in errors.iter_mut().enumerate() {
                let found = cache
                    .attend(
                        layer,
                        query.clone(),
                        key.clone(),
                        value.clone(),
                        AttentionOptions::causal(),
                    )
                    .unwrap();
                *error = error.max(largest(&by_token(&found), &expected));
            }
        }
        assert!(errors[0] < 1e-5 && errors[2] < 1e-5, "{name}: {errors:?}");
        assert!(errors[1] > 1e-3, "{name}: {errors:?}");
        // Counted as what they are: two layers of 32 bits, one of the method's.
        let report = cache.memory();
        assert!(report.key_page_bits > 2.0 / 3.0 * 32.0);
        assert!(report.bits_per_value > 2.0 / 3.0 * 32.0);
        // Layers are truncated and forked alike.
        let id = cache.sequences()[0];
        cache.truncate(id, 250).unwrap();
        assert_eq!(cache.lens(), [250]);
    }
}

/// Attention of each query to the newest `window` tokens, written out with the dense cache.
fn windowed(dense: &DenseSequence, queries: &[Vec<f32>], window: usize) -> Vec<Vec<f32>> {
    let past = dense.keys.len() - queries.len();
    let outputs = queries.iter().enumerate().map(|(t, query)| {
        let seen = (past + t + 1).saturating_sub(window)..past + t + 1;
        let near = DenseSequence {
            keys: dense.keys[seen.clone()].to_vec(),
            values: dense.values[seen].to_vec(),
        };
        near.attend(std::slice::from_ref(query), KV_HEADS, HEAD_DIM)
            .remove(0)
    });
    outputs.collect()
}

fn windowed_cache(method: Method, window: usize) -> KvCache {
    KvCacheConfig::new(2, KV_HEADS, HEAD_DIM)
        .with_method(method.with_sink(3).with_recent(5))
        .with_sliding_window(1, window)
        .with_poison(true)
        .init(&Device::flex())
        .unwrap()
}

/// Windows that end in each tier, calls of any length, and a layer beside that sees everything.
#[test]
fn a_sliding_window_is_that_of_dense_attention() {
    let device = Device::flex();
    for window in [1, 4, 40, 72, 100, 250, 1000] {
        for options in [
            AttentionOptions::causal(),
            AttentionOptions::causal().streaming(),
        ] {
            let mut cache = windowed_cache(Method::exact(), window);
            let mut dense = DenseSequence::default();
            for tokens in [150, 1, 60, 1, 1] {
                let (query, key, value) = (
                    random(HEADS, tokens, &device),
                    random(KV_HEADS, tokens, &device),
                    random(KV_HEADS, tokens, &device),
                );
                dense.keys.extend(by_token(&key));
                dense.values.extend(by_token(&value));
                let queries = by_token(&query);
                for layer in 0..2 {
                    let expected = match layer {
                        0 => dense.attend(&queries, KV_HEADS, HEAD_DIM),
                        _ => windowed(&dense, &queries, window),
                    };
                    let (query, key, value) = (query.clone(), key.clone(), value.clone());
                    let found = cache.attend(layer, query, key, value, options.clone());
                    let error = largest(&by_token(&found.unwrap()), &expected);
                    assert!(error < 1e-5, "window {window}, layer {layer}: {error:e}");
                }
            }
        }
    }
}

/// With two bits, what the window sees is what is stored.
#[test]
fn a_window_over_packed_pages_sees_the_stored_tokens() {
    let device = Device::flex();
    let window = 100;
    let mut cache = windowed_cache(Method::kivi(), window);
    let [key, value] = [0, 1].map(|_| random(KV_HEADS, 210, &device));
    for layer in 0..2 {
        let (key, value) = (key.clone(), value.clone());
        cache
            .extend(layer, key, value, AttentionOptions::causal())
            .unwrap();
    }
    let [keys, values] = cache.dequantize(cache.sequences()[0], 1).unwrap();
    let mut stored = DenseSequence {
        keys: by_token(&keys.unsqueeze()),
        values: by_token(&values.unsqueeze()),
    };
    let (query, key, value) = (
        random(HEADS, 1, &device),
        random(KV_HEADS, 1, &device),
        random(KV_HEADS, 1, &device),
    );
    stored.keys.extend(by_token(&key));
    stored.values.extend(by_token(&value));
    let expected = windowed(&stored, &by_token(&query), window);
    let all = stored.attend(&by_token(&query), KV_HEADS, HEAD_DIM);
    let found = cache.attend(1, query, key, value, AttentionOptions::causal());
    let found = by_token(&found.unwrap());
    assert!(largest(&found, &expected) < 1e-5);
    assert!(largest(&found, &all) > 1e-2);
}

#[test]
fn layers_that_do_not_exist_and_windows_of_nothing_are_refused() {
    let device = Device::flex();
    let config = KvCacheConfig::new(2, KV_HEADS, HEAD_DIM);
    for config in [
        config.clone().with_exact_layers([0, 2]),
        config.clone().with_sliding_window(2, 8),
    ] {
        let error = config.init(&device).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Layer {
                    layer: 2,
                    layers: 2
                }
            ),
            "{error}"
        );
    }
    let error = config
        .clone()
        .with_sliding_window(0, 0)
        .init(&device)
        .unwrap_err();
    assert_eq!(error.to_string(), "sliding window is 0: give at least 1");

    let mut cache = windowed_cache(Method::kivi(), 8);
    let error = cache.plan_decode(&AttentionOptions::causal()).unwrap_err();
    assert!(
        error.to_string().contains("sliding window in layer 1"),
        "{error}"
    );
    let error = cache.attend_only(1, random(HEADS, 1, &device), AttentionOptions::causal());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("sliding window of 8"), "{error}");
    #[cfg(feature = "calibrate")]
    {
        let observing = config
            .with_sliding_window(0, 8)
            .observing(burn_oscar::ObserveOptions::default());
        let error = observing.init(&device).unwrap_err();
        assert!(
            error.to_string().contains("sliding window in layer 0"),
            "{error}"
        );
    }
}

/// A model whose layers have different heads has a cache for each shape.
#[test]
fn layers_of_two_shapes_have_two_caches() {
    let device = Device::flex();
    let shapes = [(2, 64), (1, 128)];
    let mut caches = shapes.map(|(kv_heads, head_dim)| {
        KvCacheConfig::new(2, kv_heads, head_dim)
            .with_method(Method::exact().with_sink(3).with_recent(5))
            .init(&device)
            .unwrap()
    });
    let mut dense: [DenseSequence; 4] = Default::default();
    for tokens in [100, 1] {
        for (layer, dense) in dense.iter_mut().enumerate() {
            let (kv_heads, head_dim) = shapes[layer % 2];
            let random = |heads| {
                let shape = [1, heads, tokens, head_dim];
                Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &device)
            };
            let (query, key, value) = (random(4), random(kv_heads), random(kv_heads));
            dense.keys.extend(by_token(&key));
            dense.values.extend(by_token(&value));
            let expected = dense.attend(&by_token(&query), kv_heads, head_dim);
            let cache = &mut caches[layer % 2];
            let options = AttentionOptions::causal();
            let found = cache.attend(layer / 2, query, key, value, options).unwrap();
            assert!(largest(&by_token(&found), &expected) < 1e-5);
        }
    }
    assert_eq!(caches.map(|cache| cache.lens()), [[101], [101]]);
}

/// Turns the first half of the channels by the position and leaves the others, as models with a
/// partial rotary embedding do: the cache sees no difference.
#[test]
fn partial_rotary_embeddings_need_nothing() {
    let device = Device::flex();
    let rope = burn::nn::RotaryEncodingConfig::new(256, HEAD_DIM / 2).init(&device);
    let turned = |x: Tensor<4>, start| {
        let half = HEAD_DIM / 2;
        let rotated = rope.apply(x.clone().narrow(3, 0, half), start);
        Tensor::cat(vec![rotated, x.narrow(3, half, half)], 3)
    };
    let limits = [
        (Method::exact(), 1e-5),
        (Method::hadamard().with_bits(8).unwrap(), 0.03),
    ];
    for (method, limit) in limits {
        let mut cache = KvCacheConfig::new(1, KV_HEADS, HEAD_DIM)
            .with_method(method.with_sink(3).with_recent(5))
            .init(&device)
            .unwrap();
        let mut dense = DenseSequence::default();
        for tokens in [100, 1, 1] {
            let start = dense.keys.len();
            let query = turned(random(HEADS, tokens, &device), start);
            let key = turned(random(KV_HEADS, tokens, &device), start);
            let value = random(KV_HEADS, tokens, &device);
            dense.keys.extend(by_token(&key));
            dense.values.extend(by_token(&value));
            let expected = dense.attend(&by_token(&query), KV_HEADS, HEAD_DIM);
            let options = AttentionOptions::causal();
            let found = cache.attend(0, query, key, value, options).unwrap();
            assert!(largest(&by_token(&found), &expected) < limit);
        }
        assert!(cache.memory().page_bytes > 0);
    }
}
