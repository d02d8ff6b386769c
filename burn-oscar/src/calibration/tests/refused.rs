//! What does not fit, in calibrations that are built and in files with a right digest.

use safetensors::tensor::Dtype;

use super::super::container::{self, RawTensor};
use super::*;

/// The file after `edit`, with the digest made right again.
fn rewritten(
    edit: impl FnOnce(&mut container::Strings, &mut container::Tensors<'_>),
) -> Result<Calibration> {
    let bytes = transform_coded().to_bytes().unwrap();
    let (mut metadata, mut tensors) = container::split(&bytes).unwrap();
    edit(&mut metadata, &mut tensors);
    metadata.insert("sha256".into(), container::digest(&metadata, &tensors));
    Calibration::from_bytes(&container::join(metadata, tensors).unwrap(), "edited")
}

fn raw(dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> RawTensor<'static> {
    RawTensor {
        dtype,
        shape: shape.to_vec(),
        bytes: bytes.into(),
    }
}

#[test]
fn what_does_not_fit_is_refused_when_built() {
    let with = |edit: fn(&mut LayerCalibration)| {
        let layer = |index| {
            let mut layer = transform_coded_layer(index);
            if index == 1 {
                edit(&mut layer);
            }
            layer
        };
        reason(builder("transform_coded", layer).build())
    };
    let key = |edit: fn(&mut SideCalibration), words: &str| {
        let layer = |index| {
            let mut layer = transform_coded_layer(index);
            edit(&mut layer.key);
            layer
        };
        let error = reason(builder("transform_coded", layer).build());
        assert!(error.contains(words), "`{error}` lacks `{words}`");
        assert!(error.contains("calibrate again"), "{error}");
    };
    key(
        |s| s.transform = None,
        "`layers.0.key.transform` is missing",
    );
    key(|s| s.inverse = None, "not orthogonal");
    key(|s| s.inverse = s.transform.clone(), "does not undo");
    key(
        |s| s.transform.as_mut().unwrap().data[3] = f32::NAN,
        "holds NaN at index 3",
    );
    key(
        |s| s.transform.as_mut().unwrap().data[0] = 3e38,
        "does not undo",
    );
    key(
        |s| s.inverse.as_mut().unwrap().data.truncate(5),
        "has 5 numbers",
    );
    key(
        |s| s.inverse.as_mut().unwrap().heads = usize::MAX,
        "for 18446744073709551615 heads",
    );
    key(
        |s| s.inverse = Some(Matrices::shared(D, identity(1.0))),
        "they must agree",
    );
    key(
        |s| s.mean.as_mut().unwrap()[1] = f32::INFINITY,
        "holds inf at index 1",
    );
    key(
        |s| s.mean.as_mut().unwrap().push(0.0),
        "has 33 numbers, not 2 x 16",
    );
    for (clip, words) in [
        (0.0, "is 0"),
        (1.0, "is 1"),
        (f32::NAN, "is NaN"),
        (-0.5, "is -0.5"),
    ] {
        let layer = |index| {
            let mut layer = transform_coded_layer(index);
            layer.key.clip = Some(clip);
            layer
        };
        let error = reason(builder("transform_coded", layer).build());
        assert!(error.contains(words), "{error}");
    }
    key(
        |s| s.segments = Some(vec![Segment::new(15, 2)]),
        "lengths [15]",
    );
    key(
        |s| s.segments = Some(vec![Segment::new(usize::MAX, 2); 2]),
        "add up to 16",
    );
    key(|s| s.segments = Some(vec![Segment::new(16, 0)]), "bits [0]");
    key(|s| s.segments = Some(vec![Segment::new(16, 5)]), "bits [5]");

    let error = with(|layer| layer.value.transform = Some(Matrices::shared(D, identity(1.0))));
    assert!(
        error.contains("layer 1: `layers.1.value.transform` is there"),
        "{error}"
    );
    let error = with(|layer| layer.value.inverse = Some(Matrices::shared(D, identity(1.0))));
    assert!(
        error.contains("without `layers.1.value.transform`"),
        "{error}"
    );

    // Segments need mid-rise codes, which `oscar` does not have.
    let segmented = |_| {
        let mut layer = oscar_layer();
        layer.key.segments = Some(vec![Segment::new(16, 2)]);
        layer
    };
    let error = reason(builder("oscar", segmented).build());
    assert!(error.contains("mid-rise"), "{error}");
}

#[test]
fn wrong_sizes_and_methods_are_refused_when_built() {
    let built = |builder: CalibrationBuilder, words: &str| {
        let error = reason(builder.build());
        assert!(error.contains(words), "`{error}` lacks `{words}`");
    };
    let good = || builder("oscar", |_| oscar_layer());
    built(good().fingerprint(""), "fingerprint is empty");
    built(good().served_length(0), "served_length is 0");
    built(good().tokens(0), "tokens is 0");
    built(good().layer(1, oscar_layer()), "layer 1 was given twice");
    built(
        good().layer(2, oscar_layer()),
        "layer 2 was given and there are 2",
    );
    built(
        builder("kivi", |_| oscar_layer()),
        "`kivi` is not a calibrated one (those are oscar, transform_coded)",
    );
    built(builder("unheard", |_| oscar_layer()), "`unheard` is not");
    let sized = |layers, heads, d| {
        let new = CalibrationBuilder::new("oscar", layers, heads, d);
        new.fingerprint("x").served_length(1).tokens(1)
    };
    built(sized(usize::MAX, 1, 16), "layer 0 of");
    built(sized(0, 1, 16), "layers is 0");
    built(sized(1, 0, 16).layer(0, oscar_layer()), "kv_heads is 0");
    built(sized(1, 1, 72).layer(0, oscar_layer()), "head_dim is 72");
    built(sized(1, 1, 0).layer(0, oscar_layer()), "head_dim is 0");
    let huge = 1 << 60;
    built(
        sized(1, huge, huge).layer(0, oscar_layer()),
        "expected 1 or",
    );
}

#[test]
fn a_file_of_another_shape_is_refused() {
    let refused = |words: &str, result: Result<Calibration>| {
        let error = reason(result);
        assert!(error.contains(words), "`{error}` lacks `{words}`");
    };
    assert!(rewritten(|_, _| ()).is_ok());
    assert!(rewritten(|m, _| drop(m.insert("note".into(), "kept out".into()))).is_ok());
    for (key, value, words) in [
        ("format", "pt", "format is `pt`"),
        ("version", "2", "version is 2 and this library reads 1"),
        ("method", "kivi", "`kivi` is not a calibrated"),
        (
            "method",
            "oscar",
            "with `oscar`: segments of channels need mid-rise codes",
        ),
        ("layers", "18446744073709551615", "and has"),
        ("layers", "18446744073709551616", "not a number"),
        (
            "layers",
            "1",
            "`layers.1.key.clip` is not a tensor of version 1",
        ),
        ("layers", "3", "`layers.2.key.transform` is missing"),
        ("layers", "0", "`layers.0.key.clip` is not"),
        ("kv_heads", "-1", "not a number"),
        (
            "kv_heads",
            "3",
            "[2, 16, 16], expected F32 [1 or 3, 16, 16]",
        ),
        ("head_dim", "32", "expected F32 [1 or 2, 32, 32]"),
        ("head_dim", "9223372036854775808", "expected F32"),
        ("served_length", "many", "`served_length` is `many`"),
        ("tokens", "0", "tokens is 0"),
    ] {
        refused(
            words,
            rewritten(|m, _| drop(m.insert(key.into(), value.into()))),
        );
    }
    for key in [
        "format",
        "version",
        "method",
        "model_fingerprint",
        "layers",
        "kv_heads",
        "head_dim",
        "served_length",
        "tokens",
    ] {
        assert!(
            reason(rewritten(|m, _| drop(m.remove(key))))
                .contains(key.trim_start_matches("model_"))
        );
    }
    for name in ["key.transform", "query.transform"] {
        let name = format!("layers.1.{name}");
        refused(&name, rewritten(|_, t| drop(t.remove(&name))));
    }
    let f32s = |n: usize| vec![0u8; 4 * n];
    for (name, tensor, words) in [
        (
            "layers.0.key.mean",
            raw(Dtype::F64, &[2, 16], f32s(64)),
            "is F64 [2, 16]",
        ),
        (
            "layers.0.key.mean",
            raw(Dtype::F32, &[32], f32s(32)),
            "is F32 [32]",
        ),
        (
            "layers.0.key.clip",
            raw(Dtype::F32, &[0], vec![]),
            "expected F32 [1]",
        ),
        (
            "layers.0.key.segments",
            raw(Dtype::I32, &[0, 2], vec![]),
            "lengths []",
        ),
        (
            "layers.0.key.segments",
            raw(Dtype::I32, &[1, 2], vec![255; 8]),
            "[[-1, -1]]",
        ),
        (
            "layers.0.key.extra",
            raw(Dtype::F32, &[1], f32s(1)),
            "`layers.0.key.extra` is not",
        ),
        (
            "layers.00.key.mean",
            raw(Dtype::F32, &[2, 16], f32s(32)),
            "`layers.00.key.mean` is not",
        ),
    ] {
        refused(words, rewritten(|_, t| drop(t.insert(name.into(), tensor))));
    }
}
