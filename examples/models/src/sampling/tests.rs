use super::*;
use proptest::prelude::*;

fn sampler(temperature: f32, top_k: usize, top_p: f32, seed: u64) -> Sampler {
    Sampler::new(SamplingOptions {
        temperature,
        top_k,
        top_p,
        seed,
    })
    .expect("valid options")
}

#[test]
fn temperature_zero_takes_the_best_token_and_the_first_of_equals() {
    let mut greedy = Sampler::greedy();
    assert_eq!(greedy.sample(&[0.5, 2.0, -1.0, 2.0]), Ok(1));
    assert_eq!(greedy.sample(&[f32::NEG_INFINITY, -3.0]), Ok(1));
}

#[test]
fn out_of_range_options_are_errors() {
    let new = |temperature, top_p| {
        Sampler::new(SamplingOptions {
            temperature,
            top_p,
            ..SamplingOptions::default()
        })
        .map(|_| ())
    };
    assert_eq!(new(-0.1, 1.0), Err(SamplingError::Temperature(-0.1)));
    assert!(matches!(
        new(f32::NAN, 1.0),
        Err(SamplingError::Temperature(_))
    ));
    assert!(matches!(
        new(f32::INFINITY, 1.0),
        Err(SamplingError::Temperature(_))
    ));
    assert_eq!(new(1.0, 0.0), Err(SamplingError::TopP(0.0)));
    assert_eq!(new(1.0, 1.5), Err(SamplingError::TopP(1.5)));
    assert!(matches!(new(1.0, f32::NAN), Err(SamplingError::TopP(_))));
}

#[test]
fn broken_logits_are_errors() {
    let mut any = sampler(1.0, 0, 1.0, 0);
    assert_eq!(any.sample(&[]), Err(SamplingError::NoLogits));
    assert!(matches!(
        any.sample(&[0.0, f32::NAN]),
        Err(SamplingError::NotFinite { token: 1, .. })
    ));
    assert!(matches!(
        any.sample(&[f32::INFINITY, 0.0]),
        Err(SamplingError::NotFinite { token: 0, .. })
    ));
    assert!(any.sample(&[f32::NEG_INFINITY; 3]).is_err());
}

#[test]
fn frequencies_follow_the_softmax() {
    // Probabilities 1/2, 1/3, 1/6.
    let logits = [3.0f32.ln(), 2.0f32.ln(), 0.0];
    let mut any = sampler(1.0, 0, 1.0, 7);
    let mut counts = [0usize; 3];
    let draws = 60_000;
    for _ in 0..draws {
        counts[any.sample(&logits).expect("finite") as usize] += 1;
    }
    for (count, expected) in counts.into_iter().zip([0.5, 1.0 / 3.0, 1.0 / 6.0]) {
        let share = count as f64 / draws as f64;
        // Five standard errors of a share near 1/2.
        assert!((share - expected).abs() < 0.0103, "{share} for {expected}");
    }
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_it() {
    let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
    for (top_p, expected) in [(0.4, 1), (0.6, 2), (0.81, 3), (1.0, 3)] {
        let kept = sampler(1.0, 0, top_p, 0).candidates(&logits, logits[0]);
        assert_eq!(kept.len(), expected, "top-p {top_p}");
    }
}

#[test]
fn extreme_temperatures_stay_finite() {
    let logits = [1e4, -1e4, 3.0e38, -3.0e38];
    assert_eq!(sampler(1e-30, 0, 1.0, 0).sample(&logits), Ok(2));
    assert!(sampler(1e30, 0, 0.9, 0).sample(&logits).is_ok());
}

proptest! {
    #[test]
    fn equal_seeds_draw_equal_tokens(
        logits in prop::collection::vec(-20.0f32..20.0, 1..200),
        temperature in 0.0f32..3.0,
        top_k in 0usize..50,
        top_p in 0.01f32..=1.0,
        seed: u64,
    ) {
        let mut a = sampler(temperature, top_k, top_p, seed);
        let mut b = sampler(temperature, top_k, top_p, seed);
        for _ in 0..8 {
            prop_assert_eq!(a.sample(&logits), b.sample(&logits));
        }
    }

    #[test]
    fn drawn_tokens_are_among_the_top_k(
        logits in prop::collection::vec(-20.0f32..20.0, 1..200),
        temperature in 0.01f32..5.0,
        top_k in 1usize..20,
        top_p in 0.01f32..=1.0,
        seed: u64,
    ) {
        let token = sampler(temperature, top_k, top_p, seed).sample(&logits).expect("finite");
        let value = logits[token as usize];
        let better = logits.iter().filter(|&&other| other > value).count();
        prop_assert!(better < top_k, "{} tokens are better than the one drawn", better);
    }

    #[test]
    fn one_candidate_is_the_greedy_choice(
        logits in prop::collection::vec(-20.0f32..20.0, 1..200),
        temperature in 0.01f32..5.0,
        seed: u64,
    ) {
        let greedy = Sampler::greedy().sample(&logits);
        prop_assert_eq!(sampler(temperature, 1, 1.0, seed).sample(&logits), greedy.clone());
        prop_assert_eq!(sampler(temperature, 0, 1e-6, seed).sample(&logits), greedy);
    }

    #[test]
    fn excluded_tokens_are_never_drawn(
        mut logits in prop::collection::vec(-20.0f32..20.0, 2..100),
        seed: u64,
    ) {
        for logit in logits.iter_mut().step_by(2) {
            *logit = f32::NEG_INFINITY;
        }
        let mut any = sampler(2.0, 0, 1.0, seed);
        for _ in 0..16 {
            prop_assert_eq!(any.sample(&logits).expect("finite") % 2, 1);
        }
    }
}
