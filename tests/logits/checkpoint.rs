//! The tiny checkpoints of `fixtures/`, loaded and with their reference logits.

use std::fs;
use std::path::Path;

use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_oscar::{AttentionOptions, KvCache, KvCacheConfig, Method, SequenceId};
use capabilities::fixtures::{Fixture, folder};
use models::load::{LoadedModel, load};
use tempfile::TempDir;

/// Tokens that were prefilled for the reference; the others came one at a time.
pub const PREFILL: usize = 96;

/// A vocabulary of one word: some fixtures have weights only, and a folder needs a tokenizer.
const TOKENIZER: &str =
    r#"{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}"#;

/// A copy of a fixture's folder that tests may damage, with a tokenizer where it has none.
pub fn copy(name: &str) -> TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    fs::write(copy.path().join("tokenizer.json"), TOKENIZER).expect("writes");
    for entry in fs::read_dir(folder().join(name)).expect("the fixture") {
        let path = entry.expect("an entry").path();
        let file = path.file_name().expect("a name");
        fs::copy(&path, copy.path().join(file)).expect("copies");
    }
    copy
}

/// A loaded checkpoint and what transformers makes of it.
pub struct Checkpoint {
    pub device: Device,
    pub loaded: LoadedModel,
    /// 128 tokens of a text.
    pub tokens: Vec<i32>,
    /// `[128][vocab]`
    pub logits: Vec<Vec<f32>>,
}

impl Checkpoint {
    pub fn open(name: &str) -> Self {
        Self::load(name, copy(name).path())
    }

    /// Loads the checkpoint at `path`, which holds the same weights as the fixture `name`.
    pub fn load(name: &str, path: &Path) -> Self {
        Self::load_on(name, path, &Device::flex())
    }

    /// The same on any device.
    pub fn load_on(name: &str, path: &Path, device: &Device) -> Self {
        let loaded = load(path, device).unwrap_or_else(|error| panic!("{name}: {error}"));
        let reference = Fixture::open(&format!("{name}/logits.safetensors"));
        let (_, tokens) = reference.numbers("tokens");
        let (shape, logits) = reference.numbers("logits");
        assert_eq!(shape, [tokens.len(), loaded.config.vocab_size]);
        Self {
            device: device.clone(),
            tokens: tokens.iter().map(|&token| token as i32).collect(),
            logits: logits.chunks(shape[1]).map(<[f32]>::to_vec).collect(),
            loaded,
        }
    }

    pub fn cache(&self, method: Method, sequences: usize) -> KvCache {
        let config = &self.loaded.config;
        KvCacheConfig::new(config.num_layers, config.num_kv_heads, config.head_dim)
            .with_method(method)
            .with_max_tokens(self.tokens.len())
            .with_max_sequences(sequences)
            .with_poison(true)
            .init(&self.device)
            .expect("a cache")
    }

    /// Feeds the same number of tokens to each of some sequences; the logits of each row's
    /// positions.
    pub fn step(
        &self,
        cache: &mut KvCache,
        sequences: &[SequenceId],
        rows: &[&[i32]],
    ) -> Vec<Vec<Vec<f32>>> {
        let data = TensorData::new(rows.concat(), [rows.len(), rows[0].len()]);
        let tokens = Tensor::<2, Int>::from_data(data, &self.device);
        let model = &self.loaded.model;
        let options = AttentionOptions::causal();
        let hidden = model
            .forward_rows(tokens, sequences, cache, options)
            .expect("runs");
        let logits: Vec<f32> = model.logits(hidden).try_into_vec_as().expect("reads");
        logits
            .chunks(rows[0].len() * self.loaded.config.vocab_size)
            .map(|row| {
                row.chunks(self.loaded.config.vocab_size)
                    .map(<[f32]>::to_vec)
            })
            .map(Iterator::collect)
            .collect()
    }

    /// Feeds the whole text to an empty cache of one sequence in calls of the given lengths, and
    /// the rest one token at a time.
    pub fn feed(&self, cache: &mut KvCache, calls: &[usize]) -> Vec<Vec<f32>> {
        let mut logits = Vec::new();
        let mut rest = &self.tokens[..];
        let mut calls = calls.iter();
        while !rest.is_empty() {
            let count = (*calls.next().unwrap_or(&1)).min(rest.len());
            let (now, later) = rest.split_at(count);
            logits.extend(self.step(cache, &cache.sequences(), &[now]).remove(0));
            rest = later;
        }
        logits
    }
}
