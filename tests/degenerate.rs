//! Groups that break careless quantisers: constant, zero, one ulp apart, denormal, huge.

use burn::tensor::{Device, Tensor, TensorData};
use burn_oscar::{AttentionOptions, KvCacheConfig, Method};
use capabilities::golden::golden_calibration;

const HEADS: usize = 2;
const HEAD_DIM: usize = 64;

/// A name, the numbers by (token, channel), and how far the decoded ones may be off.
type Kind = (&'static str, fn(usize, usize) -> f32, f32);

const KINDS: &[Kind] = &[
    ("zero", |_, _| 0.0, 0.0),
    ("constant", |_, _| 0.75, 1e-3),
    ("constant per channel", |_, c| c as f32 * 0.125 - 4.0, 1e-2),
    (
        "one ulp apart",
        |t, c| f32::from_bits(1f32.to_bits() + ((t + c) % 2) as u32),
        1e-3,
    ),
    (
        "denormal",
        |t, c| f32::from_bits(((t * 7 + c) % 5) as u32),
        1e-30,
    ),
    ("tiny", |t, c| 1e-20 * ((t * 7 + c) % 5) as f32, 1e-15),
    (
        "one outlier",
        |t, c| if t == 3 && c == 9 { 100.0 } else { 0.0 },
        60.0,
    ),
];

fn decoded(method: &Method, kind: fn(usize, usize) -> f32) -> (Vec<f32>, [Vec<f32>; 2]) {
    let device = Device::flex();
    let mut cache = KvCacheConfig::new(1, HEADS, HEAD_DIM)
        .with_method(method.clone().with_sink(0).with_recent(0))
        .with_poison(true)
        .init(&device)
        .unwrap();
    let tokens = cache.page_tokens();
    let numbers: Vec<f32> = (0..HEADS * tokens * HEAD_DIM)
        .map(|i| kind(i / HEAD_DIM % tokens, i % HEAD_DIM))
        .collect();
    let data = TensorData::new(numbers.clone(), [1, HEADS, tokens, HEAD_DIM]);
    let x = Tensor::<4>::from_data(data, &device);
    let options = AttentionOptions::causal();
    cache
        .attend(0, x.clone(), x.clone(), x.clone(), options.clone())
        .unwrap();
    // A second call reads the page.
    let one = x.narrow(2, 0, 1);
    let output = cache
        .attend(0, one.clone(), one.clone(), one, options)
        .unwrap();
    let output: Vec<f32> = output.try_into_vec_as().unwrap();
    assert!(output.iter().all(|x| x.is_finite()), "{}", method.name());
    let sides = cache.dequantize(cache.sequences()[0], 0).unwrap();
    let page = sides.map(|side| side.narrow(1, 0, tokens).try_into_vec_as().unwrap());
    (numbers, page)
}

#[test]
fn degenerate_groups_decode_to_finite_correct_numbers() {
    let uncalibrated = [
        "exact",
        "round_to_nearest",
        "kivi",
        "hadamard",
        "hadamard_centred",
        "oscar_scaled",
    ];
    let mut methods: Vec<Method> = uncalibrated
        .map(|name| Method::preset(name).unwrap())
        .into();
    methods.extend([4, 8].map(|bits| Method::kivi().with_bits(bits).unwrap()));
    for method in &methods {
        for (name, kind, tolerance) in KINDS {
            let (numbers, sides) = decoded(method, *kind);
            for decoded in sides {
                for (found, expected) in decoded.iter().zip(&numbers) {
                    // Hadamard and division by a norm round in f32.
                    let tolerance = tolerance + 2e-6 * expected.abs();
                    let difference = (found - expected).abs();
                    let allowed = if *name == "zero" {
                        0.0
                    } else {
                        tolerance * slack(method, name)
                    };
                    assert!(
                        difference <= allowed,
                        "{} of {}: {found} for {expected}",
                        name,
                        method.name()
                    );
                }
            }
        }
    }
}

/// Rotated vectors spread a coarse step over all channels.
fn slack(method: &Method, kind: &str) -> f32 {
    match (method.name(), kind) {
        ("hadamard" | "oscar_scaled", "constant per channel") => 400.0,
        // Half a step of 32 channels' range.
        ("round_to_nearest" | "kivi", "constant per channel") => 70.0,
        ("oscar_scaled" | "hadamard", "constant" | "one ulp apart") => 8.0,
        _ => 1.0,
    }
}

#[test]
fn calibrated_methods_stay_finite() {
    for name in ["oscar", "transform_coded"] {
        let calibration = golden_calibration(name, 1);
        let device = Device::flex();
        let heads = calibration.n_kv_heads();
        let method = Method::calibrated(name, &calibration).unwrap();
        for (kind, numbers, _) in KINDS {
            let mut cache = KvCacheConfig::new(1, heads, HEAD_DIM)
                .with_method(method.clone().with_sink(0).with_recent(0))
                .with_poison(true)
                .init(&device)
                .unwrap();
            let tokens = cache.page_tokens();
            let data: Vec<f32> = (0..heads * tokens * HEAD_DIM)
                .map(|i| numbers(i / HEAD_DIM % tokens, i % HEAD_DIM))
                .collect();
            let x = Tensor::<4>::from_data(
                TensorData::new(data, [1, heads, tokens, HEAD_DIM]),
                &device,
            );
            for _ in 0..2 {
                let options = AttentionOptions::causal();
                let output = cache
                    .attend(0, x.clone(), x.clone(), x.clone(), options)
                    .unwrap();
                let output: Vec<f32> = output.try_into_vec_as().unwrap();
                assert!(output.iter().all(|x| x.is_finite()), "{kind} of {name}");
            }
        }
    }
}

/// The largest numbers that f16 parameters hold still come back right.
#[test]
fn huge_numbers_come_back_or_are_refused() {
    for method in [Method::kivi(), Method::round_to_nearest()] {
        let (numbers, sides) = decoded(&method, |t, c| if (t + c) % 2 == 0 { 6e4 } else { -6e4 });
        for side in sides {
            for (found, expected) in side.iter().zip(&numbers) {
                assert!(
                    (found - expected).abs() <= 100.0,
                    "{}: {found} for {expected}",
                    method.name()
                );
            }
        }
    }
}
