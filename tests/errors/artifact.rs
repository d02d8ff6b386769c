//! Calibration artifacts that are damaged, or belong to something else.

use std::fs;

use burn::tensor::Device;
use burn_oscar::calibration::{
    Calibration, CalibrationBuilder, LayerCalibration, Matrices, SideCalibration,
};
use burn_oscar::{KvCacheConfig, Method};
use capabilities::fixtures::folder;
use capabilities::golden::{FINGERPRINT, HEAD_DIM, KV_HEADS, golden_calibration};

use super::assert_message;

#[test]
fn another_model() {
    let method = Method::oscar(&golden_calibration("oscar", 2)).unwrap();
    let good = || KvCacheConfig::new(2, KV_HEADS, HEAD_DIM).with_fingerprint(FINGERPRINT);
    for (what, config, expected) in [
        (
            "fingerprint",
            good().with_fingerprint("another model"),
            "made for model `SmolLM2-135M-Instruct golden`, this is `another model`: calibrate \
             this model",
        ),
        (
            "layers",
            KvCacheConfig::new(3, KV_HEADS, HEAD_DIM),
            "made for 2 layers, the cache has 3: calibrate this model",
        ),
        (
            "KV heads",
            KvCacheConfig::new(2, 1, HEAD_DIM),
            "made for 3 KV heads, the cache has 1: calibrate this model",
        ),
        (
            "head_dim",
            KvCacheConfig::new(2, KV_HEADS, 128),
            "made for 64 channels per head (head_dim), the cache has 128: calibrate this model",
        ),
    ] {
        let cache = config.with_method(method.clone()).init(&Device::flex());
        assert_message(
            what,
            cache,
            &format!("calibration artifact (not saved): {expected}"),
        );
    }
    good().with_method(method).init(&Device::flex()).unwrap();
}

#[test]
fn another_method() {
    let oscar = golden_calibration("oscar", 2);
    assert_message(
        "an artifact of oscar",
        Method::transform_coded(&oscar),
        "method `transform_coded`: the artifact was made for `oscar`: calibrate again for this \
         method",
    );
    let coded = golden_calibration("transform_coded", 2);
    assert_message(
        "an artifact of transform_coded",
        Method::oscar(&coded),
        "method `oscar`: the artifact was made for `transform_coded`: calibrate again for this \
         method",
    );
}

/// A small valid artifact: two layers of one KV head and 16 channels.
fn small() -> CalibrationBuilder {
    let identity = || Matrices::shared(16, (0..256).map(|i| f32::from(i % 17 == 0)).collect());
    let side = |clip| SideCalibration {
        transform: Some(identity()),
        clip: Some(clip),
        ..Default::default()
    };
    let layer = |index| LayerCalibration {
        key: side(0.9 + index as f32 / 100.0),
        value: side(0.8),
    };
    CalibrationBuilder::new("oscar", 2, 1, 16)
        .fingerprint("small")
        .served_length(128)
        .tokens(64)
        .layer(0, layer(0))
        .layer(1, layer(1))
}

#[test]
fn truncated_files() {
    let bytes = small().build().unwrap().to_bytes().unwrap();
    Calibration::from_bytes(&bytes, "small").unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for len in (0..bytes.len())
        .step_by(7)
        .chain([7, 8, header - 1, header, bytes.len() - 1])
    {
        let expected = if len < header {
            format!(
                "calibration artifact small: its header does not fit in {len} bytes: the file is \
                 damaged: copy it again"
            )
        } else {
            format!(
                "calibration artifact small: its header describes {} bytes of data and there are \
                 {}: the file is damaged: copy it again",
                bytes.len() - header,
                len - header
            )
        };
        let found = Calibration::from_bytes(&bytes[..len], "small");
        assert_message(&format!("{len} bytes"), found, &expected);
    }
}

#[test]
fn flipped_bits() {
    let bytes = small().build().unwrap().to_bytes().unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for at in (0..header).chain((header..bytes.len()).step_by(13)) {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            // The header tells in many ways that it is damaged, the data in one.
            let expected = match at < header {
                true => "calibration artifact small: *",
                false => {
                    "calibration artifact small: its contents have SHA-256 * and should have *: \
                     the file is damaged: copy it again"
                }
            };
            let found = Calibration::from_bytes(&damaged, "small");
            assert_message(&format!("bit {bit} of byte {at}"), found, expected);
        }
    }
}

