//! What can go wrong in a task, worded for the person who ran it.

use std::path::PathBuf;

/// The result of a task.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a task stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program is not installed.
    #[error("`{program}` was not found: {remedy}")]
    Missing {
        /// What was looked for.
        program: String,
        /// How to get it.
        remedy: String,
    },
    /// A command ended without success.
    #[error("`{command}` failed ({status})")]
    Failed {
        /// The command line.
        command: String,
        /// Its exit status, in words.
        status: String,
    },
    /// A file or folder could not be used.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A fetched file is not the pinned one.
    #[error("{} has SHA-256 {found}, but {pinned} is pinned: delete the file and run again", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Its hash.
        found: String,
        /// The hash it must have.
        pinned: &'static str,
    },
    /// Any other refusal; the text names the remedy.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// Wraps an I/O error with what was tried on which path.
    pub fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::File {
            action,
            path,
            source,
        }
    }
}
