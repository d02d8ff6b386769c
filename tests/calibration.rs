//! A model that knows nothing of calibration, only the one `attend` call, is calibrated end to end.

mod job;

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_oscar::calibration::solve::Target;
use burn_oscar::calibration::{Calibration, SolveOptions, Statistics, StatisticsConfig, solve};
use burn_oscar::{AttentionOptions, Error, KvCache, KvCacheConfig, Method, ObserveOptions, Result};

pub const LAYERS: usize = 2;
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const HEAD_DIM: usize = 32;
pub const VOCABULARY: usize = 97;
const WIDTH: usize = 64;

/// A transformer of burn-nn parts.
#[derive(Module, Debug)]
pub struct Model {
    embedding: Embedding,
    layers: Vec<Attention>,
}

#[derive(Module, Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
}

impl Model {
    /// Queries that lean on some directions, keys with an offset and some large channels: what real
    /// models have.
    pub fn new(device: &Device) -> Self {
        let mut noise = Noise(7);
        let mut embedding = EmbeddingConfig::new(VOCABULARY, WIDTH).init(device);
        let numbers = noise.numbers(VOCABULARY * WIDTH);
        embedding.weight = Param::from_tensor(tensor(numbers, [VOCABULARY, WIDTH], device));
        let layers = (0..LAYERS)
            .map(|_| Attention {
                query: noise.linear(HEADS, device, |c| (6.0 * (-0.25 * c as f32).exp(), 0.0)),
                key: noise.linear(KV_HEADS, device, |c| match c % 8 {
                    3 => (4.0, 8.0),
                    _ => (1.0, 0.5),
                }),
                value: noise.linear(KV_HEADS, device, |_| (1.0, 0.0)),
                output: {
                    let config = LinearConfig::new(HEADS * HEAD_DIM, WIDTH).with_bias(false);
                    let mut output = config.init(device);
                    let numbers = noise.numbers(HEADS * HEAD_DIM * WIDTH);
                    let numbers = numbers.into_iter().map(|x| x / 16.0).collect();
                    let weight = tensor(numbers, [HEADS * HEAD_DIM, WIDTH], device);
                    output.weight = Param::from_tensor(weight);
                    output
                },
            })
            .collect();
        Self { embedding, layers }
    }

    /// `[batch, tokens, width]` of tokens `[batch, tokens]`, which come after what the cache holds.
    pub fn forward(&self, tokens: Tensor<2, Int>, cache: &mut KvCache) -> Result<Tensor<3>> {
        let [batch, count] = tokens.dims();
        let mut x = self.embedding.forward(tokens);
        for (index, layer) in self.layers.iter().enumerate() {
            let heads =
                |x: Tensor<3>, heads| x.reshape([batch, count, heads, HEAD_DIM]).swap_dims(1, 2);
            let context = cache.attend(
                index,
                heads(layer.query.forward(x.clone()), HEADS),
                heads(layer.key.forward(x.clone()), KV_HEADS),
                heads(layer.value.forward(x.clone()), KV_HEADS),
                AttentionOptions::causal(),
            )?;
            let context = context.swap_dims(1, 2);
            x = x + layer
                .output
                .forward(context.reshape([batch, count, HEADS * HEAD_DIM]));
        }
        Ok(x)
    }
}

struct Noise(u64);

