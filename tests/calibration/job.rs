//! The learner job: resumed after a kill, sharded, stopped early, and what it refuses.

use std::path::Path;

use burn::tensor::{Device, Int, Tensor};
use burn::train::Interrupter;
use burn_oscar::calibration::learner::{
    CalibrationJob, CalibrationModel, Ending, ModelError, Outcome, Window, Windows,
};
use burn_oscar::calibration::{Calibration, Statistics};
use burn_oscar::{Error, KvCache, Result};

use super::{Model, caches, text};

const LENGTH: usize = 384;
const EVERY: usize = 2;

/// The model, and something that happens at one of its calls.
struct Watched {
    model: Model,
    calls: usize,
    at: usize,
    then: Then,
}

enum Then {
    Nothing,
    Stop(Interrupter),
    Die,
    SkipAttention,
}

impl CalibrationModel for Watched {
    fn run(
        &mut self,
        tokens: Tensor<2, Int>,
        cache: &mut KvCache,
    ) -> std::result::Result<(), ModelError> {
        self.calls += 1;
        if self.calls == self.at {
            match &self.then {
                Then::Nothing => {}
                Then::Stop(interrupter) => interrupter.stop(Some("enough")),
                Then::Die => return Err("killed".into()),
                Then::SkipAttention => return Ok(()),
            }
        }
        self.model.forward(tokens, cache)?;
        Ok(())
    }
}

fn watched(device: &Device, at: usize, then: Then) -> Watched {
    Watched {
        model: Model::new(device),
        calls: 0,
        at,
        then,
    }
}

fn windows(first: u64, count: u64, length: usize, device: &Device) -> Windows {
    Windows::of((first..first + count).map(|number| {
        Window {
            text: number,
            tokens: text(number, length, device)
                .into_data()
                .iter::<i64>()
                .map(|id| id as u32)
                .collect(),
        }
    }))
}

fn job(folder: &Path, device: &Device) -> CalibrationJob {
    CalibrationJob::new(folder, caches(), device.clone()).with_checkpoint_every(EVERY)
}

fn bytes(folder: &Path) -> [Vec<u8>; 2] {
    ["statistics.safetensors", "calibration.safetensors"]
        .map(|name| std::fs::read(folder.join(name)).unwrap())
}

fn none() -> Windows {
    Windows::of([])
}

#[test]
fn a_killed_job_ends_with_the_same_bytes() {
    let device = Device::flex();
    let train = windows(0, 7, LENGTH, &device);
    let run = |folder: &Path, at: usize, then: Then| -> Result<Outcome> {
        let mut job = job(folder, &device);
        if let Then::Stop(interrupter) = &then {
            job = job.with_interrupter(interrupter.clone());
        }
        job.run(watched(&device, at, then), train.clone(), none())
    };
    let whole = tempfile::tempdir().unwrap();
    let outcome = run(whole.path(), 0, Then::Nothing).unwrap();
    assert_eq!((outcome.ending, outcome.windows), (Ending::AllWindows, 7));
    assert_eq!(outcome.statistics.sequences(), 7);
    let artifact = Calibration::load(whole.path().join("calibration.safetensors")).unwrap();
    assert_eq!(
        (artifact.method(), artifact.fingerprint()),
        ("transform_coded", "tiny")
    );
    assert_eq!(artifact.tokens(), 7 * LENGTH);

    // Any moment will do; these differ from build to build.
    let moment = 1 + std::process::id() as usize % 7;
    for at in [moment, 2, 5] {
        let folder = tempfile::tempdir().unwrap();
        let error = run(folder.path(), at, Then::Die).unwrap_err();
        assert!(error.to_string().contains("killed"), "{error}");
        let interrupted = run(folder.path(), 3, Then::Stop(Interrupter::new())).unwrap();
        if interrupted.ending == Ending::Interrupted {
            assert!(interrupted.solution.is_none());
            assert!(!folder.path().join("calibration.safetensors").exists());
        }
        run(folder.path(), 0, Then::Nothing).unwrap();
        assert!(
            bytes(folder.path()) == bytes(whole.path()),
            "killed in window {at}"
        );
    }
}

