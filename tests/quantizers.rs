//! The quantisers against golden vectors and golden tensors, through packed pages.

use burn::tensor::{Device, Tensor};
use burn_oscar::quantizer::Role;
use burn_oscar::quantizer::layout::{Field, key_field, value_field};
use burn_oscar::{AttentionOptions, KvCache, KvCacheConfig, Method};
use capabilities::fixtures::Fixture;
use capabilities::golden::golden_calibration;

const TOKENS: usize = 64;
const HEADS: usize = 3;
const HEAD_DIM: usize = 64;

/// The layer of a golden calibration that holds a golden layer's matrices.
fn index(layer: usize) -> usize {
    usize::from(layer == 20)
}

/// A cache whose only page is the first 64 (or 256) real tokens of a layer.
fn one_page(method: Method, golden: &Fixture, layer: usize) -> KvCache {
    let device = Device::flex();
    let mut cache = KvCacheConfig::new(2, HEADS, HEAD_DIM)
        .with_method(method.with_sink(0).with_recent(0))
        .init(&device)
        .unwrap();
    let tokens = cache.page_tokens();
    let [key, value] = ["k", "v"].map(|side| {
        golden
            .tensor::<3>(&format!("layer{layer}.{side}"), &device)
            .narrow(1, 0, tokens)
            .unsqueeze::<4>()
    });
    let options = AttentionOptions::causal();
    cache
        .attend(index(layer), key.clone(), key, value, options)
        .unwrap();
    cache
}

/// Two-bit codes `[head][token][channel]` of the one page, found by the layout's formulas.
fn codes(cache: &KvCache, layer: usize, role: Role) -> Vec<u32> {
    let words = cache
        .packed_words(cache.sequences()[0], index(layer))
        .unwrap();
    let words = words[usize::from(role == Role::Value)].clone().unwrap();
    let row = words.dims()[2];
    let words: Vec<u32> = words.try_into_vec_as().unwrap();
    let field = |t, c| match role {
        Role::Key => key_field(t, c),
        Role::Value => value_field(HEAD_DIM, t, c),
    };
    (0..HEADS)
        .flat_map(|h| (0..TOKENS).map(move |t| (h, t)))
        .flat_map(|(h, t)| (0..HEAD_DIM).map(move |c| (h, t, c)))
        .map(|(h, t, c)| {
            let Field { word, bit } = field(t, c);
            words[h * row + word] >> bit & 3
        })
        .collect()
}

/// `[head, block, channel, token]` to `[head][token][channel]`.
fn per_channel(blocks: &[f32]) -> Vec<f32> {
    let mut flat = vec![0.0; blocks.len()];
    for (i, &code) in blocks.iter().enumerate() {
        let (h, b, c, t) = (i / 4096, i / 2048 % 2, i / 32 % 64, i % 32);
        flat[(h * TOKENS + b * 32 + t) * HEAD_DIM + c] = code;
    }
    flat
}

/// At most one step apart anywhere, and equal in all but `share` of the places.
fn assert_codes(found: &[u32], golden: &[f32], share: f64, name: &str) {
    let mut different = 0;
    for (&found, &golden) in found.iter().zip(golden) {
        assert!(
            (found as f32 - golden).abs() <= 1.0,
            "{name}: {found} for {golden}"
        );
        different += usize::from(found as f32 != golden);
    }
    let share_found = different as f64 / golden.len() as f64;
    assert_eq!(found.len(), golden.len());
    assert!(
        share_found <= share,
        "{name}: {share_found} of the codes differ"
    );
}

#[test]
fn kivi_codes_equal_the_golden_ones() {
    let golden = Fixture::golden();
    for layer in [3, 20] {
        let cache = one_page(Method::kivi(), &golden, layer);
        let at = |name: &str| golden.numbers(&format!("kivi.layer{layer}.{name}")).1;
        assert_codes(
            &codes(&cache, layer, Role::Key),
            &per_channel(&at("k.codes")),
            0.0,
            "kivi keys",
        );
        assert_codes(
            &codes(&cache, layer, Role::Value),
            &at("v.codes"),
            0.0,
            "kivi values",
        );
    }
}