impl Noise {
    fn numbers(&mut self, count: usize) -> Vec<f32> {
        let mut uniform = || {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        (0..count)
            .map(|_| 2.0 * (uniform() + uniform() + uniform()))
            .collect()
    }

    /// From the width to heads, whose channel `c` has about the size and the offset of `shape`.
    fn linear(
        &mut self,
        heads: usize,
        device: &Device,
        shape: impl Fn(usize) -> (f32, f32),
    ) -> Linear {
        let outputs = heads * HEAD_DIM;
        let size = |i: usize| shape(i % HEAD_DIM).0 / (WIDTH as f32).sqrt();
        let weight = self.numbers(WIDTH * outputs);
        let weight = weight
            .into_iter()
            .enumerate()
            .map(|(i, x)| x * size(i))
            .collect();
        let bias = (0..outputs).map(|i| shape(i % HEAD_DIM).1).collect();
        let mut linear = LinearConfig::new(WIDTH, outputs).init(device);
        linear.weight = Param::from_tensor(tensor(weight, [WIDTH, outputs], device));
        linear.bias = Some(Param::from_tensor(tensor(bias, [outputs], device)));
        linear
    }
}

fn tensor<const D: usize>(numbers: Vec<f32>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(numbers, shape), device)
}

/// Text number `text`, `[1, length]`.
pub fn text(text: u64, length: usize, device: &Device) -> Tensor<2, Int> {
    let mut state = text.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut tokens: Vec<i64> = Vec::new();
    for i in 0..length {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        // Tokens come again, as in language.
        let token = match (state >> 60, i) {
            (0..5, 8..) => tokens[i - 1 - (state >> 40) as usize % 8],
            _ => ((state >> 33) % VOCABULARY as u64) as i64,
        };
        tokens.push(token);
    }
    Tensor::from_data(TensorData::new(tokens, [1, length]), device)
}

pub fn caches() -> KvCacheConfig {
    KvCacheConfig::new(LAYERS, KV_HEADS, HEAD_DIM)
        .with_max_tokens(2048)
        .with_fingerprint("tiny")
}

fn observing() -> KvCacheConfig {
    caches().observing(ObserveOptions::default())
}

fn observed(model: &Model, texts: &[u64], length: usize, device: &Device) -> Statistics {
    let mut cache = observing().init(device).unwrap();
    for &number in texts {
        let id = cache.reset();
        cache.set_text_id(id, number).unwrap();
        model
            .forward(text(number, length, device), &mut cache)
            .unwrap();
    }
    cache.take_statistics().unwrap()
}

/// Squared difference of the outputs to exact ones over a text in chunks, relative.
fn output_error(model: &Model, method: Method, device: &Device) -> f64 {
    let tokens = text(1000, 1024, device);
    let run = |method: Method| {
        let mut cache = caches().with_method(method).init(device).unwrap();
        let chunks = (0..16).map(|i| {
            let chunk = tokens.clone().narrow(1, 64 * i, 64);
            model.forward(chunk, &mut cache).unwrap()
        });
        Tensor::cat(chunks.collect(), 1)
    };
    let exact = run(Method::exact());
    let embedded = model.embedding.forward(tokens.clone());
    let difference = (run(method) - exact.clone()).powf_scalar(2.0).sum();
    let size = (exact - embedded).powf_scalar(2.0).sum();
    let number = |tensor: Tensor<1>| f64::from(tensor.into_scalar::<f32>());
    number(difference) / number(size)
}

#[test]
fn observed_solved_saved_and_served() {
    let device = Device::flex();
    let model = Model::new(&device);
    let statistics = observed(&model, &[1, 2, 3], 1024, &device);
    assert_eq!((statistics.tokens(), statistics.sequences()), (3 * 1024, 3));
    assert_eq!(statistics.longest(), 1024);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("statistics.safetensors");
    statistics.save(&path).unwrap();
    let statistics = Statistics::load(&path).unwrap();

    let plain = output_error(&model, Method::hadamard(), &device);
    let centred = output_error(&model, Method::hadamard_centred(), &device);
    let mut errors = Vec::new();
    for options in [
        SolveOptions::oscar(),
        SolveOptions::transform_coded(),
        SolveOptions::transform_coded_with_means(),
    ] {
        let solution = solve(&statistics, &options).unwrap();
        let path = folder.path().join("artifact.safetensors");
        solution.calibration.save(&path).unwrap();
        let calibration = Calibration::load(&path).unwrap();
        let method = Method::calibrated(options.target.name(), &calibration).unwrap();
        let page_means = options == SolveOptions::transform_coded();
        let method = method.with_page_means(page_means);
        errors.push(output_error(&model, method, &device));
        if options.target == Target::TransformCoded {
            let shares = &solution.diagnostics.layers[0].heads[0].shares;
            assert!(shares[2] < 0.05, "{shares:?}");
        }
    }
    println!(
        "hadamard {plain:.5}, centred {centred:.5}, oscar, coded, coded with means {errors:.5?}"
    );
    assert!(
        errors
            .iter()
            .all(|error| *error > 0.0 && *error < plain / 2.0)
    );
    assert!(errors[1] < centred / 2.0, "{errors:?} {centred}");
}