#[test]
fn other_files() {
    let folder_of_damage = tempfile::tempdir().unwrap();
    let path = folder_of_damage.path().join("artifact.safetensors");
    assert_message(
        "no file",
        Calibration::load(&path),
        "*artifact.safetensors: No such file*",
    );

    let bytes = small().build().unwrap().to_bytes().unwrap();
    let replaced = |from: &str, to: &str| {
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let text = String::from_utf8(bytes[8..header].to_vec()).unwrap();
        assert!(text.contains(from) && from.len() == to.len());
        [
            &bytes[..8],
            text.replace(from, to).as_bytes(),
            &bytes[header..],
        ]
        .concat()
    };
    for (what, bytes, expected) in [
        (
            "other tensors",
            fs::read(folder().join("golden.safetensors")).unwrap(),
            "calibration artifact *artifact.safetensors: its format is `(none)`, not \
             `burn-oscar-calibration`: this is another kind of file, or damaged; give the \
             artifact that calibration wrote",
        ),
        (
            "a later version",
            replaced(r#""version":"1""#, r#""version":"2""#),
            "calibration artifact *artifact.safetensors: its version is 2 and this library reads \
             1: calibrate again, or use the library that wrote it",
        ),
        (
            "a changed claim",
            replaced(r#""served_length":"128""#, r#""served_length":"999""#),
            "calibration artifact *artifact.safetensors: its contents have SHA-256 * and should \
             have *: the file is damaged: copy it again",
        ),
        (
            "a text",
            b"{\"a text\": \"without anything in common with an artifact\"}".to_vec(),
            "calibration artifact *artifact.safetensors: its header does not fit in 57 bytes: the \
             file is damaged: copy it again",
        ),
    ] {
        fs::write(&path, bytes).unwrap();
        assert_message(what, Calibration::load(&path), expected);
    }
}

#[test]
fn contents_that_do_not_fit() {
    let layer = || LayerCalibration {
        key: SideCalibration {
            transform: Some(Matrices::shared(16, vec![1.0; 256])),
            ..Default::default()
        },
        ..Default::default()
    };
    for (what, builder, expected) in [
        (
            "a layer too few",
            CalibrationBuilder::new("oscar", 2, 1, 16).layer(0, layer()),
            "calibration artifact (not saved): layer 1 of 2 was not given: calibrate all layers",
        ),
        (
            "a layer twice",
            small().layer(1, layer()),
            "calibration artifact (not saved): layer 1 was given twice: give each once",
        ),
        (
            "a layer past the end",
            small().layer(2, layer()),
            "calibration artifact (not saved): layer 2 was given and there are 2: count from 0",
        ),
        (
            "no rotation",
            CalibrationBuilder::new("oscar", 1, 1, 16)
                .fingerprint("small")
                .served_length(1)
                .tokens(1)
                .layer(0, layer()),
            "calibration artifact (not saved): layer 0: `layers.0.key.transform` of head 0 is not \
             orthogonal (max |AᵀA - I| is 1.60e1, at most 1e-3) and there is no \
             `layers.0.query.transform`: calibrate again",
        ),
        (
            "a method without calibration",
            CalibrationBuilder::new("kivi", 1, 1, 16)
                .fingerprint("small")
                .served_length(1)
                .tokens(1)
                .layer(0, layer()),
            "calibration artifact (not saved): method `kivi` is not a calibrated one (those are \
             oscar, transform_coded): calibrate again for one of them",
        ),
        (
            "no fingerprint",
            small().fingerprint(""),
            "calibration artifact (not saved): the model's fingerprint is empty: calibrate again",
        ),
        (
            "no tokens",
            small().tokens(0),
            "calibration artifact (not saved): tokens is 0, it must be at least 1: calibrate again",
        ),
    ] {
        assert_message(what, builder.build(), expected);
    }
}
