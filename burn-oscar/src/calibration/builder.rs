//! Putting a [`Calibration`] together, layer by layer.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::artifact::KEYS;
use super::{Calibration, Contents, LayerCalibration};
use crate::error::{Error, Result};

/// Collects what a [`Calibration`] consists of; [`CalibrationBuilder::build`] checks it as loading
/// does.
#[derive(Clone, Debug)]
pub struct CalibrationBuilder {
    method: String,
    fingerprint: String,
    n_layers: usize,
    n_kv_heads: usize,
    head_dim: usize,
    served_length: usize,
    tokens: usize,
    layers: BTreeMap<usize, LayerCalibration>,
    notes: BTreeMap<String, String>,
    repeated: Option<usize>,
}

impl CalibrationBuilder {
    /// For the preset called `method` and a model of these sizes.
    pub fn new(
        method: impl Into<String>,
        n_layers: usize,
        n_kv_heads: usize,
        head_dim: usize,
    ) -> Self {
        Self {
            method: method.into(),
            fingerprint: String::new(),
            n_layers,
            n_kv_heads,
            head_dim,
            served_length: 0,
            tokens: 0,
            layers: BTreeMap::new(),
            notes: BTreeMap::new(),
            repeated: None,
        }
    }

    /// Identifies the model; it must be given.
    #[must_use]
    pub fn fingerprint(mut self, fingerprint: impl Into<String>) -> Self {
        self.fingerprint = fingerprint.into();
        self
    }

    /// Positions, in tokens, that the statistics cover; it must be given.
    #[must_use]
    pub fn served_length(mut self, served_length: usize) -> Self {
        self.served_length = served_length;
        self
    }

    /// Tokens that the statistics were taken from; it must be given.
    #[must_use]
    pub fn tokens(mut self, tokens: usize) -> Self {
        self.tokens = tokens;
        self
    }

    /// Something worth knowing later, such as what text was read. Keys of the format itself are
    /// refused by [`build`](Self::build).
    #[must_use]
    pub fn note(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.notes.insert(key.into(), value.into());
        self
    }

    /// The layer at `index`; each must be given once, in any order.
    #[must_use]
    pub fn layer(mut self, index: usize, layer: LayerCalibration) -> Self {
        if self.layers.insert(index, layer).is_some() {
            self.repeated = Some(index);
        }
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// [`Error::Artifact`] for what is missing, repeated, or does not fit.
    pub fn build(self) -> Result<Calibration> {
        let path = PathBuf::from("(not saved)");
        let layers = self.n_layers;
        let past_the_end = self.layers.keys().copied().find(|index| *index >= layers);
        let reserved = self.notes.keys().find(|key| KEYS.contains(&key.as_str()));
        let reason = if let Some(key) = reserved {
            Some(format!(
                "`{key}` is a key of the format: give the note another name"
            ))
        } else if let Some(index) = self.repeated {
            Some(format!("layer {index} was given twice: give each once"))
        } else if let Some(index) = past_the_end {
            Some(format!(
                "layer {index} was given and there are {layers}: count from 0"
            ))
        } else if self.layers.len() < layers {
            let missing = (0..layers).find(|index| !self.layers.contains_key(index));
            Some(format!(
                "layer {} of {layers} was not given: calibrate all layers",
                missing.unwrap_or_default()
            ))
        } else {
            None
        };
        if let Some(reason) = reason {
            return Err(Error::Artifact { path, reason });
        }
        Calibration::checked(Contents {
            path,
            method: self.method,
            fingerprint: self.fingerprint,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            served_length: self.served_length,
            tokens: self.tokens,
            layers: self.layers.into_values().collect(),
            notes: self.notes,
        })
    }
}
