//! Models whose projections carry the value transform, against the same models without.

use burn::module::Param;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_oscar::calibration::{CalibrationBuilder, LayerCalibration, Matrices, SideCalibration};
use burn_oscar::module::fold_values;
use burn_oscar::{AttentionOptions, Error, KvCache, KvCacheConfig, Method};
use capabilities::golden::{HEAD_DIM, golden_calibration_for};
use models::model::Model;

use crate::logits::assert_equal;
use crate::logits::checkpoint::{Checkpoint, PREFILL};

/// Methods with a value transform: Hadamard, calibrated, and with a mean.
fn methods(checkpoint: &Checkpoint) -> Vec<Method> {
    let config = &checkpoint.loaded.config;
    let calibrated = |name| {
        let golden = golden_calibration_for(name, config.num_layers, config.num_kv_heads);
        Method::calibrated(name, &golden).unwrap()
    };
    vec![
        Method::hadamard(),
        Method::hadamard_centred(),
        Method::oscar_scaled(),
        calibrated("oscar"),
        calibrated("transform_coded"),
    ]
}

fn config(checkpoint: &Checkpoint, method: &Method, folded: bool) -> KvCacheConfig {
    let config = &checkpoint.loaded.config;
    KvCacheConfig::new(config.num_layers, config.num_kv_heads, config.head_dim)
        .with_method(method.clone())
        .with_max_tokens(checkpoint.tokens.len())
        .with_poison(true)
        .with_folded_values(folded)
}

/// The logits of the checkpoint's text, and the cache that holds it.
fn run(checkpoint: &mut Checkpoint, method: &Method, folded: bool) -> (Vec<Vec<f32>>, KvCache) {
    let config = config(checkpoint, method, folded);
    let plain: Model = checkpoint.loaded.model.clone();
    if folded {
        checkpoint.loaded.model = plain.clone().fold_values(&config).expect("folds");
    }
    let mut cache = config.init(&checkpoint.device).unwrap();
    let logits = checkpoint.feed(&mut cache, &[PREFILL]);
    checkpoint.loaded.model = plain;
    (logits, cache)
}

fn products(cache: &KvCache) -> u64 {
    let layers = 0..cache.n_layers();
    layers
        .map(|layer| cache.transform(layer).unwrap().products())
        .sum()
}

/// Values without a bias (Qwen3, Llama) and with one (Qwen2), grouped heads, every transform.
#[test]
fn logits_are_unchanged_and_two_of_four_products_are_gone() {
    for name in ["qwen3-tiny", "qwen2-tiny", "llama-tiny"] {
        let mut checkpoint = Checkpoint::open(name);
        let layers = checkpoint.loaded.config.num_layers as u64;
        for method in methods(&checkpoint) {
            // Nothing is packed: what is left of the method is its transforms.
            let method = method.with_sink(128);
            let what = format!("{name}, {}", method.name());
            let (logits, cache) = run(&mut checkpoint, &method, true);
            assert_equal(&what, &logits, &checkpoint.logits);
            let (_, plain) = run(&mut checkpoint, &method, false);
            // One call for the prefill, and one for each token that follows.
            let calls = layers * (1 + checkpoint.tokens.len() - PREFILL) as u64;
            assert_eq!(products(&plain), 4 * calls, "{what}");
            assert_eq!(products(&cache), 2 * calls, "{what}");
            let bytes = |cache: &KvCache| cache.memory().transform_bytes;
            assert!(bytes(&cache) < bytes(&plain), "{what}");
        }
    }
}

/// Words of all pages, keys and values, by layer.
fn words(cache: &KvCache) -> Vec<[Vec<u32>; 2]> {
    let id = cache.sequences()[0];
    (0..cache.n_layers())
        .map(|layer| {
            let sides = cache.packed_words(id, layer).unwrap();
            sides.map(|side| side.expect("packed").try_into_vec_as().unwrap())
        })
        .collect()
}

/// The numbers that are packed differ in the last place, since `x (V A)` is summed in another order
/// than `(x V) A`: a code or a scale on the edge may fall to the other side, and no more than that.
#[test]
fn the_same_bits_are_stored() {
    let mut checkpoint = Checkpoint::open("qwen3-tiny");
    for method in methods(&checkpoint) {
        // Page means take pages of 256 tokens, more than the text has.
        let method = method.with_page_means(false).with_sink(3).with_recent(5);
        let what = method.name().to_string();
        let (found, folded) = run(&mut checkpoint, &method, true);
        let (expected, plain) = run(&mut checkpoint, &method, false);
        let (folded, plain) = (words(&folded), words(&plain));
        assert_eq!(folded[0][0], plain[0][0], "{what}: keys of the first layer");
        let flat = |words: &[[Vec<u32>; 2]]| words.concat().concat();
        let (folded, plain) = (flat(&folded), flat(&plain));
        let differ = folded.iter().zip(&plain).map(|(a, b)| (a ^ b).count_ones());
        let (differ, all) = (differ.sum::<u32>(), 32 * plain.len() as u32);
        println!("{what}: {differ} of {all} bits differ");
        assert!(
            f64::from(differ) <= 1e-3 * f64::from(all),
            "{what}: {differ}"
        );
        // Scales are f16, and one that lies between two of them may fall to either side.
        let relative = largest_difference(&found, &expected);
        println!("{what}: logits differ by {relative:.1e}");
        assert!(relative < 1e-3, "{what}: {relative:e}");
    }
}

