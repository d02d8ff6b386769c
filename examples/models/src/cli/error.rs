//! Everything that a command can end with.

use std::{
    io::{self, ErrorKind},
    path::PathBuf,
};

use crate::{
    evaluate::EvaluateError, generate::GenerateError, load::LoadError, sampling::SamplingError,
    tokenizer::TokenizerError,
};

/// Why a command failed. The messages name the value, the limit and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Options that do not fit together, or do not fit the model.
    #[error("{0}")]
    Usage(String),
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file, `-` for standard input.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Standard output or standard input failed.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    /// A result that is not JSON.
    #[error("cannot write the result as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The model cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Text and tokens.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Sampling options out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// A method, an artifact or a cache.
    #[error(transparent)]
    Cache(#[from] burn_oscar::Error),
    /// The generation loop.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The evaluation.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
}

impl CliError {
    /// Whether the reader of standard output closed it.
    pub fn is_broken_pipe(&self) -> bool {
        match self {
            Self::Output(error) => error.kind() == ErrorKind::BrokenPipe,
            Self::Json(error) => error.io_error_kind() == Some(ErrorKind::BrokenPipe),
            _ => false,
        }
    }
}
