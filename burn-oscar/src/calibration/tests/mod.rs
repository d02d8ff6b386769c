//! Round trips and damage, on a hand-made artifact; what is refused is in `refused`.

mod refused;

use std::path::PathBuf;

use super::*;
use crate::method::Method;
use crate::quantizer::PageSpec;
use proptest::prelude::*;

const D: usize = 16;
const HEADS: usize = 2;
const LAYERS: usize = 2;

fn identity(scale: f32) -> Vec<f32> {
    (0..D * D)
        .map(|i| if i % (D + 1) == 0 { scale } else { 0.0 })
        .collect()
}

/// A plane rotation and a shear: `A`, its inverse, and the transpose of that.
fn sheared(shear: f32) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let (mut a, mut inverse, mut transposed) = (identity(2.0), identity(0.5), identity(0.5));
    a[1] = shear;
    inverse[1] = -shear / 4.0;
    transposed[D] = -shear / 4.0;
    (a, inverse, transposed)
}

fn rotation(angle: f32) -> Vec<f32> {
    let mut a = identity(1.0);
    (a[0], a[1]) = (angle.cos(), angle.sin());
    (a[D], a[D + 1]) = (-angle.sin(), angle.cos());
    a
}

/// Keys with a separate inverse for each head, a mean, a clip and segments; values with a mean.
fn transform_coded_layer(index: usize) -> LayerCalibration {
    let (first, _, first_query) = sheared(0.5 + index as f32);
    let (second, _, second_query) = sheared(-1.0);
    let mean = |sign: f32| (0..HEADS * D).map(|i| sign * i as f32).collect();
    LayerCalibration {
        key: SideCalibration {
            transform: Some(Matrices::per_head(HEADS, D, [first, second].concat())),
            inverse: Some(Matrices::per_head(
                HEADS,
                D,
                [first_query, second_query].concat(),
            )),
            mean: Some(mean(1.0)),
            clip: Some(0.9),
            segments: Some(vec![Segment::new(2, 4), Segment::new(14, 1)]),
        },
        value: SideCalibration {
            mean: Some(mean(-0.5)),
            ..Default::default()
        },
    }
}

fn oscar_layer() -> LayerCalibration {
    let side = |angle| SideCalibration {
        transform: Some(Matrices::shared(D, rotation(angle))),
        ..Default::default()
    };
    LayerCalibration {
        key: side(0.3),
        value: side(1.2),
    }
}

fn builder(method: &str, layer: impl Fn(usize) -> LayerCalibration) -> CalibrationBuilder {
    let builder = CalibrationBuilder::new(method, LAYERS, HEADS, D)
        .fingerprint("model A")
        .served_length(8192)
        .tokens(100_000);
    (0..LAYERS).fold(builder, |builder, index| builder.layer(index, layer(index)))
}

fn transform_coded() -> Calibration {
    builder("transform_coded", transform_coded_layer)
        .build()
        .unwrap()
}

fn assert_same(a: &Calibration, b: &Calibration) {
    assert_eq!(format!("{:?}", a.0.meta()), format!("{:?}", b.0.meta()));
    assert_eq!(a.layers(), b.layers());
}

impl Contents {
    fn meta(&self) -> (&str, &str, [usize; 4]) {
        let sizes = [
            self.n_kv_heads,
            self.head_dim,
            self.served_length,
            self.tokens,
        ];
        (&self.method, &self.fingerprint, sizes)
    }
}

fn reason(result: Result<Calibration>) -> String {
    match result {
        Err(error @ Error::Artifact { .. }) => error.to_string(),
        other => panic!("expected an artifact error, found {other:?}"),
    }
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("burn-oscar-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn saved_and_loaded_is_the_same() {
    let folder = Folder::new("round-trip");
    let path = folder.0.join("model.safetensors");
    std::fs::write(&path, "an older file").unwrap();
    for made in [
        transform_coded(),
        builder("oscar", |_| oscar_layer()).build().unwrap(),
    ] {
        made.save(&path).unwrap();
        let loaded = Calibration::load(&path).unwrap();
        assert_same(&made, &loaded);
        assert_eq!(loaded.path(), path);
        assert_eq!(made.to_bytes().unwrap(), loaded.to_bytes().unwrap());
        assert!(Method::calibrated(loaded.method(), &loaded).is_ok());
    }
    let names: Vec<_> = std::fs::read_dir(&folder.0).unwrap().collect();
    assert_eq!(names.len(), 1, "no temporary file stays: {names:?}");
    assert!(safetensors::SafeTensors::deserialize(&std::fs::read(&path).unwrap()).is_ok());
}

#[test]
fn a_failed_save_leaves_nothing_and_a_missing_file_is_named() {
    let folder = Folder::new("failed-save");
    let made = transform_coded();
    let target = folder.0.join("occupied");
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("file"), "").unwrap();
    assert!(matches!(made.save(&target), Err(Error::Io { .. })));
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
    for path in ["", "/", "..", "no/such/folder/file"] {
        assert!(matches!(made.save(path), Err(Error::Io { .. })), "{path}");
    }
    let error = Calibration::load(folder.0.join("missing")).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    assert!(matches!(
        Calibration::load(&folder.0),
        Err(Error::Io { .. })
    ));
}

