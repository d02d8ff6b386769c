//! The file that a task reads.

use std::{
    fs,
    path::{Path, PathBuf},
};

use models::tokenizer::Tokenizer;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Kind, TaskNote};
use crate::{
    error::{Error, Result},
    grid::hex,
};

/// A text file and its digest.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where it is.
    pub path: PathBuf,
    /// What it holds, with plain line ends.
    pub text: String,
    /// Digest of its bytes.
    sha256: String,
}

impl Source {
    /// Reads a UTF-8 file. Windows' line ends become plain ones: models hardly know the others.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(Error::file(path))?;
        Ok(Self {
            path: path.to_path_buf(),
            sha256: hex(&Sha256::digest(text.as_bytes())),
            text: text.replace("\r\n", "\n"),
        })
    }

    /// Digest of its bytes, in hexadecimal digits.
    pub fn digest(&self) -> &str {
        &self.sha256
    }

    /// What a row says of a task on this file.
    pub fn note(&self, kind: Kind, settings: Value) -> TaskNote {
        let name = self.path.file_name().unwrap_or_default();
        TaskNote {
            kind,
            text: name.to_string_lossy().into_owned(),
            sha256: self.sha256.clone(),
            settings,
        }
    }

    /// The whole text as tokens, without special ones.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn tokens(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        Ok(tokenizer.encode(&self.text, false)?)
    }

    /// The error for a file of `found` units where `task` needs `needed`.
    pub fn too_short(
        &self,
        task: &'static str,
        unit: &'static str,
        found: usize,
        needed: usize,
        remedy: &'static str,
    ) -> Error {
        Error::TooShort {
            path: self.path.clone(),
            unit,
            found,
            task,
            needed,
            remedy,
        }
    }
}

/// The first tokens of `count` stretches of `length` tokens, spread evenly over `tokens` and never
/// overlapping; `None` where there is no room.
pub fn starts(tokens: usize, length: usize, count: usize) -> Option<Vec<usize>> {
    if length == 0 || count == 0 || tokens / length < count {
        return None;
    }
    let step = ((tokens - length) / count).max(length);
    Some((0..count).map(|index| index * step).collect())
}