#[test]
fn oscar_scaled_codes_equal_the_golden_ones() {
    let golden = Fixture::golden();
    for layer in [3, 20] {
        let cache = one_page(Method::oscar_scaled(), &golden, layer);
        let at = |name: &str| {
            golden
                .numbers(&format!("oscar_scaled.layer{layer}.{name}"))
                .1
        };
        // The golden keys were rounded to f16 between the norm and the codes.
        assert_codes(
            &codes(&cache, layer, Role::Key),
            &per_channel(&at("k.codes")),
            2e-3,
            "oscar_scaled keys",
        );
        assert_codes(
            &codes(&cache, layer, Role::Value),
            &at("v.codes"),
            2e-4,
            "oscar_scaled values",
        );
    }
}

#[test]
fn oscar_codes_equal_the_golden_ones() {
    let golden = Fixture::golden();
    let method = Method::oscar(&golden_calibration("oscar", 2)).unwrap();
    for layer in [3, 20] {
        let cache = one_page(method.clone(), &golden, layer);
        let at = |name: &str| golden.numbers(&format!("oscar.layer{layer}.{name}")).1;
        assert_codes(
            &codes(&cache, layer, Role::Key),
            &at("k.codes"),
            3e-4,
            "oscar keys",
        );
        assert_codes(
            &codes(&cache, layer, Role::Value),
            &at("v.codes"),
            3e-4,
            "oscar values",
        );
    }
}

/// The golden keys use another grid of 8-bit scales, so codes differ here and there; the error
/// must not. (With the golden grid all codes are equal: see the unit tests of `midrise`.)
#[test]
fn transform_coded_keys_are_as_near_as_the_golden_ones() {
    let golden = Fixture::golden();
    let device = Device::flex();
    let mut method = Method::transform_coded(&golden_calibration("transform_coded", 2)).unwrap();
    let mut side = method.key_side().clone();
    if let Some(quantizer) = &mut side.quantizer {
        quantizer.page_mean = false;
    }
    method = method.with_key_side(side);
    for layer in [3, 20] {
        let at = |name: &str| golden.tensor::<3>(&format!("tc.layer{layer}.k.{name}"), &device);
        let codes = |name: &str, scale: &str, middle: f32| {
            let scale = golden.tensor::<2>(&format!("tc.layer{layer}.k.{scale}"), &device);
            (at(name) - middle) * scale.unsqueeze_dim::<3>(2)
        };
        let decoded = Tensor::cat(
            vec![
                codes("codes_0_16", "scale_0_16", 7.5),
                codes("codes_16_48", "scale_16_48", 1.5),
                Tensor::zeros([HEADS, TOKENS, 16], &device),
            ],
            2,
        );
        let mean = golden.tensor::<2>(&format!("tc.layer{layer}.k.mean"), &device);
        let decoded = decoded.matmul(at("B")) + mean.unsqueeze_dim::<3>(1);

        let cache = one_page(method.clone(), &golden, layer);
        let [found, _] = cache
            .dequantize(cache.sequences()[0], index(layer))
            .unwrap();
        let found = found.narrow(1, 0, TOKENS);
        let key = golden
            .tensor::<3>(&format!("layer{layer}.k"), &device)
            .narrow(1, 0, TOKENS);
        // The metric that the method minimises: errors as queries see them, in the basis of A.
        let error = |x: Tensor<3>| -> f32 {
            (x - key.clone())
                .matmul(at("A"))
                .square()
                .mean()
                .into_scalar()
        };
        let (found, expected) = (error(found), error(decoded));
        assert!(
            (found / expected - 1.0).abs() < 0.02,
            "layer {layer}: {found} for {expected}"
        );
    }
}
