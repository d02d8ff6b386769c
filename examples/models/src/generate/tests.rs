use super::*;
use crate::{
    config::{ModelConfig, RopeConfig, RopeScaling},
    sampling::SamplingOptions,
};
use burn_oscar::{KvCacheConfig, Method};

/// A model of a few thousand random weights.
pub(crate) fn tiny_model(device: &Device) -> (Model, KvCacheConfig) {
    let config = ModelConfig {
        architecture: "llama".to_string(),
        vocab_size: 97,
        hidden_size: 32,
        intermediate_size: 48,
        num_layers: 2,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 64,
        rms_norm_eps: 1e-5,
        rope: RopeConfig {
            theta: 10_000.0,
            scaling: RopeScaling::None,
        },
        max_position_embeddings: 512,
        tie_word_embeddings: false,
        qk_norm: false,
        attention_bias: false,
        attention_output_bias: false,
        eos_token_ids: vec![],
    };
    let cache = KvCacheConfig::new(2, 2, 64).with_max_tokens(512);
    (Model::new(&config, device), cache)
}

fn options() -> GenerateOptions {
    GenerateOptions {
        max_new_tokens: 12,
        max_tokens: 512,
        chunk: 16,
        stop_tokens: vec![],
    }
}

const PROMPT: [u32; 40] = {
    let mut prompt = [0; 40];
    let mut i = 0;
    while i < 40 {
        prompt[i] = (i as u32 * 31 + 7) % 97;
        i += 1;
    }
    prompt
};

struct Bench {
    device: Device,
    model: Model,
    config: KvCacheConfig,
}

impl Bench {
    fn new() -> Self {
        let device = Device::flex();
        let (model, config) = tiny_model(&device);
        Self {
            device,
            model,
            config,
        }
    }

    fn cache(&self) -> KvCache {
        self.config
            .clone()
            .with_method(Method::exact())
            .init(&self.device)
            .expect("a valid cache")
    }

    fn run(&self, prompt: &[u32], options: &GenerateOptions) -> Result<Generation, GenerateError> {
        generate(
            &self.model,
            &self.device,
            &mut self.cache(),
            prompt,
            &mut Sampler::greedy(),
            options,
            &mut |_| ControlFlow::Continue(()),
        )
    }
}

#[test]
fn the_chunk_does_not_change_the_text() {
    let bench = Bench::new();
    let whole = bench
        .run(
            &PROMPT,
            &GenerateOptions {
                chunk: 100,
                ..options()
            },
        )
        .expect("generates");
    assert_eq!(whole.tokens.len(), 12);
    assert_eq!(whole.stop, StopReason::MaxNewTokens);
    assert_eq!((whole.prompt_tokens, whole.decode_steps), (40, 11));
    for chunk in [0, 1, 7, 40] {
        let options = GenerateOptions { chunk, ..options() };
        let parts = bench.run(&PROMPT, &options).expect("generates");
        assert_eq!(parts.tokens, whole.tokens, "chunk {chunk}");
    }
}

#[test]
fn a_second_call_continues_the_cache() {
    let bench = Bench::new();
    let whole = bench.run(&PROMPT, &options()).expect("generates");
    let mut cache = bench.cache();
    let mut parts = Vec::new();
    let mut prompt = PROMPT.to_vec();
    for count in [5, 7] {
        let options = GenerateOptions {
            max_new_tokens: count,
            ..options()
        };
        let part = generate(
            &bench.model,
            &bench.device,
            &mut cache,
            &prompt,
            &mut Sampler::greedy(),
            &options,
            &mut |_| ControlFlow::Continue(()),
        )
        .expect("generates");
        // The last token has not entered the cache yet, so it is the next prompt.
        prompt = vec![*part.tokens.last().expect("some tokens")];
        parts.extend(part.tokens);
    }
    assert_eq!(parts, whole.tokens);
}

#[test]
fn generation_ends_for_the_reason_it_names() {
    let bench = Bench::new();
    let free = bench.run(&PROMPT, &options()).expect("generates").tokens;

    let stop = GenerateOptions {
        stop_tokens: vec![free[3]],
        ..options()
    };
    let first = free.iter().position(|token| *token == free[3]);
    let stopped = bench.run(&PROMPT, &stop).expect("generates");
    assert_eq!(stopped.stop, StopReason::StopToken);
    assert_eq!(Some(stopped.tokens.len()), first);

    let full = GenerateOptions {
        max_tokens: 44,
        ..options()
    };
    let full = bench.run(&PROMPT, &full).expect("generates");
    assert_eq!(full.stop, StopReason::CacheFull);
    // Four more enter the cache, and the fifth is known without entering it.
    assert_eq!(full.tokens, free[..5]);

    let mut seen = Vec::new();
    let interrupted = generate(
        &bench.model,
        &bench.device,
        &mut bench.cache(),
        &PROMPT,
        &mut Sampler::greedy(),
        &options(),
        &mut |progress| {
            seen.push(progress);
            match progress {
                Progress::Token(_) => ControlFlow::Break(()),
                Progress::Prefill(_) => ControlFlow::Continue(()),
            }
        },
    )
    .expect("generates");
    assert_eq!(interrupted.stop, StopReason::Interrupted);
    assert_eq!(
        seen,
        [
            Progress::Prefill(16),
            Progress::Prefill(32),
            Progress::Prefill(40),
            Progress::Token(free[0])
        ]
    );
}

#[test]
fn seeds_repeat_texts() {
    let bench = Bench::new();
    let run = |seed| {
        let sampler = SamplingOptions {
            temperature: 2.0,
            seed,
            ..SamplingOptions::default()
        };
        generate(
            &bench.model,
            &bench.device,
            &mut bench.cache(),
            &PROMPT,
            &mut Sampler::new(sampler).expect("valid"),
            &options(),
            &mut |_| ControlFlow::Continue(()),
        )
        .expect("generates")
        .tokens
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn what_does_not_fit_is_an_error() {
    let bench = Bench::new();
    assert!(matches!(
        bench.run(&[], &options()),
        Err(GenerateError::EmptyPrompt)
    ));
    let short = GenerateOptions {
        max_tokens: 39,
        ..options()
    };
    let error = bench.run(&PROMPT, &short).expect_err("too long");
    let text = error.to_string();
    assert!(text.contains("40") && text.contains("39"), "{text}");
}