#[test]
fn two_shards_merge_to_one_run() {
    let device = Device::flex();
    let train = windows(0, 5, LENGTH, &device);
    let run = |train: Windows| {
        let folder = tempfile::tempdir().unwrap();
        let job = job(folder.path(), &device);
        job.run(watched(&device, 0, Then::Nothing), train, none())
            .unwrap();
        Statistics::load(folder.path().join("statistics.safetensors")).unwrap()
    };
    let whole = run(train.clone());
    let mut merged = run(train.shard(1, 2));
    merged.merge(&run(train.shard(0, 2))).unwrap();
    assert_eq!(merged.to_bytes().unwrap(), whole.to_bytes().unwrap());
}

#[test]
fn it_stops_when_the_bases_stand_still_and_measures_what_it_made() {
    let device = Device::flex();
    let folder = tempfile::tempdir().unwrap();
    let train = windows(0, 8, LENGTH, &device);
    let run = || {
        job(folder.path(), &device)
            .with_tolerance(1.0)
            .run(
                watched(&device, 0, Then::Nothing),
                train.clone(),
                windows(100, 1, 768, &device),
            )
            .unwrap()
    };
    let outcome = run();
    assert_eq!(
        (outcome.ending, outcome.windows),
        (Ending::Converged, 2 * EVERY)
    );
    assert_eq!(outcome.validation.len(), super::LAYERS);
    for layer in &outcome.validation {
        let (error, kl) = (layer.output_error(), layer.attention_kl());
        assert!(error > 0.0 && error < 0.05, "{error}");
        assert!(kl > 0.0 && kl < 0.05, "{kl}");
        let heads: Vec<f64> = layer.attention_kl_by_head().collect();
        assert_eq!(heads.len(), super::HEADS);
        assert!((heads.iter().sum::<f64>() / heads.len() as f64 - kl).abs() < 1e-12);
    }
    let before = bytes(folder.path());
    let again = run();
    assert_eq!(
        (again.ending, again.windows),
        (Ending::Converged, 2 * EVERY)
    );
    assert!(bytes(folder.path()) == before);
    assert_eq!(again.validation, outcome.validation);
}

#[test]
fn another_job_and_a_broken_model_are_refused() {
    let device = Device::flex();
    let folder = tempfile::tempdir().unwrap();
    let train = windows(0, 2, LENGTH, &device);
    let run = |job: CalibrationJob, train: &Windows, at, then| {
        job.run(watched(&device, at, then), train.clone(), none())
    };
    run(job(folder.path(), &device), &train, 0, Then::Nothing).unwrap();

    let other = windows(1, 2, LENGTH, &device);
    let every = job(folder.path(), &device).with_checkpoint_every(1);
    let tolerance = job(folder.path(), &device).with_tolerance(0.5);
    for (job, train) in [
        (job(folder.path(), &device), &other),
        (every, &train),
        (tolerance, &train),
    ] {
        let error = run(job, train, 0, Then::Nothing).unwrap_err();
        assert!(error.to_string().contains("another job"), "{error}");
    }
    let path = folder.path().join("statistics.safetensors");
    let mut damaged = std::fs::read(&path).unwrap();
    let end = damaged.len() - 9;
    damaged[end] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    let error = run(job(folder.path(), &device), &train, 0, Then::Nothing).unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");

    let folder = tempfile::tempdir().unwrap();
    let error = run(job(folder.path(), &device), &train, 1, Then::SkipAttention).unwrap_err();
    assert!(error.to_string().contains("attended to 0"), "{error}");
    let error = run(job(folder.path(), &device), &none(), 0, Then::Nothing).unwrap_err();
    assert!(matches!(error, Error::Zero { what: "windows" }));
}

#[test]
fn windows_that_are_too_short_are_refused_before_the_work() {
    let device = Device::flex();
    let folder = tempfile::tempdir().unwrap();
    let run = |length, valid| {
        let train = windows(0, 2, length, &device);
        let valid = windows(100, 1, valid, &device);
        // A call of the model would be another error.
        let model = watched(&device, 1, Then::Die);
        let job = job(folder.path(), &device);
        job.run(model, train, valid).unwrap_err().to_string()
    };
    let error = run(319, 576);
    assert!(error.contains("320 or more"), "{error}");
    let error = run(320, 575);
    assert!(error.contains("576 or more"), "{error}");
    let error = run(320, 576);
    assert!(error.contains("killed"), "{error}");
}
