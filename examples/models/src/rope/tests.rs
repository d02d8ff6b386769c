use super::*;

/// Frequencies of heads of 16 channels.
fn frequencies(theta: f64, scaling: RopeScaling) -> Vec<f64> {
    Rope::new(&RopeConfig { theta, scaling }, 16).frequencies
}

fn assert_close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found / expected - 1.0).abs() < 1e-5,
            "{found} for {expected}"
        );
    }
}

/// The expected numbers are those of Hugging Face transformers 5.24.
#[test]
fn scaled_frequencies_are_those_of_transformers() {
    assert_close(
        &frequencies(1e6, RopeScaling::Linear { factor: 4.0 }),
        &[
            0.25,
            0.04445698,
            0.007905695,
            0.001405853,
            0.00025,
            4.445699e-05,
            7.905694e-06,
            1.405853e-06,
        ],
    );
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        attention_factor: 1.138629436111989,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_max_position_embeddings: 32768,
        truncate: true,
    };
    assert_close(
        &frequencies(1e6, yarn),
        &[
            1.0,
            0.1778279,
            0.03162278,
            0.00421756,
            0.0005,
            4.445699e-05,
            7.905694e-06,
            1.405853e-06,
        ],
    );
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    assert_close(
        &frequencies(5e5, llama3),
        &[
            1.0,
            0.1939228,
            0.03760603,
            0.007292665,
            0.000524846,
            3.428102e-05,
            6.64787e-06,
            1.289173e-06,
        ],
    );
}

#[test]
fn divisors_divide() {
    let divisors = vec![1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0];
    let plain = frequencies(1e4, RopeScaling::None);
    let expected: Vec<f64> = plain.iter().zip(&divisors).map(|(f, d)| f / d).collect();
    assert_close(
        &frequencies(1e4, RopeScaling::Divisors(divisors)),
        &expected,
    );
}

#[test]
fn each_row_turns_from_its_own_position() {
    let device = Device::flex();
    let rope = Rope::new(
        &RopeConfig {
            theta: 100.0,
            scaling: RopeScaling::None,
        },
        4,
    );
    let heads = Tensor::<4>::from_data([[[[1.0, 2.0, 3.0, 4.0]]; 2]; 2], &device);
    let turned = rope.rotation(&[0, 5], 2, &device).apply(heads);
    let found: Vec<f32> = turned.into_data().iter().collect();

    let mut expected = Vec::new();
    for position in [0, 1, 5, 6] {
        let turn = |x: f64, y: f64, frequency: f64| {
            let (sine, cosine) = (f64::from(position) * frequency).sin_cos();
            (x * cosine - y * sine, y * cosine + x * sine)
        };
        // Channel 0 pairs with 2, channel 1 with 3.
        let ((a, c), (b, d)) = (turn(1.0, 3.0, 1.0), turn(2.0, 4.0, 0.1));
        expected.extend([a, b, c, d]);
    }
    for (found, expected) in found.iter().zip(&expected) {
        assert!(
            (f64::from(*found) - expected).abs() < 1e-5,
            "{found} for {expected}"
        );
    }
}
