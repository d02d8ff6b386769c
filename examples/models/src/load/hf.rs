//! A Hugging Face folder: `config.json`, safetensors in one file or several, `tokenizer.json`.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device};
use burn_store::{ModuleStore, SafetensorsStore, bridge};
use serde::Deserialize;

use super::assemble::assemble;
use super::{LoadError, LoadedModel, StoredTensor, Weights, check_vocabulary};
use crate::config::{ModelConfig, OneOrMore};
use crate::tokenizer::Tokenizer;

/// All weights in one file.
pub(super) const SINGLE: &str = "model.safetensors";
/// Which shard has which tensor.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// Sizes and switches.
pub(super) const CONFIG: &str = "config.json";
/// Vocabulary and rules.
pub(super) const TOKENIZER: &str = "tokenizer.json";
/// Files that are used where they are there.
pub(super) const OPTIONAL: [&str; 3] = [
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// Loads a folder.
pub(super) fn load(folder: &Path, device: &Device) -> Result<LoadedModel, LoadError> {
    let path = folder.join(CONFIG);
    let text = read(folder, CONFIG)?;
    let mut config = ModelConfig::from_hf_json(&text).map_err(LoadError::config(&path))?;
    for id in generation_eos(folder)? {
        if !config.eos_token_ids.contains(&id) {
            config.eos_token_ids.push(id);
        }
    }
    let path = folder.join(TOKENIZER);
    let tokenizer = Tokenizer::from_hf(
        read(folder, TOKENIZER)?.as_bytes(),
        read_optional(folder, "tokenizer_config.json")?.as_deref(),
        read_optional(folder, "chat_template.jinja")?,
        &config.eos_token_ids,
    )
    .map_err(LoadError::tokenizer(&path))?;
    check_vocabulary(&tokenizer, &config)?;

    let mut weights = SafetensorsFolder::open(folder)?;
    let (model, fingerprint) = assemble(&config, &mut weights, device)?;
    Ok(LoadedModel {
        config,
        model,
        tokenizer,
        fingerprint,
    })
}

/// End tokens that `generation_config.json` adds, where it exists.
fn generation_eos(folder: &Path) -> Result<Vec<u32>, LoadError> {
    #[derive(Deserialize)]
    struct Generation {
        eos_token_id: Option<OneOrMore>,
    }
    const FILE: &str = "generation_config.json";
    let Some(text) = read_optional(folder, FILE)? else {
        return Ok(Vec::new());
    };
    let parsed: Generation = serde_json::from_str(&text)
        .map_err(|source| LoadError::config(&folder.join(FILE))(source.into()))?;
    Ok(parsed
        .eos_token_id
        .map(OneOrMore::into_vec)
        .unwrap_or_default())
}

fn read(folder: &Path, file: &str) -> Result<String, LoadError> {
    read_optional(folder, file)?.ok_or_else(|| LoadError::MissingFile {
        folder: folder.to_path_buf(),
        file: file.to_string(),
    })
}

fn read_optional(folder: &Path, file: &str) -> Result<Option<String>, LoadError> {
    let path = folder.join(file);
    if !path.exists() {
        return Ok(None);
    }
    let bytes = fs::read(&path).map_err(LoadError::io(&path))?;
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|error| LoadError::corrupt(&path, format!("not UTF-8 text ({error})")))
}

/// The safetensors files of a folder, each mapped into memory when first needed.
struct SafetensorsFolder {
    folder: PathBuf,
    stores: HashMap<String, SafetensorsStore>,
    /// Tensor name to file name.
    places: HashMap<String, String>,
}

impl SafetensorsFolder {
    fn open(folder: &Path) -> Result<Self, LoadError> {
        let mut weights = Self {
            folder: folder.to_path_buf(),
            stores: HashMap::new(),
            places: HashMap::new(),
        };
        match read_optional(folder, INDEX)? {
            Some(index) => weights.places = shards(&folder.join(INDEX), &index)?,
            None if folder.join(SINGLE).is_file() => {
                let path = folder.join(SINGLE);
                let names = weights.store(SINGLE)?.keys();
                for name in names.map_err(|error| LoadError::corrupt(&path, error.to_string()))? {
                    weights.places.insert(name, SINGLE.to_string());
                }
            }
            None => {
                let file = format!("{SINGLE} or {INDEX}");
                return Err(LoadError::MissingFile {
                    folder: folder.to_path_buf(),
                    file,
                });
            }
        }
        Ok(weights)
    }

    fn store(&mut self, file: &str) -> Result<&mut SafetensorsStore, LoadError> {
        let path = self.folder.join(file);
        if !path.is_file() {
            return Err(LoadError::MissingFile {
                folder: self.folder.clone(),
                file: file.to_string(),
            });
        }
        let store = self.stores.entry(file.to_string());
        // Names are taken as they stand: layer numbers are those of the checkpoint.
        Ok(
            store
                .or_insert_with(|| SafetensorsStore::from_file(path).map_indices_contiguous(false)),
        )
    }
}

impl Weights for SafetensorsFolder {
    fn read(&mut self, name: &str, shape: &[usize]) -> Result<StoredTensor, LoadError> {
        let missing = |path: &Path| LoadError::MissingTensor {
            path: path.into(),
            name: name.to_string(),
        };
        let Some(file) = self.places.get(name).cloned() else {
            return Err(missing(&self.folder));
        };
        let path = self.folder.join(&file);
        let corrupt = |reason: String| LoadError::corrupt(&path, reason);
        let store = self.store(&file)?;
        let tensor = store
            .get_tensor(name)
            .map_err(|error| corrupt(error.to_string()))?;
        let tensor = tensor.ok_or_else(|| missing(&path))?;
        if tensor.shape.as_slice() != shape {
            return Err(LoadError::WrongShape {
                name: name.to_string(),
                expected: shape.to_vec(),
                found: tensor.shape.to_vec(),
            });
        }
        let dtype = format!("{:?}", tensor.dtype);
        if !matches!(
            tensor.dtype,
            DType::F64 | DType::F32 | DType::F16 | DType::BF16
        ) {
            return Err(LoadError::UnsupportedDtype {
                name: name.to_string(),
                dtype,
            });
        }
        let data = bridge::to_data(tensor).map_err(|error| corrupt(error.to_string()))?;
        let values = data
            .try_cast(DType::F32)
            .map_err(|error| corrupt(error.to_string()))?
            .try_into_vec::<f32>()
            .map_err(|error| corrupt(format!("{error:?}")))?;
        Ok(StoredTensor {
            name: name.to_string(),
            dtype,
            values,
        })
    }
}

/// Reads the map from tensors to shards, which are names of files and nothing else.
pub(super) fn shards(path: &Path, index: &str) -> Result<HashMap<String, String>, LoadError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let index: Index =
        serde_json::from_str(index).map_err(|error| LoadError::corrupt(path, error.to_string()))?;
    // A shard lies beside its index; a path to anywhere else is not followed.
    let elsewhere = |file: &&String| Path::new(file).file_name() != Some(file.as_ref());
    match index.weight_map.values().find(elsewhere) {
        Some(file) => Err(LoadError::corrupt(
            path,
            format!("shard `{file}` is not a file name"),
        )),
        None => Ok(index.weight_map),
    }
}