/// Random queries, keys and values of one layer, `[2, heads, tokens, head_dim]`.
fn random_call(tokens: usize, device: &Device) -> [Tensor<4>; 3] {
    let mut noise = Noise(3);
    [HEADS, KV_HEADS, KV_HEADS].map(|heads| {
        let numbers = noise.numbers(2 * heads * tokens * HEAD_DIM);
        tensor(numbers, [2, heads, tokens, HEAD_DIM], device)
    })
}

fn two_rows(layers: usize, dtype: DType) -> KvCacheConfig {
    KvCacheConfig::new(layers, KV_HEADS, HEAD_DIM)
        .with_max_sequences(2)
        .with_dtype(dtype)
        .observing(ObserveOptions {
            sinks: 4,
            block: 32,
            sample: 20,
        })
}

#[test]
fn chunks_see_what_one_call_sees() {
    let device = Device::flex();
    let call = random_call(400, &device);
    for dtype in [DType::F32, DType::F16] {
        let mut statistics = Vec::new();
        for cuts in [vec![400], vec![70, 1, 129, 200]] {
            let mut cache = two_rows(1, dtype).init(&device).unwrap();
            cache.add_sequence().unwrap();
            let mut start = 0;
            for count in cuts {
                let part = |i: usize| call[i].clone().narrow(2, start, count).cast(dtype);
                let options = AttentionOptions::causal();
                cache.attend(0, part(0), part(1), part(2), options).unwrap();
                start += count;
            }
            statistics.push(cache.take_statistics().unwrap());
            assert_eq!(cache.statistics().unwrap().tokens(), 0);
        }
        let [whole, chunked] = [0, 1].map(|i| &statistics[i].layers()[0]);
        assert_eq!(
            (whole.tokens, whole.sequences, whole.longest),
            (800, 2, 400)
        );
        assert_eq!(
            (chunked.tokens, chunked.sequences, chunked.longest),
            (800, 2, 400)
        );
        let close = |a: Vec<f64>, b: Vec<f64>, tolerance: f64| {
            let size = a.iter().fold(0.0f64, |size, x| size.max(x.abs()));
            a.iter()
                .zip(&b)
                .all(|(a, b)| (a - b).abs() <= tolerance * size)
        };
        for head in 0..KV_HEADS {
            let (a, b) = (&whole.heads[head], &chunked.heads[head]);
            assert_eq!(a.keys_in_block.weight(), 2.0 * 384.0);
            for (a, b) in [
                (&a.queries, &b.queries),
                (&a.keys, &b.keys),
                (&a.keys_in_block, &b.keys_in_block),
                (&a.values, &b.values),
            ] {
                assert_eq!(a.weight(), b.weight());
                assert!(close(a.second(), b.second(), 1e-12));
            }
            assert!(close(a.attended.second(), b.attended.second(), 1e-4));
            let weights = |layer: &burn_oscar::calibration::statistics::LayerStatistics| {
                let tokens = layer
                    .sample(head)
                    .map(|token| (token.key.to_vec(), token.weight));
                tokens.collect::<Vec<_>>()
            };
            let pairs = weights(whole).into_iter().zip(weights(chunked));
            assert_eq!(pairs.len(), 20);
            for ((key, weight), (other, other_weight)) in pairs {
                assert_eq!(key, other);
                assert!((weight - other_weight).abs() < 1e-4 * weight);
            }
        }
    }
}

