//! What is measured: tasks, and methods with lists of settings of which every combination runs.
//!
//! ```json
//! {
//!   "tasks": [{"kind": "perplexity", "text": "wiki.txt", "window": 2048, "windows": 4}],
//!   "methods": [
//!     {"name": "kivi", "windows": [[64, 256], [0, 128]], "group": [32, 64]},
//!     {"name": "transform_coded", "calibration": ["a.safetensors", "b.safetensors"]}
//!   ]
//! }
//! ```

mod side;
mod sweep;
mod variant;

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

pub use side::SideChange;
pub use sweep::{OneOrMany, Setting, Sweep};
pub use variant::{CalibrationNote, MethodNote, Variant, hex};

use crate::{
    error::{Error, Result},
    tasks::Task,
};

/// Everything that one evaluation measures.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// What is done with every method.
    pub tasks: Vec<Task>,
    /// The methods and their settings.
    pub methods: Vec<Sweep>,
}

impl Grid {
    /// Reads a grid; its relative paths are taken from the folder of the file. Texts and artifacts
    /// may be left out, see [`Grid::fill`].
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Line`] for what is not a grid.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(Error::file(path))?;
        let mut grid: Self = serde_json::from_str(&text).map_err(|error| Error::Line {
            path: path.into(),
            line: error.line(),
            reason: format!("{error}; `oscar evaluate --help` shows a grid"),
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        for task in &mut grid.tasks {
            let file = task.file_mut();
            if !file.as_os_str().is_empty() {
                *file = folder.join(&*file);
            }
        }
        for sweep in &mut grid.methods {
            for file in sweep.calibration.iter_mut() {
                *file = folder.join(&*file);
            }
        }
        Ok(grid)
    }

    /// Gives tasks without a file the text or the questions, and calibrated methods without an
    /// artifact those of their name.
    pub fn fill(
        &mut self,
        text: Option<&Path>,
        questions: Option<&Path>,
        artifacts: &[(String, PathBuf)],
    ) {
        for task in &mut self.tasks {
            let given = match task {
                Task::Questions(_) => questions,
                _ => text,
            };
            let file = task.file_mut();
            if let Some(given) = given.filter(|_| file.as_os_str().is_empty()) {
                *file = given.to_path_buf();
            }
        }
        for sweep in &mut self.methods {
            if sweep.calibration.values().is_empty() {
                let named = artifacts.iter();
                let named = named.filter(|(name, _)| sweep.name.values().contains(name));
                let paths: Vec<_> = named.map(|(_, path)| path.clone()).collect();
                sweep.calibration = paths.into();
            }
        }
    }

    /// Every combination of every method's settings, each once, in order.
    ///
    /// # Errors
    /// What [`Setting::variant`] gives; an empty grid; a task without a file.
    pub fn variants(&self) -> Result<Vec<Variant>> {
        let variants = variants(&self.methods)?;
        if variants.is_empty() || self.tasks.is_empty() {
            return Err(Error::usage(format!(
                "{} tasks and {} methods measure nothing: give at least one of each",
                self.tasks.len(),
                variants.len()
            )));
        }
        let mut tasks = self.tasks.iter().map(Task::file);
        if tasks.any(|file| file.as_os_str().is_empty()) {
            return Err(Error::usage(
                "there is no text, or there are no questions: give --text FILE or --question-file \
                 FILE, or name them in the grid",
            ));
        }
        Ok(variants)
    }
}

/// Every combination of some methods' settings, each once, in order.
///
/// # Errors
/// What [`Setting::variant`] gives.
pub fn variants(methods: &[Sweep]) -> Result<Vec<Variant>> {
    let mut variants: Vec<Variant> = Vec::new();
    for setting in methods.iter().flat_map(Sweep::settings) {
        let variant = setting.variant()?;
        if !variants.iter().any(|other| other.key() == variant.key()) {
            variants.push(variant);
        }
    }
    Ok(variants)
}

#[cfg(test)]
mod tests;
