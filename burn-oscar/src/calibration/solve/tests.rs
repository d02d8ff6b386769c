use super::*;
use crate::calibration::StatisticsConfig;
use crate::calibration::statistics::Observation;
use crate::quantizer::Segment;

const D: usize = 16;

fn config() -> StatisticsConfig {
    StatisticsConfig {
        fingerprint: "model".into(),
        sinks: 2,
        block: 16,
        sample: 64,
        ..StatisticsConfig::new(2, 2, D)
    }
}

/// Queries that lean on some channels, keys with a mean and outlier channels, of two layers.
fn observed(tokens: usize, texts: u64, lean: f32) -> Statistics {
    let mut statistics = Statistics::new(config()).unwrap();
    let mut state = 17u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((state >> 40) as f32 / (1u64 << 23) as f32) - 1.0
    };
    for text in 0..texts {
        for layer in 0..2 {
            let mut vectors = |heads: usize, shape: &dyn Fn(usize, usize) -> (f32, f32)| {
                let mut out = Vec::new();
                for head in 0..heads {
                    for _ in 0..tokens {
                        for channel in 0..D {
                            let (size, mean) = shape(head, channel);
                            out.push(size * noise() + mean);
                        }
                    }
                }
                out
            };
            // The two KV heads lean on other channels.
            let turned = |head: usize, channel: usize| (channel + 8 * (head / 2 % 2)) % D;
            let queries = vectors(4, &|head, c| ((-lean * turned(head, c) as f32).exp(), 0.0));
            let keys = vectors(2, &|_, c| {
                (1.0 + (c % 3) as f32, if c == 5 { 20.0 } else { 0.0 })
            });
            let values = vectors(2, &|_, c| (0.2 + (c % 4) as f32, 0.5));
            let weights: Vec<f64> = (0..2 * tokens)
                .map(|i| 1.0 / (1 + i % tokens) as f64)
                .collect();
            let call = Observation {
                text,
                past: 0,
                tokens,
                scale: 0.25,
                queries: &queries,
                keys: &keys,
                values: &values,
                weights: &weights,
                query_sensitivity: &vec![1.0; 4 * tokens],
                key_sensitivity: &vec![1.0; 2 * tokens],
            };
            statistics.record(layer, &call).unwrap();
        }
    }
    statistics
}

#[test]
fn oscar_equalises_the_importance_of_all_channels() {
    let statistics = observed(100, 4, 0.2);
    let solution = solve(&statistics, &SolveOptions::oscar()).unwrap();
    let calibration = &solution.calibration;
    assert_eq!(
        (calibration.method(), calibration.served_length()),
        ("oscar", 100)
    );
    assert_eq!(calibration.tokens(), 400);
    for layer in &solution.diagnostics.layers {
        assert!(layer.heads.iter().all(|head| head.orthogonality < 1e-12));
        assert!(
            layer
                .heads
                .iter()
                .all(|head| (head.spread - 1.0).abs() < 1e-9)
        );
        assert!(layer.head_distance > 0.5, "{}", layer.head_distance);
        assert_eq!((layer.key_clip, layer.value_clip), (Some(0.96), Some(0.92)));
    }
    assert!(solution.diagnostics.warnings.is_empty());
    let searched = SolveOptions {
        clips: Clips::Searched,
        ..SolveOptions::oscar()
    };
    for layer in solve(&statistics, &searched).unwrap().diagnostics.layers {
        let clips = [layer.key_clip, layer.value_clip];
        assert!(clips.iter().flatten().all(|clip| clip::GRID.contains(clip)));
        assert_eq!(clips.iter().flatten().count(), 2);
    }
    let mean = calibration.layer(0).key.mean.as_ref().unwrap();
    assert!((mean[5] - 20.0).abs() < 0.5 && mean[4].abs() < 0.5);
    assert_eq!(
        calibration.layer(0).key.transform.as_ref().unwrap().heads,
        2
    );

    let without = SolveOptions {
        hadamard: false,
        ..SolveOptions::oscar()
    };
    let without = solve(&statistics, &without).unwrap();
    assert!(without.diagnostics.layers[0].heads[0].spread > 2.0);
    // The same statistics make the same bytes.
    let again = solve(&statistics, &SolveOptions::oscar()).unwrap();
    assert_eq!(
        again.calibration.to_bytes().unwrap(),
        calibration.to_bytes().unwrap()
    );
    assert!(solution.distance(&again).unwrap() < 1e-6);
    let fewer = solve(&observed(100, 1, 0.2), &SolveOptions::oscar()).unwrap();
    assert!(solution.distance(&fewer).unwrap() > 1e-3);
}

