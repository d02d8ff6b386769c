use proptest::prelude::*;

use super::*;
use crate::calibration::container;

fn config(sinks: usize, block: usize) -> StatisticsConfig {
    StatisticsConfig {
        fingerprint: "model".into(),
        sinks,
        block,
        sample: 3,
        ..StatisticsConfig::new(1, 1, 2)
    }
}

/// Two tokens, two channels, two query heads, every sum by hand.
#[test]
fn every_formula_by_hand() {
    let mut statistics = Statistics::new(config(0, 2)).unwrap();
    let call = Observation {
        text: 0,
        past: 0,
        tokens: 2,
        scale: 0.5,
        // Head 0: (1, 2), (0, 1). Head 1: (3, 0), (-1, 1).
        queries: &[1.0, 2.0, 0.0, 1.0, 3.0, 0.0, -1.0, 1.0],
        keys: &[1.0, 0.0, 3.0, 2.0],
        values: &[1.0, -1.0, 2.0, 4.0],
        weights: &[2.5, 0.5],
        query_sensitivity: &[0.0, 2.0, 0.0, 6.0],
        key_sensitivity: &[5.0, 3.0],
    };
    statistics.record(0, &call).unwrap();
    let layer = &statistics.layers()[0];
    let head = &layer.heads[0];

    assert_eq!(head.queries.weight(), 4.0);
    // Σ qᵀq = [[1+0+9+1, 2+0+0-1], [.., 4+1+0+1]].
    assert_eq!(head.queries.second(), [2.75, 0.25, 0.25, 1.5]);
    assert_eq!(head.queries.mean(), [0.75, 1.0]);
    // (2 [0 0; 0 1] + 6 [1 -1; -1 1]) / 8.
    assert_eq!(head.sensitive_queries.weight(), 8.0);
    assert_eq!(head.sensitive_queries.second(), [0.75, -0.75, -0.75, 1.0]);
    assert_eq!(head.keys.mean(), [2.0, 1.0]);
    assert_eq!(head.keys.second(), [5.0, 3.0, 3.0, 2.0]);
    assert_eq!(head.keys.covariance(), [1.0, 1.0, 1.0, 1.0]);
    // One block: (-1, -1), (1, 1).
    assert_eq!(head.keys_in_block.weight(), 2.0);
    assert_eq!(head.keys_in_block.second(), [1.0, 1.0, 1.0, 1.0]);
    assert_eq!(head.sensitive_keys_in_block.weight(), 8.0);
    assert_eq!(head.sensitive_keys_in_block.mean(), [-0.25, -0.25]);
    assert_eq!(head.values.second(), [2.5, 3.5, 3.5, 8.5]);
    // (2.5 [1 -1; -1 1] + 0.5 [4 8; 8 16]) / 3.
    assert_eq!(head.attended.weight(), 3.0);
    assert_eq!(head.attended.mean(), [3.5 / 3.0, -0.5 / 3.0]);
    assert_eq!(head.attended.second(), [1.5, 0.5, 0.5, 10.5 / 3.0]);
    // Σ qᵀq = [11 1; 1 6]: k = (1, 0) has 11, k = (3, 2) has 99 + 12 + 24 = 135; scaled to 2.
    let weights = [11.0 * 2.0 / 146.0, 135.0 * 2.0 / 146.0];
    assert_eq!(head.proxy.weight(), 2.0);
    let expected = (weights[0] + 4.0 * weights[1]) / 2.0;
    assert!((head.proxy.second()[0] - expected).abs() < 1e-15);
    assert_eq!((head.key_norms.total(), head.value_norms.total()), (2, 2));

    let sample: Vec<_> = layer.sample(0).collect();
    assert_eq!(sample.len(), 2);
    let first = sample.iter().find(|token| token.weight == 2.5).unwrap();
    assert_eq!(
        (first.key, first.value),
        (&[1.0, 0.0][..], &[1.0, -1.0][..])
    );
    assert_eq!(layer.sample(1).count(), 0);
    assert_eq!(
        (
            layer.tokens,
            layer.sequences,
            layer.longest,
            layer.query_heads,
            layer.scale
        ),
        (2, 1, 2, 2, 0.5)
    );
}

