//! Self-attention.

use burn::module::Module;
use burn::nn::attention::{
    MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn::tensor::{Device, Tensor};
use burn_oscar::module::CachedAttention;
use burn_oscar::{AttentionOptions, KvCache, Method, Padding};
use capabilities::recipes::product_limit;

use super::{error, input, mask, on, packing};

const D_MODEL: usize = 64;

fn trained() -> MultiHeadAttention {
    let device = Device::flex();
    device.seed(3);
    MultiHeadAttentionConfig::new(D_MODEL, 2).init(&device)
}

/// The decorated module on a device, with a cache of `batch` sequences.
fn decorated(
    trained: &MultiHeadAttention,
    method: &Method,
    batch: usize,
    device: &Device,
) -> (CachedAttention, KvCache) {
    let attention = CachedAttention::new(&trained.clone().to_device(device)).unwrap();
    let mut cache = attention
        .cache_config(1)
        .with_method(packing(method.clone()))
        .with_max_tokens(512)
        .with_max_sequences(batch)
        .with_poison(true)
        .init(device)
        .unwrap();
    for _ in 1..batch {
        cache.add_sequence().unwrap();
    }
    (attention, cache)
}

fn undecorated(
    trained: &MultiHeadAttention,
    x: Tensor<3>,
    rows: Option<&[(usize, usize)]>,
) -> Tensor<3> {
    let [batch, width, _] = x.dims();
    let device = x.device();
    let causal = generate_autoregressive_mask(batch, width, &device);
    let mut input = MhaInput::self_attn(x).mask_attn(causal);
    if let Some(rows) = rows {
        input = input.mask_pad(mask(rows, width, &device));
    }
    trained.forward(input).context
}

/// A prompt of `prompt` tokens, a chunk, and single tokens: the error of the chunk and the tokens,
/// which see the prompt as it is stored.
pub fn chunks(method: &Method, prompt: usize, device: &Device) -> f64 {
    let flex = Device::flex();
    let trained = trained();
    let x = input(1, [2, prompt + 6, D_MODEL], &flex);
    let (attention, mut cache) = decorated(&trained, method, 2, device);
    let mut found = Vec::new();
    let mut done = 0;
    for tokens in [prompt, 4, 1, 1] {
        let x = on(&x.clone().narrow(1, done, tokens), device);
        let context = attention
            .forward(&mut cache, 0, x, AttentionOptions::causal())
            .unwrap();
        found.push(on(&context, &flex));
        done += tokens;
    }
    let expected = undecorated(&trained, x, None);
    let prefill = found.remove(0);
    // The tokens of one call see each other exactly, whatever the method.
    let found_error = error(prefill, expected.clone().narrow(1, 0, prompt), None);
    assert!(found_error < product_limit(device, 1e-5), "{found_error:e}");
    error(Tensor::cat(found, 1), expected.narrow(1, prompt, 6), None)
}

/// Rows of the given `(start, tokens)` in a padded prompt, then two steps where `steps`: the
/// errors of the prompt and of the steps.
pub fn ragged(
    method: &Method,
    rows: &[(usize, usize)],
    width: usize,
    steps: usize,
    device: &Device,
) -> [f64; 2] {
    let flex = Device::flex();
    let trained = trained();
    let batch = rows.len();
    let x = input(2, [batch, width + steps, D_MODEL], &flex);
    let (attention, mut cache) = decorated(&trained, method, batch, device);
    let padding = Padding::from_mask(mask(rows, width, device)).unwrap();
    assert_eq!(padding.lens(), Vec::from_iter(rows.iter().map(|row| row.1)));
    let options = AttentionOptions::causal().padding(&padding);
    let prompt = on(&x.clone().narrow(1, 0, width), device);
    let found = attention.forward(&mut cache, 0, prompt, options).unwrap();
    assert_eq!(cache.lens(), padding.lens());

    let longer: Vec<_> = rows.iter().map(|row| (row.0, row.1 + steps)).collect();
    let expected = undecorated(&trained, x.clone(), Some(&longer));
    let prompt = error(
        on(&found, &flex),
        expected.clone().narrow(1, 0, width),
        Some(rows),
    );
    let mut found = Vec::new();
    for step in 0..steps {
        let x = on(&x.clone().narrow(1, width + step, 1), device);
        let options = AttentionOptions::causal();
        found.push(on(
            &attention.forward(&mut cache, 0, x, options).unwrap(),
            &flex,
        ));
    }
    let steps = match steps {
        0 => 0.0,
        _ => error(
            Tensor::cat(found, 1),
            expected.narrow(1, width, steps),
            None,
        ),
    };
    [prompt, steps]
}

#[test]
fn exact_is_the_undecorated_module() {
    let error = chunks(&Method::exact(), 300, &Device::flex());
    assert!(error < 1e-5, "{error}");
}

#[test]
fn two_bits_stay_within_their_error() {
    for (method, limit) in [
        (Method::hadamard_centred(), 0.06),
        (Method::oscar_scaled(), 0.06),
    ] {
        let error = chunks(&method, 300, &Device::flex());
        println!("{}: {error:.4}", method.name());
        assert!(error > 1e-4, "{}: nothing was packed", method.name());
        assert!(error < limit, "{}: {error}", method.name());
    }
}

#[test]
fn padded_rows_are_those_of_the_masked_batch() {
    let device = Device::flex();
    // Left-padded prompts and the steps after them.
    let rows = [(0, 150), (63, 87), (63, 87), (149, 1)];
    let errors = ragged(&Method::exact(), &rows, 150, 2, &device);
    assert!(errors.iter().all(|&error| error < 1e-5), "{errors:?}");
    // Padding on the right, on both sides, and a row that is nothing else.
    let rows = [(0, 90), (20, 100), (0, 150), (0, 0)];
    let [error, _] = ragged(&Method::exact(), &rows, 150, 0, &device);
    assert!(error < 1e-5, "{error}");

    let rows = [(0, 330), (31, 299), (31, 299)];
    for (method, limit) in [
        (Method::hadamard_centred(), 0.06),
        (Method::oscar_scaled(), 0.06),
    ] {
        let [prompt, steps] = ragged(&method, &rows, 330, 2, &device);
        println!("{}: {steps:.4}", method.name());
        assert!(prompt < 1e-5, "{}: {prompt}", method.name());
        assert!(steps > 1e-4 && steps < limit, "{}: {steps}", method.name());
    }
}

#[test]
fn a_padded_batch_is_stored_as_its_rows_are_alone() {
    let device = Device::flex();
    let trained = trained();
    let rows = [(50, 100), (0, 150)];
    let x = input(5, [2, 150, D_MODEL], &device);
    let (attention, mut cache) = decorated(&trained, &Method::kivi(), 2, &device);
    let padding = Padding::from_mask(mask(&rows, 150, &device)).unwrap();
    let options = AttentionOptions::causal().padding(&padding);
    attention
        .forward(&mut cache, 0, x.clone(), options)
        .unwrap();
    for (row, (start, tokens)) in rows.into_iter().enumerate() {
        let (attention, mut alone) = decorated(&trained, &Method::kivi(), 1, &device);
        let x = x.clone().narrow(0, row, 1).narrow(1, start, tokens);
        let options = AttentionOptions::causal();
        attention.forward(&mut alone, 0, x, options).unwrap();
        let words = |cache: &KvCache, row: usize| {
            let words = cache.packed_words(cache.sequences()[row], 0).unwrap();
            words.map(|words| words.map(|words| words.try_into_vec_as::<u32>().unwrap()))
        };
        assert!(words(&alone, 0)[0].is_some());
        assert_eq!(words(&cache, row), words(&alone, 0));
    }
}

#[test]
fn position_ids_count_from_the_first_token() {
    let device = Device::flex();
    let padding = Padding::from_mask(mask(&[(2, 3), (0, 4)], 5, &device)).unwrap();
    assert_eq!(padding.width(), 5);
    let ids = padding.positions(&[0, 7], &device).unwrap();
    let ids: Vec<i32> = ids.try_into_vec_as().unwrap();
    assert_eq!(ids, [0, 0, 0, 1, 2, 7, 8, 9, 10, 0]);
}

#[test]
fn a_record_of_the_trained_module_loads() {
    let device = Device::flex();
    let trained = trained();
    let other = MultiHeadAttentionConfig::new(D_MODEL, 2).init(&device);
    let attention = CachedAttention::new(&other).unwrap();
    let attention = attention.load_record(trained.clone().into_record());
    let mut cache = attention.cache_config(1).init(&device).unwrap();
    let x = input(1, [1, 9, D_MODEL], &device);
    let options = AttentionOptions::causal();
    let found = attention
        .forward(&mut cache, 0, x.clone(), options)
        .unwrap();
    assert!(error(found, undecorated(&trained, x, None), None) < 1e-5);
}