#[test]
fn as_published_is_one_basis_without_means() {
    let solution = solve(&observed(100, 4, 0.2), &SolveOptions::oscar_as_published()).unwrap();
    let layer = solution.calibration.layer(1);
    assert_eq!(layer.key.transform.as_ref().unwrap().heads, 1);
    assert_eq!(layer.value.transform.as_ref().unwrap().heads, 1);
    assert_eq!((&layer.key.mean, &layer.value.mean), (&None, &None));
    assert_eq!((layer.key.clip, layer.value.clip), (Some(0.96), Some(0.92)));
}

/// Every other query looks at channel 3, the rest at channel 12; only the latter attend to keys that
/// are packed.
#[test]
fn queries_count_by_what_an_error_changes() {
    let (tokens, config) = (64, config());
    let mut statistics = Statistics::new(StatisticsConfig {
        n_layers: 1,
        ..config
    })
    .unwrap();
    let mut queries = vec![0.0; 4 * tokens * D];
    for (t, query) in queries.chunks_exact_mut(D).enumerate() {
        let channel = if t % 2 == 0 { 3 } else { 12 };
        query[channel] = if channel == 3 { 2.0 } else { 1.0 };
    }
    let keys: Vec<f32> = (0..2 * tokens * D)
        .map(|i| ((i * 7919 % 1000) as f32 / 500.0) - 1.0)
        .collect();
    let of_queries: Vec<f64> = (0..4 * tokens).map(|t| (t % 2) as f64).collect();
    let call = Observation {
        text: 0,
        past: 0,
        tokens,
        scale: 0.25,
        queries: &queries,
        keys: &keys,
        values: &keys,
        weights: &vec![1.0; 2 * tokens],
        query_sensitivity: &of_queries,
        key_sensitivity: &vec![1.0; 2 * tokens],
    };
    statistics.record(0, &call).unwrap();
    let most_important = |sensitivity| {
        let options = SolveOptions {
            sensitivity,
            hadamard: false,
            ..SolveOptions::transform_coded()
        };
        let calibration = solve(&statistics, &options).unwrap().calibration;
        let transform = &calibration.layer(0).key.transform.as_ref().unwrap().data;
        (0..D).find(|&row| transform[row * D].abs() > 0.99)
    };
    assert_eq!(most_important(true), Some(12));
    assert_eq!(most_important(false), Some(3));
}