/// Sinks do not count as keys and values, blocks end where they end, however the calls are cut.
#[test]
fn chunks_add_up_to_the_whole() {
    let (keys, values) = (numbers(7, 1), numbers(7, 2));
    let queries = numbers(7, 3);
    let mut whole = Statistics::new(config(1, 2)).unwrap();
    let mut chunked = whole.clone();
    // Weights of each query on each token.
    let weight = |t: usize, s: usize| {
        if s <= t {
            (t * 7 + s) as f64 / 64.0
        } else {
            0.0
        }
    };
    let record = |statistics: &mut Statistics, past: usize, tokens: usize| {
        let held = past + tokens;
        let weights: Vec<f64> = (0..held)
            .map(|s| (past..held).map(|t| weight(t, s)).sum())
            .collect();
        // Past the sink, and a block older.
        let sensitivity = |t: usize, s: usize| match s >= 1 && s + 2 <= t {
            true => weight(t, s),
            false => 0.0,
        };
        let on_keys: Vec<f64> = (0..held)
            .map(|s| (past..held).map(|t| sensitivity(t, s)).sum())
            .collect();
        let of_queries: Vec<f64> = (past..held)
            .map(|t| (0..held).map(|s| sensitivity(t, s)).sum())
            .collect();
        let call = Observation {
            text: 9,
            past,
            tokens,
            scale: 1.0,
            queries: &queries[2 * past..2 * held],
            keys: &keys[..2 * held],
            values: &values[..2 * held],
            weights: &weights,
            query_sensitivity: &of_queries,
            key_sensitivity: &on_keys,
        };
        statistics.record(0, &call).unwrap();
    };
    record(&mut whole, 0, 7);
    for (past, tokens) in [(0, 3), (3, 1), (4, 3)] {
        record(&mut chunked, past, tokens);
    }
    let [whole, chunked] = [&whole, &chunked].map(|statistics| &statistics.layers()[0]);
    // The proxy is normalised within a call, and the number of calls differs.
    for ((name, a), (_, b)) in whole.heads[0]
        .moments()
        .into_iter()
        .zip(chunked.heads[0].moments())
    {
        if name != "proxy" {
            assert_eq!(a, b, "{name}");
        }
    }
    assert_eq!(whole.sample, chunked.sample);
    assert_eq!(whole.heads[0].keys.weight(), 6.0);
    assert_eq!(whole.heads[0].keys_in_block.weight(), 6.0);
    assert!(whole.heads[0].sensitive_keys_in_block.weight() > 0.0);
    assert!(whole.heads[0].sensitive_queries.weight() > 0.0);
    assert_eq!(
        (chunked.tokens, chunked.sequences, chunked.longest),
        (7, 1, 7)
    );
}

/// Exact in f64 whatever the order: multiples of 1/8.
fn numbers(tokens: usize, seed: usize) -> Vec<f32> {
    (0..2 * tokens)
        .map(|i| ((i * 37 + seed * 101) % 64) as f32 / 8.0 - 4.0)
        .collect()
}

fn shard(seed: u64) -> Statistics {
    let mut statistics = Statistics::new(config(1, 2)).unwrap();
    let mut noise = seed;
    for text in 0..seed % 4 {
        let mut random = || {
            noise = noise
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (noise >> 40) as f32 / 1e5 - 80.0
        };
        let tokens = 1 + (seed + text) as usize % 6;
        let mut numbers = |count: usize| (0..count).map(|_| random()).collect::<Vec<_>>();
        let (queries, keys, values) = (
            numbers(4 * tokens),
            numbers(2 * tokens),
            numbers(2 * tokens),
        );
        let weights: Vec<_> = (0..tokens).map(|i| 1.0 / (1.0 + i as f64)).collect();
        let call = Observation {
            // Some numbers are given twice.
            text: text + seed % 3,
            past: 0,
            tokens,
            scale: 0.3,
            queries: &queries,
            keys: &keys,
            values: &values,
            weights: &weights,
            query_sensitivity: &[weights.clone(), weights.clone()].concat(),
            key_sensitivity: &weights,
        };
        statistics.record(0, &call).unwrap();
    }
    statistics
}

