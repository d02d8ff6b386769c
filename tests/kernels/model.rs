//! A whole model on the kernels' device, against the same model on flex.

use std::ops::ControlFlow;

use burn::tensor::Device;
use burn_oscar::Method;
use burn_oscar::backend::fused_calls;
use capabilities::recipes::kernel_device;
use models::generate::{GenerateOptions, generate};
use models::sampling::Sampler;

use super::alone;
use crate::logits::checkpoint::{Checkpoint, copy};

const PROMPT: usize = 76;
const NEW_TOKENS: usize = 5;

/// Greedy tokens, launches of fused kernels, and layers times decoded tokens.
fn continuation(device: &Device) -> (Vec<u32>, [u64; 2]) {
    let name = "qwen3-tiny";
    let checkpoint = Checkpoint::load_on(name, copy(name).path(), device);
    let method = Method::kivi().with_sink(3).with_recent(5);
    let mut cache = checkpoint.cache(method, 1);
    let prompt: Vec<u32> = checkpoint.tokens[..PROMPT]
        .iter()
        .map(|&token| token as u32)
        .collect();
    let options = GenerateOptions {
        max_new_tokens: NEW_TOKENS,
        max_tokens: 128,
        chunk: PROMPT,
        stop_tokens: Vec::new(),
    };
    let before = fused_calls();
    let generation = generate(
        &checkpoint.loaded.model,
        device,
        &mut cache,
        &prompt,
        &mut Sampler::greedy(),
        &options,
        &mut |_| ControlFlow::Continue(()),
    )
    .expect("generates");
    assert!(cache.memory().page_bytes > 0, "nothing was packed");
    println!(
        "prefill {:?}, {} steps {:?}",
        generation.prefill, generation.decode_steps, generation.decode
    );
    let layers = checkpoint.loaded.config.num_layers;
    let steps = (generation.decode_steps * layers) as u64;
    (generation.tokens, [fused_calls() - before, steps])
}

#[test]
fn greedy_tokens_are_those_of_flex_and_kernels_chose_them() {
    let _alone = alone();
    let (found, [launches, steps]) = continuation(&kernel_device());
    assert_eq!(launches, steps, "one for each layer and decoded token");
    let (expected, [launches, _]) = continuation(&Device::flex());
    assert_eq!(launches, 0);
    assert_eq!(found, expected);
    assert_eq!(found.len(), NEW_TOKENS);
}
