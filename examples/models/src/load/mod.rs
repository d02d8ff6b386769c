//! Checkpoints: from a file to a model that is ready to run.
//!
//! [`load`] accepts a Hugging Face folder (`hf`), a GGUF file (`gguf`) or the id of a model
//! on the Hugging Face hub (`hub`). All of them end in the same place: a `Weights` source
//! that gives tensors by their Hugging Face names, as f32, outputs first, which `assemble`
//! puts where they belong. A checkpoint is input from somewhere else, so every count, shape
//! and range is checked before it is trusted, and weights that are not finite are refused. What
//! no loader can see is a changed bit that leaves a plausible number: neither format has
//! checksums.

mod assemble;
mod error;
mod fingerprint;
mod gguf;
mod gguf_metadata;
mod hf;
mod hub;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use burn::tensor::Device;

pub use error::LoadError;

use crate::config::ModelConfig;
use crate::model::Model;
use crate::tokenizer::Tokenizer;

/// A model with all that belongs to it.
#[derive(Debug)]
pub struct LoadedModel {
    /// Sizes and switches.
    pub config: ModelConfig,
    /// The network, its weights on the device.
    pub model: Model,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// 64 hexadecimal digits that name these weights; calibration artifacts carry them.
    pub fingerprint: String,
}

/// Named tensors of a checkpoint.
trait Weights {
    /// Reads a tensor. `name` and `shape` are Hugging Face's: outputs before inputs. The shape is
    /// checked, the values are not.
    fn read(&mut self, name: &str, shape: &[usize]) -> Result<StoredTensor, LoadError>;
}

/// A tensor of a checkpoint.
struct StoredTensor {
    /// Its name in the file, for messages.
    name: String,
    /// The type it is stored in.
    dtype: String,
    /// Its values in row-major order.
    values: Vec<f32>,
}

/// Loads a model onto a device.
///
/// `path` is a folder with `config.json`, `tokenizer.json` and `model.safetensors` (or shards
/// and `model.safetensors.index.json`); or a `.gguf` file; or, where no such path exists, a
/// model id `org/name`, which is fetched from the Hugging Face hub and kept in its cache.
/// Weights become f32 and then the device's default floating-point type. Progress is shown on
/// standard error where that is a terminal.
///
/// # Errors
/// [`LoadError`], which names the file or tensor and what to do about it.
pub fn load(path: &Path, device: &Device) -> Result<LoadedModel, LoadError> {
    if path.is_dir() {
        hf::load(path, device)
    } else if path.is_file() {
        match is_gguf(path)? {
            true => gguf::load(path, device),
            false => Err(LoadError::UnknownFormat {
                path: path.to_path_buf(),
            }),
        }
    } else if let Some(id) = hub::model_id(path) {
        hf::load(&hub::fetch(id)?, device)
    } else {
        Err(LoadError::NotFound {
            path: path.to_path_buf(),
        })
    }
}

/// Whether a file is GGUF, by its first bytes or by its name. The name counts too, so that a
/// file damaged in its first bytes is called damaged and not of another kind.
fn is_gguf(path: &Path) -> Result<bool, LoadError> {
    let mut magic = [0; 4];
    let mut file = File::open(path).map_err(LoadError::io(path))?;
    let found = file.read(&mut magic).map_err(LoadError::io(path))?;
    Ok(&magic[..found] == b"GGUF" || path.extension().is_some_and(|name| name == "gguf"))
}

/// Checks that every token of the tokenizer has a row in the embedding.
fn check_vocabulary(tokenizer: &Tokenizer, config: &ModelConfig) -> Result<(), LoadError> {
    match tokenizer.largest_id() {
        Some(id) if id as usize >= config.vocab_size => Err(LoadError::Vocabulary {
            id,
            rows: config.vocab_size,
        }),
        _ => Ok(()),
    }
}
