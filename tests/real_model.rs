//! A real model on real text: what each method costs, and what it does not change.
//!
//! Runs where `BURN_OSCAR_MODEL` names a GGUF file and `BURN_OSCAR_TEXT` a text;
//! `cargo xtask test` fetches SmolLM2-135M and sets both. The bounds hold for that model, with
//! room for another text.

use std::ops::ControlFlow;
use std::path::Path;

use burn::tensor::Device;
use burn_oscar::{KvCache, KvCacheConfig, Method};
use models::evaluate::{EvaluateOptions, agreement, evaluate};
use models::generate::{GenerateOptions, Progress, generate, prefill};
use models::load::{LoadedModel, load};
use models::sampling::Sampler;

const WINDOW: usize = 512;
const WINDOWS: usize = 2;

/// The model, and the text's first tokens.
struct Real {
    device: Device,
    loaded: LoadedModel,
    ids: Vec<u32>,
}

impl Real {
    /// Nothing, after saying so, where there is no model.
    fn open() -> Option<Self> {
        let variables = ["BURN_OSCAR_MODEL", "BURN_OSCAR_TEXT"].map(std::env::var_os);
        let [Some(model), Some(text)] = variables else {
            println!(
                "skipped: BURN_OSCAR_MODEL and BURN_OSCAR_TEXT are not set; `cargo xtask test` \
                 sets them"
            );
            return None;
        };
        let device = Device::flex();
        let loaded = load(Path::new(&model), &device).unwrap_or_else(|error| panic!("{error}"));
        let text = std::fs::read_to_string(text).expect("the text");
        // More than enough bytes for the windows; whole texts take long to split into tokens.
        let end = text
            .char_indices()
            .nth(20 * WINDOW)
            .map_or(text.len(), |(end, _)| end);
        let mut ids = loaded
            .tokenizer
            .encode(&text[..end], false)
            .expect("tokens");
        assert!(ids.len() >= WINDOW * WINDOWS, "the text is too short");
        ids.truncate(WINDOW * WINDOWS);
        Some(Self {
            device,
            loaded,
            ids,
        })
    }

    fn caches(&self) -> KvCacheConfig {
        let config = &self.loaded.config;
        KvCacheConfig::new(config.num_layers, config.num_kv_heads, config.head_dim)
            .with_max_tokens(WINDOW)
    }

    fn cache(&self, method: &Method) -> KvCache {
        let caches = self.caches().with_method(method.clone());
        caches.init(&self.device).expect("a cache")
    }
}

/// Scored from here, where a page of 256 tokens has left the recent tier and four of 64 have: about
/// as many tokens are packed by every method.
const FROM: usize = 64 + 128 + 256;

fn windows(method: Method) -> Method {
    method.with_sink(64).with_recent(128)
}

#[test]
fn two_bits_cost_what_they_should() {
    let Some(real) = Real::open() else { return };
    let methods = [
        Method::exact(),
        windows(Method::kivi()),
        windows(Method::round_to_nearest()),
        windows(Method::hadamard_centred()),
    ];
    let options = EvaluateOptions {
        window: WINDOW,
        windows: WINDOWS,
        positions_from: FROM,
        chunk: WINDOW,
    };
    let scores = evaluate(
        &real.loaded.model,
        &real.caches(),
        &real.device,
        &real.ids,
        &methods,
        &options,
        &mut |_| {},
    )
    .expect("evaluates");
    for score in &scores {
        println!(
            "{:<17} ppl {:7.3}  kl {:.4}  top1 {:.4}  {:.3} bits per value  {:.1} s",
            score.method, score.ppl, score.kl, score.top1, score.bits_per_value, score.seconds
        );
    }
    let [exact, kivi, nearest, centred] = &scores[..] else {
        panic!("one score a method")
    };
    assert!(
        (6.0..60.0).contains(&exact.ppl),
        "exact perplexity {}",
        exact.ppl
    );
    assert!(kivi.kl > 1e-3, "nothing was packed, KL {}", kivi.kl);
    assert!(kivi.kl < 0.15, "KL of kivi {}", kivi.kl);
    assert!(kivi.top1 > 0.75, "agreement of kivi {}", kivi.top1);
    assert!(
        nearest.kl > 3.0 * kivi.kl,
        "KL of round_to_nearest {}",
        nearest.kl
    );
    assert!(
        centred.kl < 0.75 * kivi.kl,
        "KL of hadamard_centred {}",
        centred.kl
    );
    assert!(kivi.bytes < exact.bytes && centred.bytes < exact.bytes);
}

const NEW_TOKENS: usize = 24;
const PROMPT: usize = 400;

fn continuation(real: &Real, method: &Method, chunk: usize) -> Vec<u32> {
    let options = GenerateOptions {
        max_new_tokens: NEW_TOKENS,
        max_tokens: WINDOW,
        chunk,
        stop_tokens: Vec::new(),
    };
    let mut told = Vec::new();
    let generation = generate(
        &real.loaded.model,
        &real.device,
        &mut real.cache(method),
        &real.ids[..PROMPT],
        &mut Sampler::greedy(),
        &options,
        &mut |progress| {
            if let Progress::Token(token) = progress {
                told.push(token);
            }
            ControlFlow::Continue(())
        },
    )
    .expect("generates");
    assert_eq!(generation.tokens.len(), NEW_TOKENS);
    assert_eq!(generation.tokens, told);
    generation.tokens
}

#[test]
fn greedy_text_does_not_depend_on_chunks_and_hardly_on_eight_bits() {
    let Some(real) = Real::open() else { return };
    let exact = continuation(&real, &Method::exact(), PROMPT);
    println!(
        "{:?}",
        real.loaded.tokenizer.decode(&exact).expect("a text")
    );
    for chunk in [37, 128] {
        assert_eq!(
            exact,
            continuation(&real, &Method::exact(), chunk),
            "chunks of {chunk}"
        );
    }

    let eight = windows(Method::kivi()).with_bits(8).expect("8 bits");
    let mut cache = real.cache(&eight);
    let model = &real.loaded.model;
    let prompt = &real.ids[..PROMPT];
    let logits = prefill(model, &real.device, &mut cache, prompt, 64, &mut |_| {
        ControlFlow::Continue(())
    });
    let logits = logits
        .expect("reads the prompt")
        .expect("is not interrupted");
    assert!(cache.memory().page_bytes > 0);
    let found = agreement(model, &real.device, &mut cache, &logits, &exact).expect("runs");
    println!(
        "8 bits choose {} of {} tokens as exact does",
        found.agreed, found.compared
    );
    assert_eq!(found.compared, NEW_TOKENS);
    assert!(found.agreed >= 20, "{found:?}");
}