#[test]
fn shards_are_one_run_bit_for_bit() {
    let device = Device::flex();
    let model = Model::new(&device);
    let whole = observed(&model, &[5, 6, 7], 200, &device);
    let mut shards = observed(&model, &[7], 200, &device);
    shards
        .merge(&observed(&model, &[5, 6], 200, &device))
        .unwrap();
    assert_eq!(shards.to_bytes().unwrap(), whole.to_bytes().unwrap());

    // Rows of a batch are texts.
    let call = random_call(100, &device);
    let mut both = two_rows(1, DType::F32).init(&device).unwrap();
    both.add_sequence().unwrap();
    let [query, key, value] = call.clone();
    both.attend(0, query, key, value, AttentionOptions::causal())
        .unwrap();
    let mut merged = Statistics::new(both.statistics().unwrap().config().clone()).unwrap();
    for row in [1, 0] {
        let mut cache = two_rows(1, DType::F32).init(&device).unwrap();
        cache.set_text_id(cache.sequences()[0], row as u64).unwrap();
        let [query, key, value] = [0, 1, 2].map(|i| call[i].clone().narrow(0, row, 1));
        cache
            .attend(0, query, key, value, AttentionOptions::causal())
            .unwrap();
        merged.merge(cache.statistics().unwrap()).unwrap();
    }
    let bytes = |statistics: &Statistics| statistics.to_bytes().unwrap();
    // One call of two rows counts as one contribution each.
    assert_eq!(bytes(&merged), bytes(both.statistics().unwrap()));
}

#[test]
fn what_cannot_be_observed_is_refused() {
    let device = Device::flex();
    let other = observing().with_method(Method::kivi()).init(&device);
    let text = other.unwrap_err().to_string();
    assert!(text.contains("kivi") && text.contains("exact"), "{text}");
    let none = observing().observing(ObserveOptions {
        block: 0,
        ..ObserveOptions::default()
    });
    assert!(matches!(none.init(&device), Err(Error::Zero { .. })));

    let call = random_call(8, &device);
    let mut cache = two_rows(2, DType::F32).init(&device).unwrap();
    cache.add_sequence().unwrap();
    let attend = |cache: &mut KvCache, value: Tensor<4>, scale: f64| {
        let options = AttentionOptions::causal().with_scale(scale);
        cache.attend(0, call[0].clone(), call[1].clone(), value, options)
    };
    attend(&mut cache, call[2].clone(), 0.5).unwrap();
    let before = cache.statistics().unwrap().clone();
    let lens = cache.lens();
    for (value, scale) in [
        (call[2].clone() * f32::NAN, 0.5),
        (call[2].clone() * 1e9, 0.5),
        (call[2].clone(), 0.25),
    ] {
        assert!(attend(&mut cache, value, scale).is_err());
        assert_eq!(cache.statistics().unwrap(), &before);
        assert_eq!(cache.lens(), lens);
    }
    let options = AttentionOptions::causal();
    let extended = cache.extend(0, call[1].clone(), call[2].clone(), options.clone());
    assert!(matches!(extended, Err(Error::Option { .. })));
    assert!(matches!(
        cache.plan_decode(&options),
        Err(Error::Option { .. })
    ));

    // One layer ahead of the other.
    let error = solve(&before, &SolveOptions::oscar()).unwrap_err();
    assert!(
        error.to_string().contains("layer 1 has seen no tokens"),
        "{error}"
    );
    let plain = caches().init(&device).unwrap();
    assert!(plain.statistics().is_none());
    assert_eq!(
        StatisticsConfig::new(1, 1, 16).sinks,
        ObserveOptions::default().sinks
    );
}
