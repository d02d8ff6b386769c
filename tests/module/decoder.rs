//! The transformer decoder.

use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::transformer::{
    TransformerDecoder, TransformerDecoderConfig, TransformerDecoderInput,
};
use burn::tensor::{Device, Tensor};
use burn_oscar::module::{CachedTransformerDecoder, DecoderCache};
use burn_oscar::{Method, Padding};

use super::{error, input, mask, on, packing};

const D_MODEL: usize = 64;

pub fn trained(norm_first: bool) -> TransformerDecoder {
    let device = Device::flex();
    device.seed(5);
    TransformerDecoderConfig::new(D_MODEL, 96, 2, 2)
        .with_norm_first(norm_first)
        .init(&device)
}

/// Sizes of a case.
pub struct Case {
    /// `(start, tokens)` of the target's rows in the prompt.
    pub target: Vec<(usize, usize)>,
    pub prompt: usize,
    /// Tokens after the prompt, one at a time.
    pub steps: usize,
    /// `(start, tokens)` of the memory's rows.
    pub memory: Vec<(usize, usize)>,
    pub memory_width: usize,
}

/// The errors of the prompt and of the steps.
pub fn check(method: &Method, norm_first: bool, case: &Case, device: &Device) -> [f64; 2] {
    let flex = Device::flex();
    let trained = trained(norm_first);
    let batch = case.target.len();
    let width = case.prompt + case.steps;
    let target: Tensor<3> = input(1, [batch, width, D_MODEL], &flex);
    let memory: Tensor<3> = input(2, [batch, case.memory_width, D_MODEL], &flex);
    let longer: Vec<_> = (case.target.iter())
        .map(|row| (row.0, row.1 + case.steps))
        .collect();
    let expected = trained.forward(
        TransformerDecoderInput::new(target.clone(), memory.clone())
            .target_mask_attn(generate_autoregressive_mask(batch, width, &flex))
            .target_mask_pad(mask(&longer, width, &flex))
            .memory_mask_pad(mask(&case.memory, case.memory_width, &flex)),
    );

    let decoder = CachedTransformerDecoder::new(&trained.to_device(device)).unwrap();
    let config = decoder
        .cache_config()
        .with_method(packing(method.clone()))
        .with_max_tokens(512)
        .with_poison(true);
    let mut cache = DecoderCache::new(config.clone(), config, batch, device).unwrap();
    let padding = Padding::from_mask(mask(&case.memory, case.memory_width, device)).unwrap();
    decoder
        .encode(&mut cache, on(&memory, device), Some(&padding))
        .unwrap();
    let padding = Padding::from_mask(mask(&case.target, case.prompt, device)).unwrap();
    let prompt = on(&target.clone().narrow(1, 0, case.prompt), device);
    let found = decoder.forward(&mut cache, prompt, Some(&padding)).unwrap();
    let prompt = error(
        on(&found, &flex),
        expected.clone().narrow(1, 0, case.prompt),
        Some(&case.target),
    );
    let steps = (0..case.steps).map(|step| {
        let x = on(&target.clone().narrow(1, case.prompt + step, 1), device);
        on(&decoder.forward(&mut cache, x, None).unwrap(), &flex)
    });
    let steps = Tensor::cat(steps.collect(), 1);
    let expected = expected.narrow(1, case.prompt, case.steps);
    [prompt, error(steps, expected, None)]
}

fn cases() -> [Case; 2] {
    [
        Case {
            target: vec![(0, 90), (0, 90)],
            prompt: 90,
            steps: 5,
            memory: vec![(0, 100), (0, 100)],
            memory_width: 100,
        },
        Case {
            target: vec![(0, 90), (13, 77), (60, 30)],
            prompt: 90,
            steps: 3,
            memory: vec![(0, 85), (0, 100), (9, 91)],
            memory_width: 100,
        },
    ]
}

#[test]
fn exact_is_the_undecorated_decoder() {
    for norm_first in [false, true] {
        for case in &cases() {
            let errors = check(&Method::exact(), norm_first, case, &Device::flex());
            assert!(errors.iter().all(|&e| e < 1e-5), "{norm_first}: {errors:?}");
        }
    }
}

#[test]
fn two_bits_stay_within_their_error() {
    let case = Case {
        target: vec![(0, 300), (9, 291)],
        prompt: 300,
        steps: 3,
        memory: vec![(0, 300), (0, 290)],
        memory_width: 300,
    };
    for (method, limit) in [
        (Method::hadamard_centred(), 0.03),
        (Method::oscar_scaled(), 0.03),
    ] {
        for norm_first in [false, true] {
            let errors = check(&method, norm_first, &case, &Device::flex());
            println!("{} {norm_first}: {errors:.4?}", method.name());
            let within = errors.iter().all(|&e| e > 1e-5 && e < limit);
            assert!(within, "{} {norm_first}: {errors:?}", method.name());
        }
    }
}

/// Step by step, as `forward_autoregressive_inference`, which is given all tokens so far.
#[test]
fn steps_are_those_of_autoregressive_inference() {
    let device = Device::flex();
    for norm_first in [false, true] {
        let trained = trained(norm_first);
        let target: Tensor<3> = input(1, [2, 8, D_MODEL], &device);
        let memory: Tensor<3> = input(2, [2, 70, D_MODEL], &device);
        let decoder = CachedTransformerDecoder::new(&trained).unwrap();
        let config = decoder.cache_config();
        let mut cache = DecoderCache::new(config.clone(), config, 2, &device).unwrap();
        decoder.encode(&mut cache, memory.clone(), None).unwrap();
        let mut theirs = trained.new_autoregressive_cache();
        for t in 0..8 {
            let so_far = target.clone().narrow(1, 0, t + 1);
            let mask = generate_autoregressive_mask(2, t + 1, &device);
            let input = TransformerDecoderInput::new(so_far, memory.clone()).target_mask_attn(mask);
            let expected = trained.forward_autoregressive_inference(input, &mut theirs);
            let token = target.clone().narrow(1, t, 1);
            let found = decoder.forward(&mut cache, token, None).unwrap();
            let error = error(found, expected.narrow(1, t, 1), None);
            assert!(error < 1e-5, "{norm_first} {t}: {error}");
        }
    }
}

#[test]
fn a_record_of_the_trained_decoder_loads() {
    let device = Device::flex();
    let trained = trained(true);
    let other = TransformerDecoderConfig::new(D_MODEL, 96, 2, 2)
        .with_norm_first(true)
        .init(&device);
    let decoder = CachedTransformerDecoder::new(&other).unwrap();
    let decoder = decoder.load_record(trained.clone().into_record());
    let same = CachedTransformerDecoder::new(&trained).unwrap();
    let target: Tensor<3> = input(1, [1, 4, D_MODEL], &device);
    let outputs = [decoder, same].map(|decoder| {
        let config = decoder.cache_config();
        let mut cache = DecoderCache::new(config.clone(), config, 1, &device).unwrap();
        decoder.encode(&mut cache, target.clone(), None).unwrap();
        decoder.forward(&mut cache, target.clone(), None).unwrap()
    });
    let [found, expected] = outputs.map(super::numbers);
    assert_eq!(found, expected);
}
