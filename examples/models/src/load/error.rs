//! What can be wrong with a checkpoint.

use std::path::{Path, PathBuf};

use crate::config::ConfigError;
use crate::tokenizer::TokenizerError;

/// Why a checkpoint cannot be loaded. Nothing is kept of a load that failed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Neither a file, nor a folder, nor a name as the Hugging Face hub has them.
    #[error(
        "{path} is neither a folder, nor a file, nor a model id of the form `org/name`; give a \
         folder with config.json and model.safetensors, or a .gguf file"
    )]
    NotFound {
        /// The path given.
        path: PathBuf,
    },
    /// A file of a kind that is not read.
    #[error("{path} is not a GGUF file; for safetensors give the folder that holds config.json")]
    UnknownFormat {
        /// The path given.
        path: PathBuf,
    },
    /// A folder lacks a file.
    #[error("{folder} has no {file}, which a Hugging Face checkpoint needs")]
    MissingFile {
        /// The folder.
        folder: PathBuf,
        /// The file that is not there.
        file: String,
    },
    /// The file system refused.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The configuration does not describe a model that can be built.
    #[error("{path}: {source}")]
    Config {
        /// The file that holds the configuration.
        path: PathBuf,
        /// What is wrong with it.
        source: ConfigError,
    },
    /// The file contradicts itself: truncated, or changed since it was written.
    #[error("{path} is damaged: {reason}; fetch it again")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The first contradiction.
        reason: String,
    },
    /// A weight that the configuration calls for is not in the checkpoint.
    #[error("{path} has no tensor `{name}`, which its configuration calls for")]
    MissingTensor {
        /// The file or folder.
        path: PathBuf,
        /// The tensor, as the file would call it.
        name: String,
    },
    /// A weight has another shape than the configuration calls for.
    #[error("tensor `{name}` has shape {found:?}; its configuration calls for {expected:?}")]
    WrongShape {
        /// The tensor.
        name: String,
        /// Shape by the configuration, outputs first.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A weight is stored in a type that has no floating-point meaning here.
    #[error("tensor `{name}` is stored as {dtype}; give one in f32, f16, bf16 or a GGUF type")]
    UnsupportedDtype {
        /// The tensor.
        name: String,
        /// The type found.
        dtype: String,
    },
    /// A weight is infinite or not a number, so every output would be.
    #[error("tensor `{name}` has {value} at element {index}; the checkpoint is damaged")]
    NotFinite {
        /// The tensor.
        name: String,
        /// Index in row-major order.
        index: usize,
        /// The value found.
        value: f32,
    },
    /// The tokenizer cannot be read.
    #[error("{path}: {source}")]
    Tokenizer {
        /// The file that holds the tokenizer.
        path: PathBuf,
        /// What is wrong with it.
        source: TokenizerError,
    },
    /// The tokenizer knows tokens for which the embedding has no row.
    #[error(
        "the tokenizer has token id {id}, the embedding {rows} rows; they are of different models"
    )]
    Vocabulary {
        /// Largest id of the tokenizer.
        id: u32,
        /// Rows of the embedding.
        rows: usize,
    },
    /// The Hugging Face hub did not give the model.
    #[error(
        "cannot fetch {file} of `{id}` from the Hugging Face hub: {reason}; where the hub cannot \
         be reached, give the path of a folder or of a .gguf file"
    )]
    Hub {
        /// The model id.
        id: String,
        /// The file asked for.
        file: String,
        /// What the hub or the network says.
        reason: String,
    },
}

impl LoadError {
    /// An [`Io`](Self::Io) error of the file at `path`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        |source| Self::Io {
            path: path.to_path_buf(),
            source,
        }
    }

    /// A [`Config`](Self::Config) error of the file at `path`.
    pub(crate) fn config(path: &Path) -> impl FnOnce(ConfigError) -> Self + '_ {
        |source| Self::Config {
            path: path.to_path_buf(),
            source,
        }
    }

    /// A [`Tokenizer`](Self::Tokenizer) error of the file at `path`.
    pub(crate) fn tokenizer(path: &Path) -> impl FnOnce(TokenizerError) -> Self + '_ {
        |source| Self::Tokenizer {
            path: path.to_path_buf(),
            source,
        }
    }

    /// A [`Corrupt`](Self::Corrupt) error of the file at `path`.
    pub(crate) fn corrupt(path: &Path, reason: impl Into<String>) -> Self {
        Self::Corrupt {
            path: path.to_path_buf(),
            reason: reason.into(),
        }
    }
}
