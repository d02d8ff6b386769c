//! What a job leaves in its folder, so that another process can go on where one stopped.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::calibration::Statistics;
use crate::calibration::file::write_file;
use crate::error::{Error, Result};

/// What a job observes and how. Only the same one resumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Description {
    /// Of the windows, in their order.
    pub windows: String,
    pub count: usize,
    pub checkpoint_every: usize,
    /// Everything that early stopping depends on.
    pub stopping: String,
    /// Of the statistics.
    pub statistics: String,
}

/// Says in the metadata of a checkpoint that the job needs no more windows.
const CONVERGED: &str = "converged";

/// Where a job stopped.
pub(super) struct Checkpoint {
    pub statistics: Statistics,
    pub converged: bool,
}

/// The files of a job.
#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub fn new(path: &Path) -> Result<Self> {
        std::fs::create_dir_all(path).map_err(|source| Error::Io {
            path: path.to_path_buf(),
            source,
        })?;
        Ok(Self(path.to_path_buf()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn statistics(&self) -> PathBuf {
        self.0.join("statistics.safetensors")
    }

    pub fn artifact(&self) -> PathBuf {
        self.0.join("calibration.safetensors")
    }

    fn description(&self) -> PathBuf {
        self.0.join("job.json")
    }

    /// Keeps a checkpoint: one file, written at once or not at all. How many windows it has seen is
    /// in the statistics, since every window is a sequence.
    pub fn keep(&self, statistics: &Statistics, converged: bool) -> Result<()> {
        let notes = converged.then(|| (CONVERGED.to_string(), "true".to_string()));
        let bytes = statistics.to_bytes_with(notes.into_iter().collect())?;
        write_file(&self.statistics(), &bytes)
    }

    /// The last checkpoint, if the folder has one of the same job. A new job writes down what it is
    /// before its first checkpoint.
    pub fn open(&self, job: &Description) -> Result<Option<Checkpoint>> {
        let path = self.description();
        let Ok(text) = std::fs::read(&path) else {
            let text = serde_json::to_vec_pretty(job).map_err(|error| Error::Calibration {
                reason: format!("the job cannot be written down: {error}"),
            })?;
            if self.statistics().exists() {
                return Err(Error::Artifact {
                    path,
                    reason: "it is missing and there are statistics: give an empty folder".into(),
                });
            }
            write_file(&path, &text)?;
            return Ok(None);
        };
        let found: Description =
            serde_json::from_slice(&text).map_err(|error| Error::Artifact {
                path: path.clone(),
                reason: format!("it is damaged ({error}): give an empty folder"),
            })?;
        for (what, mine, theirs) in [
            ("windows", &job.windows, &found.windows),
            ("model and statistics", &job.statistics, &found.statistics),
            ("options", &job.stopping, &found.stopping),
        ] {
            if mine != theirs {
                return Err(Error::Artifact {
                    path,
                    reason: format!(
                        "another job was begun here, of other {what} ({theirs}, not {mine}): give \
                         its own folder to each"
                    ),
                });
            }
        }
        if found != *job {
            return Err(Error::Artifact {
                path,
                reason: format!(
                    "another job was begun here, of {} windows with a checkpoint every {}: give \
                     its own folder to each",
                    found.count, found.checkpoint_every
                ),
            });
        }
        if !self.statistics().exists() {
            return Ok(None);
        }
        let (statistics, notes) = Statistics::load_with(&self.statistics())?;
        Ok(Some(Checkpoint {
            statistics,
            converged: notes.contains_key(CONVERGED),
        }))
    }
}
