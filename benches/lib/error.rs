//! What can go wrong with a benchmark.

use std::path::PathBuf;

/// The result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with a benchmark.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library refused.
    #[error(transparent)]
    Cache(#[from] burn_oscar::Error),
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(String),
    /// A fused kernel was to be measured and the portable body ran.
    #[error(
        "the portable body ran where a fused kernel was to be measured ({grown} fused calls of \
         {calls}): pass --allow-portable to time it all the same"
    )]
    NotFused {
        /// Calls that were made.
        calls: u64,
        /// Those among them that took the fused path.
        grown: u64,
    },
    /// The device of this name is not built in.
    #[error("device `{0}` is not in this build: build benches with its feature")]
    NoDevice(String),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{path}: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// Rows of one device and the baseline of another.
    #[error("measured on `{attention}`, the baseline on `{baseline}`: give files of one device")]
    Devices {
        /// The device of the measurements.
        attention: String,
        /// The device of the baseline.
        baseline: String,
    },
    /// The plot could not be drawn.
    #[error("the plot could not be drawn: {0}")]
    Plot(String),
}
