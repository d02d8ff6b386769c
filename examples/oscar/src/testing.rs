//! What the tests share: the tiny checkpoint, texts for it, rows without a model.

use std::{
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use burn_oscar::calibration::{
    Calibration, CalibrationBuilder, LayerCalibration, Matrices, SideCalibration,
};
use models::load::{LoadedModel, load};
use serde_json::json;

use crate::{
    cli::Cli,
    error::Result,
    grid::Setting,
    machine::Machine,
    rows::{Bytes, FORMAT, ModelNote, Row, SpanScore},
    tasks::{Kind, TaskNote},
};

/// A Qwen3 of random weights: 2 layers, 2 KV heads of 64 channels, 128 words.
pub fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3-tiny")
}

pub fn load_tiny() -> LoadedModel {
    load(&tiny(), &Device::flex()).expect("the fixture loads")
}

/// A file with `words` words that the tiny tokenizer knows.
pub fn text(folder: &Path, words: usize) -> PathBuf {
    let known = [
        "the", "people", "of", "this", "world", "have", "more", "time", "than", "they", "would",
        "like",
    ];
    let text: Vec<_> = (0..words).map(|i| known[(i * i + i / 7) % 12]).collect();
    let path = folder.join("text.txt");
    fs::write(&path, text.join(" ")).expect("writes");
    path
}

/// An artifact of `oscar` for the tiny checkpoint: the identity, which is orthogonal.
pub fn artifact(folder: &Path, tokens: usize) -> PathBuf {
    let loaded = load_tiny();
    let config = &loaded.config;
    let (layers, heads, size) = (config.num_layers, config.num_kv_heads, config.head_dim);
    let identity = (0..size * size).map(|i| f32::from(u8::from(i % (size + 1) == 0)));
    let side = || SideCalibration {
        transform: Some(Matrices::shared(size, identity.clone().collect())),
        clip: Some(0.9),
        ..SideCalibration::default()
    };
    let builder = CalibrationBuilder::new("oscar", layers, heads, size)
        .fingerprint(loaded.fingerprint.clone())
        .served_length(512)
        .tokens(tokens);
    let calibration: Calibration = (0..layers)
        .fold(builder, |builder, layer| {
            let (key, value) = (side(), side());
            builder.layer(layer, LayerCalibration { key, value })
        })
        .build()
        .expect("a valid artifact");
    let path = folder.join(format!("oscar-{tokens}.safetensors"));
    calibration.save(&path).expect("writes");
    path
}

/// Runs a command line whose words hold no blanks.
pub fn oscar(line: &str) -> Result<()> {
    use clap::Parser;
    Cli::try_parse_from(line.split_whitespace())
        .unwrap_or_else(|error| panic!("{line}: {error}"))
        .run()
}

/// A row of a window of text, as if measured.
pub fn row(setting: Setting, start: usize, kl: f64, bytes: f64) -> Row {
    let variant = setting.variant().expect("a method");
    let span = |span: &str, positions: usize, kl: f64| SpanScore {
        span: span.to_string(),
        positions,
        nll: 3.0 + kl,
        exact_nll: 3.0,
        delta_nll: kl,
        delta_nll_error: Some(0.01),
        kl,
        kl_error: Some(0.001),
        top1: 0.9,
        hits: positions / 2,
        exact_hits: positions / 2,
    };
    let exact = variant.note.name == "exact";
    Row {
        format: FORMAT,
        model: ModelNote {
            name: "tiny & small".to_string(),
            fingerprint: "f".repeat(64),
            layers: 2,
            kv_heads: 2,
            head_dim: 64,
        },
        task: TaskNote {
            kind: Kind::Perplexity,
            text: "wiki.txt".to_string(),
            sha256: "0".repeat(64),
            settings: json!({"window": 2048, "past": 512}),
        },
        item: json!({"start": start}),
        method: variant.note,
        scores: vec![
            span("all", 2047, kl * 0.8),
            span("from 512", 1536, kl),
            span("1-512", 511, kl * 0.1),
            span("512-1024", 512, kl),
            span("1024-2048", 1024, kl),
        ],
        bytes: Bytes {
            tokens: 1000,
            resident: 0,
            pages: 0,
            resident_16_bit: 1000.0 * bytes,
            exact_16_bit: 1_024_000,
            bits_per_value: bytes / 64.0,
            page_bits: (!exact).then_some(2.5),
        },
        machine: Machine {
            cpu: "a processor".to_string(),
            cores: 2,
            device: "flex".to_string(),
        },
        commit: "abc".to_string(),
        unix_time: 0,
        seconds: 60.0,
    }
}

/// The setting of a preset as it is.
pub fn preset(name: &str) -> Setting {
    Setting {
        name: name.to_string(),
        ..Setting::default()
    }
}