/// Of any position, over its largest logit.
fn largest_difference(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    let positions = found.iter().zip(expected).map(|(found, expected)| {
        let pairs = found.iter().zip(expected);
        let difference = pairs.map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        difference / expected.iter().map(|b| b.abs()).fold(0f32, f32::max)
    });
    positions.fold(0.0, f32::max)
}

/// Attention written out, from hidden states to hidden states.
fn attention(
    cache: &mut KvCache,
    heads: usize,
    [query, key]: [&Tensor<4>; 2],
    hidden: &Tensor<3>,
    value: &Linear,
    output: &Linear,
) -> Tensor<3> {
    let [batch, tokens, _] = hidden.dims();
    let (kv_heads, head_dim) = (cache.config().n_kv_heads(), cache.config().head_dim());
    let value = value.forward(hidden.clone());
    let value = value.reshape([batch, tokens, kv_heads, head_dim]);
    let context = cache
        .attend(
            0,
            query.clone(),
            key.clone(),
            value.swap_dims(1, 2),
            AttentionOptions::causal(),
        )
        .unwrap();
    let context = context.swap_dims(1, 2);
    output.forward(context.reshape([batch, tokens, heads * head_dim]))
}

/// Matrices that differ by head and are not orthogonal, means, biases or none, heads that are
/// grouped or not, and weights of 16 bits.
#[test]
fn matrices_of_every_head_biases_and_half_precision() {
    let device = Device::flex();
    let (tokens, d_model) = (9, 40);
    for (kv_heads, group) in [(1, 1), (2, 1), (3, 2)] {
        for (bias, dtype, tolerance) in [
            (true, DType::F32, 1e-5),
            (false, DType::F32, 1e-5),
            (true, DType::F16, 5e-3),
        ] {
            let heads = kv_heads * group;
            let method = stretched(kv_heads);
            let caches = KvCacheConfig::new(1, kv_heads, HEAD_DIM)
                .with_method(method)
                .with_dtype(dtype);
            let random = |shape: [usize; 3]| {
                Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), &device).cast(dtype)
            };
            let linear = |input, output| {
                let linear = LinearConfig::new(input, output)
                    .with_bias(bias)
                    .init(&device);
                Linear {
                    weight: linear.weight.map(|weight| weight.cast(dtype)),
                    bias: linear.bias.map(|bias| bias.map(|bias| bias.cast(dtype))),
                }
            };
            let value = linear(d_model, kv_heads * HEAD_DIM);
            let output = linear(heads * HEAD_DIM, d_model);
            let hidden = random([2, tokens, d_model]);
            let query = random([2, heads, tokens * HEAD_DIM]);
            let key = random([2, kv_heads, tokens * HEAD_DIM]);
            let query = query.reshape([2, heads, tokens, HEAD_DIM]);
            let key = key.reshape([2, kv_heads, tokens, HEAD_DIM]);

            let folded = caches.clone().with_folded_values(true);
            let (value2, output2) = fold_values(&folded, 0, value.clone(), output.clone()).unwrap();
            assert_eq!(value2.weight.val().dtype(), dtype);
            assert_eq!(value2.weight.id, value.weight.id);
            // A mean needs somewhere to go.
            assert!(value2.bias.is_some() && output2.bias.is_some());
            let of = |caches: &KvCacheConfig, value: &Linear, output: &Linear| {
                let mut cache = caches.clone().with_max_sequences(2).init(&device).unwrap();
                cache.add_sequence().unwrap();
                attention(&mut cache, heads, [&query, &key], &hidden, value, output)
            };
            let expected = of(&caches, &value, &output);
            let found = of(&folded, &value2, &output2);
            let relative = distance(found, expected.clone());
            assert!(
                relative < tolerance,
                "{kv_heads}x{group} {bias} {dtype:?}: {relative:e}"
            );
            // One projection without the other: the test can fail.
            assert!(distance(of(&folded, &value2, &output), expected) > 0.1);
        }
    }
}

/// The largest difference over the largest number.
fn distance(found: Tensor<3>, expected: Tensor<3>) -> f32 {
    let (found, expected) = (found.cast(DType::F32), expected.cast(DType::F32));
    let largest: f32 = expected.clone().abs().max().into_scalar();
    let difference: f32 = (found - expected).abs().max().into_scalar();
    difference / largest
}

