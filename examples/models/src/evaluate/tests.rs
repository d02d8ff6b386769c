use burn_oscar::AttentionOptions;

use super::*;
use crate::generate::{forward, read_f32, tests::tiny_model};

const OPTIONS: EvaluateOptions = EvaluateOptions {
    window: 200,
    windows: 2,
    positions_from: 1,
    chunk: 64,
};

fn text(tokens: usize) -> Vec<u32> {
    (0..tokens as u32)
        .map(|i| (i * i * 7 + i * 13) % 97)
        .collect()
}

struct Bench {
    device: Device,
    model: Model,
    caches: KvCacheConfig,
}

impl Bench {
    fn new() -> Self {
        let device = Device::flex();
        let (model, caches) = tiny_model(&device);
        Self {
            device,
            model,
            caches,
        }
    }

    fn run(&self, methods: &[Method], options: &EvaluateOptions) -> Vec<MethodScore> {
        evaluate(
            &self.model,
            &self.caches,
            &self.device,
            &text(450),
            methods,
            options,
            &mut |_| {},
        )
        .expect("evaluates")
    }
}

/// Windows short enough that most tokens of a window of 200 are packed.
fn packed() -> Method {
    Method::kivi().with_sink(4).with_recent(16)
}

#[test]
fn exact_is_its_own_reference() {
    let score = &Bench::new().run(&[Method::exact()], &OPTIONS)[0];
    assert_eq!((score.kl, score.top1, score.delta_nll), (0.0, 1.0, 0.0));
    assert_eq!(score.ppl, score.exact_ppl);
    assert_eq!((score.tokens, score.scored), (400, 398));
    assert_eq!(score.per_window.len(), 2);
}

#[test]
fn the_score_is_that_of_one_token_at_a_time() {
    let bench = Bench::new();
    let ids = text(450);
    for method in [Method::exact(), packed()] {
        let score = &bench.run(std::slice::from_ref(&method), &OPTIONS)[0];
        let (mut nll, mut positions) = (0.0, 0);
        for window in ids.chunks_exact(200).take(2) {
            let caches = bench.caches.clone().with_method(method.clone());
            let mut cache = caches.init(&bench.device).expect("a cache");
            for pair in window.windows(2) {
                let causal = AttentionOptions::causal();
                let hidden = forward(&bench.model, &bench.device, &mut cache, &pair[..1], causal)
                    .expect("runs");
                let logits = read_f32(bench.model.logits(hidden)).expect("reads");
                let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
                nll += sum.ln() - f64::from(logits[pair[1] as usize]);
                positions += 1;
            }
        }
        assert_eq!(score.scored, positions);
        let expected = nll / positions as f64;
        assert!(
            (score.nll - expected).abs() < 1e-4,
            "{}: {} and {expected}",
            method.name(),
            score.nll
        );
    }
}

#[test]
fn the_chunk_does_not_change_the_score() {
    let bench = Bench::new();
    let run = |chunk| {
        bench
            .run(&[packed()], &EvaluateOptions { chunk, ..OPTIONS })
            .remove(0)
    };
    let whole = run(200);
    assert!(whole.kl > 0.0);
    for chunk in [1, 63, 65] {
        let parts = run(chunk);
        assert!((parts.nll - whole.nll).abs() < 1e-4, "chunk {chunk}");
        assert!((parts.kl - whole.kl).abs() < 1e-4, "chunk {chunk}");
        assert_eq!(parts.bytes, whole.bytes);
    }
}

#[test]
fn only_late_positions_are_scored_where_asked() {
    let bench = Bench::new();
    let options = EvaluateOptions {
        positions_from: 150,
        ..OPTIONS
    };
    let score = &bench.run(&[packed()], &options)[0];
    assert_eq!((score.scored, score.positions_from), (100, 150));
    // Before anything is packed, method and exact cache are the same.
    let early = EvaluateOptions {
        window: 16,
        windows: 3,
        ..OPTIONS
    };
    assert!(bench.run(&[packed()], &early)[0].kl < 1e-9);
}

#[test]
fn windows_are_spread_and_never_overlap() {
    let starts = |tokens, windows| OPTIONS.starts(tokens, windows).collect::<Vec<_>>();
    assert_eq!(starts(2200, 4), [0, 500, 1000, 1500]);
    assert_eq!(starts(450, 2), [0, 200]);
    assert_eq!(starts(200, 1), [0]);
    for (tokens, windows) in [(400, 2), (999, 4), (1000, 5), (100_000, 7)] {
        let starts = starts(tokens, windows);
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 200));
        assert!(starts[windows - 1] + 200 <= tokens);
    }
}

#[test]
fn progress_adds_up_to_the_work() {
    let bench = Bench::new();
    let methods = [Method::exact(), packed()];
    let mut seen = 0;
    evaluate(
        &bench.model,
        &bench.caches,
        &bench.device,
        &text(450),
        &methods,
        &OPTIONS,
        &mut |step| seen += step.tokens,
    )
    .expect("evaluates");
    assert_eq!(seen, OPTIONS.work(2, &methods));
}

#[test]
fn what_cannot_be_scored_is_an_error() {
    let count = |options: EvaluateOptions| options.count_windows(450);
    assert!(matches!(count(OPTIONS), Ok(2)));
    let all = EvaluateOptions {
        windows: 0,
        ..OPTIONS
    };
    assert!(matches!(count(all), Ok(2)));
    let window = EvaluateOptions {
        window: 1,
        ..OPTIONS
    };
    assert!(matches!(count(window), Err(EvaluateError::Window(1))));
    let from = EvaluateOptions {
        positions_from: 200,
        ..OPTIONS
    };
    assert!(matches!(
        count(from),
        Err(EvaluateError::PositionsFrom { .. })
    ));
    let many = EvaluateOptions {
        windows: 3,
        ..OPTIONS
    };
    let error = count(many).expect_err("too short").to_string();
    assert!(error.contains("450") && error.contains("3"), "{error}");
    let long = EvaluateOptions {
        window: 500,
        windows: 0,
        ..OPTIONS
    };
    assert!(matches!(
        count(long),
        Err(EvaluateError::TextTooShort { available: 0, .. })
    ));
}