#[test]
fn a_layer_overrides_the_method() {
    let calibration = transform_coded();
    let method = Method::transform_coded(&calibration).unwrap();
    let key = method.key_side().quantizer.as_ref().unwrap();
    let adjusted = calibration.adjust_quantizer(1, Role::Key, key);
    assert_eq!(adjusted.clip, Some(0.9));
    assert_eq!(
        PageSpec::new(&adjusted, Role::Key, D, 256).segments.len(),
        2
    );
    let value = method.value_side().quantizer.as_ref().unwrap();
    for (layer, role, quantizer) in [(0, Role::Value, value), (LAYERS, Role::Key, key)] {
        let adjusted = calibration.adjust_quantizer(layer, role, quantizer);
        assert_eq!(&adjusted, quantizer);
    }
}

#[test]
fn another_model_is_refused() {
    let made = transform_coded();
    made.check(None, LAYERS, HEADS, D).unwrap();
    made.check(Some("model A"), LAYERS, HEADS, D).unwrap();
    for (error, words) in [
        (
            made.check(Some("model B"), LAYERS, HEADS, D),
            "`model A`, this is `model B`",
        ),
        (
            made.check(None, 3, HEADS, D),
            "made for 2 layers, the cache has 3",
        ),
        (
            made.check(None, LAYERS, 1, D),
            "made for 2 KV heads, the cache has 1",
        ),
        (made.check(None, LAYERS, HEADS, 64), "made for 16 channels"),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains(words) && error.contains("calibrate this model"),
            "{error}"
        );
    }
}

/// Headers that a file never has by accident.
#[test]
fn made_up_headers_are_refused() {
    let file = |header: &str, data: &[u8]| {
        let length = (header.len() as u64).to_le_bytes();
        [&length, header.as_bytes(), data].concat()
    };
    // Each size fits and their sum is 2^64 - 8, which overflows when the header is added.
    let part = (1u64 << 61) - 1;
    let entries: Vec<_> = (0..8u64)
        .map(|i| {
            let (start, end) = (i * part, (i + 1) * part);
            format!(
                "\"t{i}\":{{\"dtype\":\"U8\",\"shape\":[{part}],\"data_offsets\":[{start},{end}]}}"
            )
        })
        .collect();
    let headers = [
        String::new(),
        "{}".into(),
        "[".repeat(100_000),
        format!("{{{}}}", entries.join(",")),
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}".into(),
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}".into(),
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}"
            .into(),
    ];
    for header in headers {
        reason(Calibration::from_bytes(&file(&header, &[]), "made up"));
    }
    for length in [u64::MAX, u64::MAX - 7, 1 << 40] {
        let mut bytes = transform_coded().to_bytes().unwrap();
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        reason(Calibration::from_bytes(&bytes, "made up"));
    }
}

#[test]
fn every_cut_and_every_changed_byte_is_found() {
    let made = transform_coded();
    let bytes = made.to_bytes().unwrap();
    for length in 0..bytes.len() {
        reason(Calibration::from_bytes(&bytes[..length], "cut"));
    }
    reason(Calibration::from_bytes(
        &[&bytes[..], &[0]].concat(),
        "longer",
    ));
    let mut flipped = bytes.clone();
    for at in 0..bytes.len() {
        flipped[at] ^= 1 << (at % 8);
        reason(Calibration::from_bytes(&flipped, "flipped"));
        flipped[at] = bytes[at];
    }
}

proptest! {
    /// Only white space in the header may change without notice: it means nothing.
    #[test]
    fn damage_is_found_or_means_nothing(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let made = transform_coded();
        let bytes = made.to_bytes().unwrap();
        let mut damaged = bytes.clone();
        for (at, byte) in changes {
            damaged[at.index(bytes.len())] = byte;
        }
        if let Some(cut) = cut {
            damaged.truncate(cut.index(bytes.len()));
        }
        match Calibration::from_bytes(&damaged, "damaged") {
            Ok(loaded) => assert_same(&loaded, &made),
            Err(error) => prop_assert!(matches!(error, Error::Artifact { .. }), "{}", error),
        }
    }

    #[test]
    fn any_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Calibration::from_bytes(&bytes, "noise").is_err());
    }
}

#[test]
fn notes_are_kept_and_do_not_shadow_the_format() {
    let calibration = transform_coded().with_note("texts_sha256", "abc").unwrap();
    let read = Calibration::from_bytes(&calibration.to_bytes().unwrap(), "x").unwrap();
    assert_eq!(read.notes()["texts_sha256"], "abc");
    assert_same(&read, &calibration);
    for key in ["tokens", "sha256", "method"] {
        let reason = reason(calibration.with_note(key, "1"));
        assert!(
            reason.contains(key) && reason.contains("another name"),
            "{reason}"
        );
    }
}
