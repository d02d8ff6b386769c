//! Everything that a command can end with.

use std::{io, path::PathBuf};

use models::{cli::CliError, evaluate::EvaluateError, tokenizer::TokenizerError};

/// The result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a command failed. The messages name the value, the limit and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What all command lines share: model, device, output, options.
    #[error(transparent)]
    Cli(#[from] CliError),
    /// A method, an artifact or a cache.
    #[error(transparent)]
    Cache(#[from] burn_oscar::Error),
    /// The evaluation.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// Text and tokens.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A file that cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A line of a file that is not what it should be.
    #[error("{}, line {line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A text or a list of questions too short for what is asked of it.
    #[error(
        "{} has {found} {unit}, {task} needs {needed}: give a longer file or {remedy}",
        path.display()
    )]
    TooShort {
        /// The file.
        path: PathBuf,
        /// What is counted.
        unit: &'static str,
        /// How many there are.
        found: usize,
        /// The task.
        task: &'static str,
        /// How many it needs.
        needed: usize,
        /// What to lower.
        remedy: &'static str,
    },
    /// A figure could not be drawn.
    #[error("figure {name} could not be drawn: {reason}")]
    Plot {
        /// The figure.
        name: &'static str,
        /// What the library says.
        reason: String,
    },
}

impl Error {
    /// Options that do not fit together, with what to do.
    pub fn usage(reason: impl Into<String>) -> Self {
        Self::Cli(CliError::Usage(reason.into()))
    }

    /// For `map_err` on what was done to a file.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Self::File { path, source }
    }

    /// Whether the reader of standard output closed it.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Cli(error) if error.is_broken_pipe())
    }
}
