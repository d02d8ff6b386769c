//! However a text is cut into calls, the same bits are stored and the same answers given.

use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_oscar::quantizer::{ChannelBits, Segment};
use burn_oscar::{AttentionOptions, KvCache, KvCacheConfig, Method};
use capabilities::fixtures::Fixture;
use capabilities::golden::golden_calibration;

const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const HEAD_DIM: usize = 64;

/// Queries, keys and values of 320 tokens: real keys and values, made-up queries of their size.
fn activations(device: &Device) -> [Tensor<4>; 3] {
    let golden = Fixture::golden();
    let [key, value] = ["k", "v"].map(|side| {
        let side = golden.tensor::<3>(&format!("layer20.{side}"), device);
        side.unsqueeze::<4>()
    });
    let tokens = key.dims()[2];
    device.seed(7);
    let query = Tensor::random(
        [1, HEADS, tokens, HEAD_DIM],
        Distribution::Normal(0.0, 2.0),
        device,
    );
    [query, key, value]
}

fn methods() -> Vec<Method> {
    let mut methods: Vec<Method> = [
        "exact",
        "round_to_nearest",
        "kivi",
        "hadamard",
        "hadamard_centred",
        "oscar_scaled",
    ]
    .map(|name| Method::preset(name).unwrap())
    .into();
    methods.push(Method::oscar(&golden_calibration("oscar", 1)).unwrap());
    methods.push(Method::transform_coded(&golden_calibration("transform_coded", 1)).unwrap());
    // Odd bits, and one side exact.
    let mut odd = Method::hadamard_centred().key_side().clone();
    if let Some(quantizer) = &mut odd.quantizer {
        quantizer.page_mean = false;
        quantizer.bits = ChannelBits::Segments(
            vec![Segment::new(3, 3), Segment::new(5, 1), Segment::new(8, 2)].into(),
        );
    }
    methods.push(Method::exact().with_key_side(odd));
    methods
}

struct Run {
    cache: KvCache,
    output: Tensor<4>,
}

fn run(method: &Method, chunk: usize, options: &AttentionOptions, device: &Device) -> Run {
    let mut cache = KvCacheConfig::new(1, KV_HEADS, HEAD_DIM)
        .with_method(method.clone().with_sink(5).with_recent(7))
        .with_poison(true)
        .init(device)
        .unwrap();
    let tensors = activations(device);
    let tokens = tensors[0].dims()[2];
    let mut outputs = Vec::new();
    for start in (0..tokens).step_by(chunk) {
        let count = chunk.min(tokens - start);
        let [query, key, value] = tensors.clone().map(|tensor| tensor.narrow(2, start, count));
        outputs.push(cache.attend(0, query, key, value, options.clone()).unwrap());
    }
    Run {
        cache,
        output: Tensor::cat(outputs, 2),
    }
}

fn words(cache: &KvCache) -> [Option<Vec<u32>>; 2] {
    let words = cache.packed_words(cache.sequences()[0], 0).unwrap();
    words.map(|side| side.map(|side: Tensor<3, Int>| side.try_into_vec_as().unwrap()))
}

fn relative(a: &Tensor<4>, b: &Tensor<4>) -> f32 {
    let scale = b.clone().abs().max();
    (a.clone() - b.clone()).abs().max().div(scale).into_scalar()
}

#[test]
fn pages_do_not_depend_on_the_chunks() {
    let device = Device::flex();
    for method in methods() {
        let whole = run(&method, 320, &AttentionOptions::causal(), &device);
        let expected = words(&whole.cache);
        let stored = whole
            .cache
            .dequantize(whole.cache.sequences()[0], 0)
            .unwrap();
        for chunk in [1, 63, 64, 65, 127, 500] {
            for options in [
                AttentionOptions::causal(),
                AttentionOptions::causal().streaming(),
            ] {
                let other = run(&method, chunk, &options, &device);
                assert_eq!(
                    words(&other.cache),
                    expected,
                    "{} by {chunk}",
                    method.name()
                );
                // The parameters and the exact tiers too, to the bit.
                let found = other
                    .cache
                    .dequantize(other.cache.sequences()[0], 0)
                    .unwrap();
                for (found, stored) in found.into_iter().zip(&stored) {
                    found.into_data().assert_eq(&stored.to_data(), true);
                }
            }
        }
    }
}

#[test]
fn streaming_a_prefill_equals_token_by_token() {
    let device = Device::flex();
    for method in methods() {
        let single = run(&method, 1, &AttentionOptions::causal(), &device);
        for chunk in [63, 64, 65, 127, 500] {
            let options = AttentionOptions::causal().streaming();
            let other = run(&method, chunk, &options, &device);
            let difference = relative(&other.output, &single.output);
            assert!(
                difference < 1e-5,
                "{} by {chunk}: {difference}",
                method.name()
            );
        }
    }
}

/// As published: the tokens of one call see each other exactly, a later call reads the pages.
#[test]
fn a_chunk_sees_itself_exactly_and_the_past_as_stored() {
    let device = Device::flex();
    let exact = run(&Method::exact(), 500, &AttentionOptions::causal(), &device);
    for method in methods() {
        let whole = run(&method, 500, &AttentionOptions::causal(), &device);
        let difference = relative(&whole.output, &exact.output);
        assert!(difference < 1e-4, "{}: {difference}", method.name());

        let halves = run(&method, 300, &AttentionOptions::causal(), &device);
        let [first, second] = [0, 300].map(|start| {
            let part = |run: &Run| {
                run.output
                    .clone()
                    .narrow(2, start, if start == 0 { 300 } else { 20 })
            };
            relative(&part(&halves), &part(&exact))
        });
        assert!(first < 1e-4, "{}: {first}", method.name());
        let lossy = method.name() != "exact" || method.key_side().quantizer.is_some();
        assert_eq!(second > 1e-3, lossy, "{}: {second}", method.name());
    }
}

/// Attention on packed bits equals plain attention over what they decode to.
#[test]
fn attention_equals_attention_over_the_decoded_history() {
    let device = Device::flex();
    for method in methods() {
        let mut run = run(&method, 320, &AttentionOptions::causal(), &device);
        let id = run.cache.sequences()[0];
        let [query, key, value] = activations(&device).map(|t| t.narrow(2, 100, 1));
        let found = run
            .cache
            .attend(0, query.clone(), key, value, AttentionOptions::causal())
            .unwrap();
        // The newest token is exact in both, and may itself have completed a page.
        let [keys, values] = run.cache.dequantize(id, 0).unwrap();
        let tokens = keys.dims()[1];
        let query = query.reshape([KV_HEADS, HEADS / KV_HEADS, HEAD_DIM]);
        let scores = query.matmul(keys.swap_dims(1, 2)).div_scalar(8.0);
        let weights = burn::tensor::activation::softmax(scores, 2);
        let expected = weights.matmul(values).reshape([1, HEADS, 1, HEAD_DIM]);
        assert_eq!(tokens, 321);
        let difference = relative(&found, &expected);
        assert!(difference < 2e-5, "{}: {difference}", method.name());
    }
}