proptest! {
    #[test]
    fn shards_merge_in_any_order(
        seeds in prop::collection::vec(0u64..1000, 1..6),
        cut in 0usize..6,
        order in any::<prop::sample::Index>(),
    ) {
        let empty = || Statistics::new(config(1, 2)).unwrap();
        let merged = |seeds: &[u64]| {
            let mut all = empty();
            seeds.iter().for_each(|&seed| all.merge(&shard(seed)).unwrap());
            all
        };
        let whole = merged(&seeds);
        let mut turned = seeds.clone();
        turned.rotate_left(order.index(seeds.len()));
        turned.reverse();
        let (left, right) = turned.split_at(cut.min(turned.len()));
        let mut halves = merged(left);
        halves.merge(&merged(right)).unwrap();
        prop_assert_eq!(&halves, &whole);
        prop_assert_eq!(halves.to_bytes().unwrap(), whole.to_bytes().unwrap());
    }
}

#[test]
fn files_come_back_and_damage_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("statistics.safetensors");
    let statistics = shard(7);
    statistics.save(&path).unwrap();
    assert_eq!(Statistics::load(&path).unwrap(), statistics);

    let bytes = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error = Statistics::load(&path).unwrap_err();
        assert!(matches!(error, Error::Artifact { .. }), "{error}");
        error.to_string()
    };
    for at in (0..bytes.len()).step_by(97) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x40;
        refused(&damaged);
        refused(&bytes[..at]);
    }

    // Whole files that say something else, their digest renewed.
    let forged = |change: &dyn Fn(&mut container::Strings, &mut container::Tensors)| {
        let (mut metadata, mut tensors) = container::split(&bytes).unwrap();
        change(&mut metadata, &mut tensors);
        metadata.remove("sha256");
        metadata.insert("sha256".into(), container::digest(&metadata, &tensors));
        refused(&container::join(metadata, tensors).unwrap())
    };
    let text = forged(&|metadata, _| drop(metadata.insert("version".into(), "1".into())));
    assert!(text.contains("version 1"), "{text}");
    let text = forged(&|metadata, _| drop(metadata.insert("head_dim".into(), "3".into())));
    assert!(text.contains("layers.0"), "{text}");
    let text = forged(&|_, tensors| drop(tensors.remove("layers.0.keys")));
    assert!(text.contains("layers.0.keys"), "{text}");
    let text = forged(&|_, tensors| {
        let tensor = tensors.get_mut("layers.0.keys").unwrap();
        let mut bytes = tensor.bytes.to_vec();
        bytes[15] = 0x7f;
        tensor.bytes = bytes.into();
    });
    assert!(text.contains("can add up to"), "{text}");
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut statistics = shard(7);
    let before = statistics.clone();
    let mut refused = |result: Result<()>, part: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert_eq!(statistics, before);
        statistics = before.clone();
    };
    let other = |change: &dyn Fn(&mut StatisticsConfig)| {
        let mut config = config(1, 2);
        change(&mut config);
        let mut mine = before.clone();
        mine.merge(&Statistics::new(config).unwrap())
    };
    refused(other(&|c| c.fingerprint = "other".into()), "`other`");
    refused(other(&|c| c.sinks = 5), "with 1 and with 5 sinks");
    refused(other(&|c| c.head_dim = 4), "channels");

    let call = Observation {
        text: 0,
        past: 0,
        tokens: 1,
        scale: 0.3,
        queries: &[0.0; 4],
        keys: &[1.0; 2],
        values: &[1.0; 2],
        weights: &[1.0],
        query_sensitivity: &[0.0; 2],
        key_sensitivity: &[0.0],
    };
    let mut trial = before.clone();
    let mut attempt = |call: &Observation| {
        let result = trial.record(0, call);
        assert_eq!(trial, before);
        result
    };
    refused(
        attempt(&Observation { scale: 0.4, ..call }),
        "scales 0.3 and 0.4",
    );
    refused(
        attempt(&Observation {
            queries: &[0.0; 2],
            query_sensitivity: &[0.0],
            ..call
        }),
        "2 and with 1 query heads",
    );
    refused(
        attempt(&Observation {
            keys: &[1.0; 3],
            ..call
        }),
        "KV heads",
    );
    refused(
        attempt(&Observation {
            queries: &[1e8, 0.0, 0.0, 0.0],
            ..call
        }),
        "at most",
    );
    refused(
        attempt(&Observation {
            values: &[f32::NAN, 0.0],
            ..call
        }),
        "NaN",
    );
    refused(trial.record(1, &call), "layer 1 does not exist");
    assert!(Statistics::new(StatisticsConfig::new(1, 0, 2)).is_err());
}
