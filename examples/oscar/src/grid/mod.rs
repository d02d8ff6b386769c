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

use std::{fs, path::Path};

use serde::Deserialize;

pub use side::SideChange;
pub use sweep::{OneOrMany, Setting, Sweep};
pub use variant::{MethodNote, Variant, hex};

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
    /// Reads a grid; its relative paths are taken from the folder of the file.
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
            *file = folder.join(&*file);
        }
        for sweep in &mut grid.methods {
            for file in sweep.calibration.iter_mut() {
                *file = folder.join(&*file);
            }
        }
        Ok(grid)
    }

    /// Every combination of every method's settings, each once, in order.
    ///
    /// # Errors
    /// What [`Setting::variant`] gives; an empty grid.
    pub fn variants(&self) -> Result<Vec<Variant>> {
        let variants = variants(&self.methods)?;
        if variants.is_empty() || self.tasks.is_empty() {
            return Err(Error::usage(format!(
                "{} tasks and {} methods measure nothing: give at least one of each",
                self.tasks.len(),
                variants.len()
            )));
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
