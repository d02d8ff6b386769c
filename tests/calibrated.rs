//! The calibrated methods from an artifact on disk to a model's logits.

use burn_oscar::calibration::{Calibration, CalibrationBuilder};
use burn_oscar::{Error, KvCacheConfig, Method};
use capabilities::golden::{HEAD_DIM, golden_calibration_for};

use crate::logits::checkpoint::{Checkpoint, PREFILL};

/// The golden layers as an artifact for a checkpoint, through a file.
fn artifact(method: &str, checkpoint: &Checkpoint) -> Calibration {
    let config = &checkpoint.loaded.config;
    let golden = golden_calibration_for(method, config.num_layers, config.num_kv_heads);
    let builder = CalibrationBuilder::new(method, config.num_layers, config.num_kv_heads, HEAD_DIM)
        .fingerprint(checkpoint.loaded.fingerprint.clone())
        .served_length(8192)
        .tokens(8192);
    let calibration = (0..config.num_layers)
        .fold(builder, |builder, layer| {
            builder.layer(layer, golden.layer(layer).clone())
        })
        .build()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("artifact.safetensors");
    calibration.save(&path).unwrap();
    Calibration::load(&path).unwrap()
}

/// Mean square of the difference over that of the reference.
fn error(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    let pairs = || found.iter().flatten().zip(expected.iter().flatten());
    let square = |x: f32| f64::from(x).powi(2);
    let noise: f64 = pairs().map(|(f, e)| square(f - e)).sum();
    noise / pairs().map(|(_, e)| square(*e)).sum::<f64>()
}

#[test]
fn an_artifact_serves_a_model() {
    let checkpoint = Checkpoint::open("qwen3-tiny");
    for name in ["oscar", "transform_coded"] {
        let method = Method::calibrated(name, &artifact(name, &checkpoint)).unwrap();
        // As long as nothing is packed, transforms, means and their way back cancel out.
        let mut cache = checkpoint.cache(method.clone().with_sink(128), 1);
        let unpacked = error(&checkpoint.feed(&mut cache, &[PREFILL]), &checkpoint.logits);
        assert!(unpacked < 1e-6, "{name}: {unpacked:e}");

        if name == "oscar" {
            let mut errors = [2, 4, 8].map(|bits| {
                let method = method.clone().with_bits(bits).unwrap();
                let mut cache = checkpoint.cache(method.with_sink(3).with_recent(5), 1);
                let logits = checkpoint.feed(&mut cache, &[PREFILL]);
                assert!(cache.memory().page_bytes > 0);
                error(&logits, &checkpoint.logits)
            });
            assert!(errors.iter().all(|error| *error > 0.0), "{errors:?}");
            errors.reverse();
            assert!(errors.is_sorted(), "fewer bits cost more: {errors:?}");
        }
    }
}

#[test]
fn an_artifact_of_another_model_is_refused() {
    let checkpoint = Checkpoint::open("qwen3-tiny");
    let config = &checkpoint.loaded.config;
    let method = Method::oscar(&artifact("oscar", &checkpoint)).unwrap();
    let caches = |fingerprint: &str| {
        KvCacheConfig::new(config.num_layers, config.num_kv_heads, config.head_dim)
            .with_method(method.clone())
            .with_fingerprint(fingerprint)
            .init(&checkpoint.device)
    };
    assert!(caches(&checkpoint.loaded.fingerprint).is_ok());
    assert!(matches!(
        caches("another model").unwrap_err(),
        Error::Artifact { .. }
    ));
}