/// `oscar` with the golden rotations, stretched by another factor for each head, and with means.
fn stretched(kv_heads: usize) -> Method {
    let golden = golden_calibration_for("oscar", 1, kv_heads);
    let rotation = &golden.layer(0).value.transform.as_ref().unwrap().data;
    let scaled = |transposed: bool| {
        let heads = (0..kv_heads).flat_map(|head| {
            let factor = 1.0 + 0.5 * head as f32;
            (0..HEAD_DIM * HEAD_DIM).map(move |i| match transposed {
                false => factor * rotation[i],
                true => rotation[i % HEAD_DIM * HEAD_DIM + i / HEAD_DIM] / factor,
            })
        });
        Some(Matrices::per_head(kv_heads, HEAD_DIM, heads.collect()))
    };
    let layer = LayerCalibration {
        key: golden.layer(0).key.clone(),
        value: SideCalibration {
            transform: scaled(false),
            inverse: scaled(true),
            mean: Some(
                (0..kv_heads * HEAD_DIM)
                    .map(|i| (i % 7) as f32 - 3.0)
                    .collect(),
            ),
            ..golden.layer(0).value.clone()
        },
    };
    let calibration = CalibrationBuilder::new("oscar", 1, kv_heads, HEAD_DIM)
        .fingerprint("stretched")
        .served_length(64)
        .tokens(64)
        .layer(0, layer)
        .build()
        .unwrap();
    Method::oscar(&calibration).unwrap()
}

#[test]
fn exact_layers_are_left_as_they_are() {
    let device = Device::flex();
    let config = KvCacheConfig::new(2, 2, HEAD_DIM)
        .with_method(Method::hadamard())
        .with_folded_values(true)
        .with_exact_layers([0]);
    let value = LinearConfig::new(8, 2 * HEAD_DIM).init(&device);
    let output = LinearConfig::new(4 * HEAD_DIM, 8).init(&device);
    for (layer, same) in [(0, true), (1, false)] {
        let (folded, _) = fold_values(&config, layer, value.clone(), output.clone()).unwrap();
        let equal = folded.weight.val().equal(value.weight.val()).all();
        assert_eq!(equal.into_scalar::<bool>(), same);
    }
}

#[test]
fn what_cannot_be_folded_is_refused_by_name() {
    let device = Device::flex();
    let config = KvCacheConfig::new(2, 2, HEAD_DIM).with_method(Method::hadamard());
    let folded = config.clone().with_folded_values(true);
    let linear = |input, output| LinearConfig::new(input, output).init(&device);
    let value = || linear(8, 2 * HEAD_DIM);
    let output = || linear(4 * HEAD_DIM, 8);
    let refused = |config: &KvCacheConfig, layer, value, output| -> Error {
        fold_values(config, layer, value, output).unwrap_err()
    };

    let error = refused(&config, 0, value(), output());
    assert!(matches!(error, Error::Option { .. }), "{error}");
    for method in [Method::exact(), Method::kivi(), Method::round_to_nearest()] {
        let config = folded.clone().with_method(method);
        let error = refused(&config, 0, value(), output());
        assert!(matches!(error, Error::Method { .. }), "{error}");
        // The cache itself refuses as well.
        let error = config.init(&device).unwrap_err();
        assert!(matches!(error, Error::Method { .. }), "{error}");
    }
    let error = refused(&folded, 2, value(), output());
    assert!(matches!(error, Error::Layer { layer: 2, .. }), "{error}");
    for (value, output, tensor) in [
        (linear(8, HEAD_DIM), output(), "value weight"),
        (value(), linear(3 * HEAD_DIM, 8), "output weight"),
        (
            Linear {
                bias: Some(Param::from_tensor(Tensor::zeros([3], &device))),
                ..value()
            },
            output(),
            "value bias",
        ),
    ] {
        let error = refused(&folded, 0, value, output).to_string();
        assert!(
            error.starts_with(tensor) && error.contains("expected"),
            "{error}"
        );
    }
}

#[test]
fn quantised_weights_are_refused() {
    use burn::tensor::quantization::QuantScheme;

    let device = Device::flex();
    let config = KvCacheConfig::new(1, 1, HEAD_DIM)
        .with_method(Method::hadamard())
        .with_folded_values(true);
    let value: Linear = LinearConfig::new(HEAD_DIM, HEAD_DIM).init(&device);
    let output: Linear = LinearConfig::new(HEAD_DIM, HEAD_DIM).init(&device);
    let quantised = |linear: Linear| Linear {
        weight: linear
            .weight
            .map(|weight| weight.quantize_dynamic(&QuantScheme::default())),
        ..linear
    };
    for (value, output, tensor) in [
        (quantised(value.clone()), output.clone(), "value weight"),
        (value, quantised(output), "output weight"),
    ] {
        let error = fold_values(&config, 0, value, output).unwrap_err();
        assert!(matches!(error, Error::Fold { layer: 0, .. }), "{error}");
        assert!(error.to_string().contains(tensor), "{error}");
    }
}