#[test]
fn transform_coding_sorts_channels_by_what_they_are_worth() {
    let statistics = observed(100, 4, 0.3);
    let solution = solve(&statistics, &SolveOptions::transform_coded()).unwrap();
    let calibration = &solution.calibration;
    assert_eq!(calibration.method(), "transform_coded");
    assert_eq!(calibration.layer(0).value.transform, None);
    assert_eq!(
        (
            &calibration.layer(0).key.mean,
            &calibration.layer(0).key.segments
        ),
        (&None, &None)
    );
    for layer in &solution.diagnostics.layers {
        for head in &layer.heads {
            assert!((head.shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            // Per channel, from the first quarter to the last.
            assert!(head.shares[0] > head.shares[1] / 2.0);
            assert!(head.shares[1] / 2.0 > head.shares[2]);
        }
    }
    let means = solve(&statistics, &SolveOptions::transform_coded_with_means()).unwrap();
    assert!(means.calibration.layer(0).key.mean.is_some());
    assert!(means.calibration.layer(0).value.mean.is_some());

    let budget = solution.diagnostics.layers[0].key_bits;
    for allocate in [
        Allocate::PerLayer { bits: budget },
        Allocate::AcrossLayers { bits: budget },
    ] {
        let options = SolveOptions {
            allocate,
            ..SolveOptions::transform_coded()
        };
        let found = solve(&statistics, &options).unwrap();
        let layers = &found.diagnostics.layers;
        let bits = layers.iter().map(|layer| layer.key_bits).sum::<f64>();
        assert!(bits <= 2.0 * budget + 1e-9);
        assert!(layers.iter().map(|layer| layer.predicted_gain).sum::<f64>() <= 2.0);
    }
}

/// Segments of 12 channels: 8 and 4 are mixed, nothing else.
#[test]
fn odd_segments_are_mixed_in_powers_of_two() {
    let options = SolveOptions::transform_coded();
    let segments = [Segment::new(12, 3), Segment::new(4, 0)];
    let transform = key::segment_transform(&matrix::identity(D), &segments, D, &options);
    assert!(matrix::orthogonality_defect(&transform, D) < 1e-6);
    let mixed = |i: usize, j: usize| transform[i * D + j] != 0.0;
    assert!(mixed(0, 7) && !mixed(7, 8) && mixed(8, 11) && !mixed(11, 12) && mixed(12, 15));
}

#[test]
fn longer_contexts_want_the_rotary_embedding() {
    let statistics = observed(100, 2, 0.2);
    let longer = SolveOptions {
        served_length: Some(4096),
        ..SolveOptions::oscar()
    };
    let without = solve(&statistics, &longer).unwrap();
    assert_eq!(without.calibration.served_length(), 100);
    assert!(without.diagnostics.warnings[0].contains("4096"));
    let rope = Rope::new(1e4, D, Pairing::Half);
    let with = solve(
        &statistics,
        &SolveOptions::oscar().with_rope(rope.clone(), 4096),
    )
    .unwrap();
    assert_eq!(with.calibration.served_length(), 4096);
    assert!(with.diagnostics.warnings.is_empty());
    // A mean that turns away is no mean.
    let mean = |solution: &Solution| solution.calibration.layer(0).key.mean.clone().unwrap()[5];
    assert!(mean(&with).abs() < 0.5 * mean(&without).abs());
    let shorter = SolveOptions::oscar().with_rope(rope, 99);
    assert!(matches!(
        solve(&statistics, &shorter),
        Err(Error::Option { .. })
    ));
}

#[test]
fn poor_data_are_named() {
    let few = solve(&observed(30, 1, 0.2), &SolveOptions::oscar()).unwrap();
    let text = few.diagnostics.warnings.join("\n");
    assert!(
        text.contains("layer 1, KV head 1: 28 tokens are too few for 16 channels"),
        "{text}"
    );
    let lean = solve(&observed(100, 1, 20.0), &SolveOptions::oscar()).unwrap();
    let text = lean.diagnostics.warnings.join("\n");
    assert!(
        text.contains("degenerate") && text.contains("span 1.00 directions"),
        "{text}"
    );

    let refused = |statistics: &Statistics, options: &SolveOptions, part: &str| {
        let error = solve(statistics, options).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    let empty = Statistics::new(config()).unwrap();
    refused(&empty, &SolveOptions::oscar(), "layer 0 has seen no tokens");
    refused(
        &observed(10, 1, 0.2),
        &SolveOptions::transform_coded(),
        "no whole block",
    );
    refused(
        &observed(2, 1, 0.2),
        &SolveOptions::oscar(),
        "no keys past the sinks",
    );
    let page = SolveOptions {
        centring: Centring::Page,
        ..SolveOptions::oscar()
    };
    refused(&observed(100, 1, 0.2), &page, "have no means");
}
