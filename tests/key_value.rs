//! The drop-in: keys and values in, all keys and values out, against the call that attends.

use burn::tensor::activation::softmax;
use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_oscar::module::KeyValueCache;
use burn_oscar::{AttentionOptions, Error, KvCacheConfig, Method};
use capabilities::golden::golden_calibration_for;

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const LAYERS: usize = 2;
const BATCH: usize = 2;

fn random(heads: usize, tokens: usize, device: &Device) -> Tensor<4> {
    let shape = [BATCH, heads, tokens, HEAD_DIM];
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

/// What a model does with all keys and values by itself.
fn dense(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Tensor<4> {
    let [batch, kv_heads, all, head_dim] = key.dims();
    let [_, heads, tokens, _] = query.dims();
    let repeated = |side: Tensor<4>| {
        let side = side.unsqueeze_dim::<5>(2);
        let side = side.expand([batch, kv_heads, heads / kv_heads, all, head_dim]);
        side.reshape([batch, heads, all, head_dim])
    };
    let scores = query.matmul(repeated(key).transpose()) / (head_dim as f64).sqrt();
    let mask = Tensor::<2>::ones([tokens, all], &scores.device())
        .triu((all - tokens) as i64 + 1)
        .bool();
    let scores = scores.mask_fill(mask.unsqueeze::<4>(), f32::NEG_INFINITY);
    softmax(scores, 3).matmul(repeated(value))
}

fn largest<const D: usize>(found: Tensor<D>, expected: Tensor<D>) -> f32 {
    (found - expected).abs().max().into_scalar()
}

fn methods() -> Vec<Method> {
    let golden = |name| golden_calibration_for(name, LAYERS, KV_HEADS);
    vec![
        Method::exact(),
        Method::kivi(),
        Method::hadamard_centred(),
        Method::oscar_scaled(),
        Method::oscar(&golden("oscar")).unwrap(),
        Method::transform_coded(&golden("transform_coded")).unwrap(),
    ]
}

#[test]
fn a_model_s_own_attention_sees_what_attend_sees() {
    let device = Device::flex();
    for method in methods() {
        let method = method.with_sink(3).with_recent(5);
        let config = KvCacheConfig::new(LAYERS, KV_HEADS, HEAD_DIM)
            .with_method(method.clone())
            .with_max_tokens(1024)
            .with_poison(true);
        let mut layers = KeyValueCache::for_layers(&config, BATCH, &device).unwrap();
        assert_eq!(layers.len(), LAYERS);
        let mut cache = config.with_max_sequences(BATCH).init(&device).unwrap();
        cache.add_sequence().unwrap();
        let mut len = 0;
        for tokens in [300, 1, 70, 1, 1] {
            for (layer, held) in layers.iter_mut().enumerate() {
                let query = random(HEADS, tokens, &device);
                let (key, value) = (
                    random(KV_HEADS, tokens, &device),
                    random(KV_HEADS, tokens, &device),
                );
                assert_eq!(held.len(), len);
                let (keys, values) = held.forward(key.clone(), value.clone()).unwrap();
                assert_eq!(keys.dims(), [BATCH, KV_HEADS, len + tokens, HEAD_DIM]);
                // This call's own are as they came.
                let own = |all: &Tensor<4>| all.clone().narrow(2, len, tokens);
                assert_eq!(largest(own(&keys), key.clone()), 0.0);
                assert_eq!(largest(own(&values), value.clone()), 0.0);
                let found = dense(query.clone(), keys, values);
                let options = AttentionOptions::causal();
                let expected = cache.attend(layer, query, key, value, options).unwrap();
                let error = largest(found, expected);
                assert!(error < 2e-5, "{}: {error:e}", method.name());
            }
            len += tokens;
        }
        // It stores what the cache stores.
        let of_layers: usize = layers.iter().map(|held| held.memory().resident_bytes).sum();
        assert_eq!(of_layers, cache.memory().resident_bytes);
    }
}

#[test]
fn exact_gives_back_everything_that_came_in() {
    for dtype in [DType::F32, DType::F16] {
        let device = Device::flex();
        let method = Method::exact().with_sink(3).with_recent(5);
        let config = KvCacheConfig::new(1, KV_HEADS, HEAD_DIM)
            .with_method(method)
            .with_dtype(dtype);
        let mut cache = KeyValueCache::for_layers(&config, BATCH, &device)
            .unwrap()
            .remove(0);
        let all = [0, 1].map(|_| random(KV_HEADS, 200, &device).cast(dtype));
        let part = |side: usize, start, count| all[side].clone().narrow(2, start, count);
        for (start, count) in [(0, 90), (90, 109), (199, 1)] {
            let (key, value) = (part(0, start, count), part(1, start, count));
            let (keys, values) = cache.forward(key, value).unwrap();
            assert_eq!(keys.dtype(), dtype);
            for (side, found) in [keys, values].into_iter().enumerate() {
                let expected = part(side, 0, start + count);
                assert_eq!(
                    largest(found.cast(DType::F32), expected.cast(DType::F32)),
                    0.0
                );
            }
        }
        cache.truncate(150).unwrap();
        let (keys, _) = cache.forward(part(0, 150, 1), part(1, 150, 1)).unwrap();
        let expected = part(0, 0, 151).cast(DType::F32);
        assert_eq!(largest(keys.cast(DType::F32), expected), 0.0);
        let error = cache.truncate(152).unwrap_err();
        assert!(matches!(error, Error::TruncateBeyond { .. }), "{error}");
        assert_eq!(cache.len(), 151);
        cache.reset();
        assert!(cache.is_empty());
    }
}

#[test]
fn a_call_that_fails_stores_nothing() {
    let device = Device::flex();
    let config = KvCacheConfig::new(1, KV_HEADS, HEAD_DIM).with_method(Method::kivi());
    let mut cache = KeyValueCache::for_layers(&config, BATCH, &device)
        .unwrap()
        .remove(0);
    let side = |tokens| random(KV_HEADS, tokens, &device);
    cache.forward(side(7), side(7)).unwrap();
    let error = cache.forward(side(2), side(1)).unwrap_err();
    assert!(matches!(error, Error::Shape { .. }), "{error}");
    let error = cache.forward(side(1) * f32::NAN, side(1)).unwrap_err();
    assert!(matches!(error, Error::NotFinite { .. }), "{error}");
    assert_eq!(cache.len(), 7);
    let (keys, _) = cache.forward(side(1), side(1)).unwrap();
    assert_eq!(keys.dims()[2], 8);
    let error = KeyValueCache::for_layers(&config, 0, &device).unwrap_err();
    assert!(matches!(error, Error::Zero { .. }), "{error}");
}
