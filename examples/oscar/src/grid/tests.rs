use std::path::Path;

use burn_oscar::{
    method::TransformKind,
    quantizer::{ChannelBits, Quantizer},
};

use super::*;
use crate::testing::{artifact, preset};

fn methods(json: &str) -> Result<Vec<Variant>> {
    let task = r#"{"kind": "recall", "text": "t.txt"}"#;
    let grid = format!(r#"{{"tasks": [{task}], "methods": {json}}}"#);
    let grid: Grid = serde_json::from_str(&grid).expect("a grid");
    grid.variants()
}

fn titles(json: &str) -> Vec<String> {
    let variants = methods(json).expect("methods");
    variants
        .iter()
        .map(|variant| variant.note.title())
        .collect()
}

#[test]
fn every_combination_runs_once() {
    assert_eq!(
        titles(
            r#"[{"name": ["kivi", "oscar_scaled"], "windows": [[64, 256], [0, 128]], "bits": [2, 4]},
                {"name": "kivi", "windows": [0, 128], "bits": 4}]"#
        ),
        [
            "kivi (2 bits)",
            "kivi (4 bits)",
            "kivi (windows 0/128, 2 bits)",
            "kivi (windows 0/128, 4 bits)",
            "oscar_scaled (2 bits)",
            "oscar_scaled (4 bits)",
            "oscar_scaled (windows 0/128, 2 bits)",
            "oscar_scaled (windows 0/128, 4 bits)",
        ]
    );
}

#[test]
fn sides_change_one_by_one() {
    let variants = methods(
        r#"[{"name": "oscar_scaled", "group": 64},
            {"name": "oscar_scaled", "key": {"token_norm": false}, "label": "rotation only"},
            {"name": "hadamard_centred", "value": {"exact": true},
             "key": {"segments": [[8, 4], [8, 0]]}},
            {"name": "hadamard", "key": {"transform": "identity", "group": 32, "clip": 0.9}}]"#,
    )
    .expect("methods");
    let quantizers = |variant: &Variant| -> [Option<Quantizer>; 2] {
        let method = &variant.method;
        [method.key_side(), method.value_side()].map(|side| side.quantizer.clone())
    };
    let groups = quantizers(&variants[0]).map(|q| q.and_then(|q| q.group_size));
    assert_eq!(groups, [Some(64), Some(64)]);
    let [key, _] = quantizers(&variants[1]);
    assert!(key.is_some_and(|key| !key.token_norm));
    assert_eq!(variants[1].note.title(), "rotation only");
    let [key, value] = quantizers(&variants[2]);
    assert!(value.is_none());
    assert!(key.is_some_and(|key| matches!(key.bits, ChannelBits::Segments(_))));
    let [key, _] = quantizers(&variants[3]);
    let key = key.expect("packed");
    assert_eq!((key.group_size, key.clip), (Some(32), Some(0.9)));
    let side = variants[3].method.key_side();
    assert_eq!(side.transform, TransformKind::Identity);
    assert_eq!(
        variants[3].note.title(),
        "hadamard (keys identity, keys group 32, keys clip 0.9)"
    );
}

#[test]
fn artifacts_are_told_apart_by_their_contents() {
    let folder = tempfile::tempdir().expect("a folder");
    let with = |path: &Path| Setting {
        calibration: Some(path.to_path_buf()),
        ..preset("oscar")
    };
    let first = with(&artifact(folder.path(), 512))
        .variant()
        .expect("loads");
    let second = with(&artifact(folder.path(), 1024))
        .variant()
        .expect("loads");
    assert_ne!(first.key(), second.key());
    let copy = folder.path().join("copy.safetensors");
    std::fs::copy(folder.path().join("oscar-512.safetensors"), &copy).expect("copies");
    let copied = with(&copy).variant().expect("loads");
    assert_eq!(first.key(), copied.key());
    let note = copied.note.calibration.expect("an artifact");
    assert_eq!((note.tokens, note.served_length), (512, 512));
}

#[test]
fn what_cannot_run_says_why() {
    for (json, expected) in [
        (r#"[{"name": "kivy"}]"#, "kivy"),
        (r#"[{"name": "oscar"}]"#, "--calibration oscar=FILE"),
        (
            r#"[{"name": "oscar", "calibration": "no.safetensors"}]"#,
            "no.safetensors",
        ),
        (r#"[{"name": "kivi", "bits": 3}]"#, "2, 4 or 8"),
        (
            r#"[{"name": "exact", "key": {"bits": 4}}]"#,
            "leave them out",
        ),
        ("[]", "at least one of each"),
    ] {
        let error = methods(json).expect_err(json).to_string();
        assert!(error.contains(expected), "{json}: {error}");
    }
}

#[test]
fn a_grid_file_starts_from_its_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("grid.json");
    let read = |text: &str| {
        std::fs::write(&path, text).expect("writes");
        Grid::read(&path)
    };
    let grid = read(
        r#"{"tasks": [{"kind": "questions", "file": "q.jsonl"}],
            "methods": [{"name": "oscar", "calibration": ["a", "b"]}]}"#,
    );
    let mut grid = grid.expect("a grid");
    assert_eq!(*grid.tasks[0].file_mut(), folder.path().join("q.jsonl"));
    let last = grid.methods[0].calibration.iter_mut().last();
    assert_eq!(last, Some(&mut folder.path().join("b")));

    for (text, expected) in [
        ("{\n\"tasks\": 1}", "line 2"),
        (r#"{"tasks": [], "methods": [], "other": 1}"#, "other"),
        (
            r#"{"tasks": [{"kind": "poetry"}], "methods": []}"#,
            "poetry",
        ),
        (
            r#"{"tasks": [{"kind": "recall", "text": "t", "widow": 1}], "methods": []}"#,
            "widow",
        ),
    ] {
        let error = read(text).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
