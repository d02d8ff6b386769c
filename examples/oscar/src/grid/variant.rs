//! A method with its settings, ready to run.

use std::fs;

use burn_oscar::{Calibration, Method, method::Side};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Setting, SideChange};
use crate::error::{Error, Result};

/// A method and what a row says of it.
#[derive(Clone, Debug)]
pub struct Variant {
    /// What the cache is given.
    pub method: Method,
    /// What the row says.
    pub note: MethodNote,
}

/// The settings of a method, complete enough to run it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodNote {
    /// The preset.
    pub name: String,
    /// Tokens kept exact at the start.
    pub sink: usize,
    /// Newest tokens kept exact, at least.
    pub recent: usize,
    /// Bits, where they are not the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<u8>,
    /// Group, where it is not the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
    /// Whether pages have means, where that is not as in the preset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_means: Option<bool>,
    /// Changes to the keys.
    #[serde(default, skip_serializing_if = "SideChange::is_empty")]
    pub key: SideChange,
    /// Changes to the values.
    #[serde(default, skip_serializing_if = "SideChange::is_empty")]
    pub value: SideChange,
    /// The artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationNote>,
    /// What tables call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// The artifact of a calibrated method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationNote {
    /// Name of the file, without its folder.
    pub file: String,
    /// Digest of its bytes.
    pub sha256: String,
    /// Tokens that it was made from.
    pub tokens: usize,
    /// Positions that it was made for.
    pub served_length: usize,
}

impl Variant {
    /// Equal for equal measurements: names of files and labels do not count.
    pub fn key(&self) -> String {
        self.note.key()
    }
}

impl MethodNote {
    /// See [`Variant::key`].
    pub fn key(&self) -> String {
        let mut note = self.clone();
        note.label = None;
        if let Some(calibration) = &mut note.calibration {
            calibration.file.clear();
        }
        // The exact cache has no windows to speak of.
        if note.name == "exact" {
            (note.sink, note.recent) = (0, 0);
        }
        serde_json::to_string(&note).unwrap_or_else(|_| format!("{note:?}"))
    }

    /// What tables call it: the label, or the name and what is not as in the preset.
    pub fn title(&self) -> String {
        match (&self.label, self.differences()) {
            (Some(label), _) => label.clone(),
            (None, differences) if differences.is_empty() => self.name.clone(),
            (None, differences) => format!("{} ({})", self.name, differences.join(", ")),
        }
    }

    /// What is not as in the preset, in words.
    pub fn differences(&self) -> Vec<String> {
        let mut words = Vec::new();
        let usual = Method::hadamard();
        if self.name != "exact" && (self.sink, self.recent) != (usual.sink(), usual.recent()) {
            words.push(format!("windows {}/{}", self.sink, self.recent));
        }
        words.extend(self.bits.map(|bits| format!("{bits} bits")));
        words.extend(self.group.map(|group| format!("group {group}")));
        words.extend(self.page_means.map(|means| match means {
            true => "page means".to_string(),
            false => "no page means".to_string(),
        }));
        words.extend(self.key.words("keys"));
        words.extend(self.value.words("values"));
        words
    }
}

impl Setting {
    /// The method of this combination.
    ///
    /// # Errors
    /// [`Error::Cache`] for an unknown name, an artifact that is damaged or of another method, and
    /// bits that there are not; a usage error for what does not fit the method.
    pub fn variant(&self) -> Result<Variant> {
        let needs = Method::needs_calibration(&self.name);
        let path = self.calibration.as_ref().filter(|_| needs);
        let (mut method, calibration) = match path {
            Some(path) => {
                let bytes = fs::read(path).map_err(Error::file(path))?;
                let calibration = Calibration::from_bytes(&bytes, path)?;
                let note = CalibrationNote {
                    file: path
                        .file_name()
                        .map(|name| name.to_string_lossy().into_owned())
                        .unwrap_or_default(),
                    sha256: hex(&Sha256::digest(&bytes)),
                    tokens: calibration.tokens(),
                    served_length: calibration.served_length(),
                };
                (Method::calibrated(&self.name, &calibration)?, Some(note))
            }
            None if needs => {
                return Err(Error::usage(format!(
                    "method {} is calibrated: give its artifact for this model with --calibration \
                     {}=FILE, or \"calibration\" in the grid",
                    self.name, self.name
                )));
            }
            None => (Method::preset(&self.name)?, None),
        };
        if let Some(bits) = self.bits {
            method = method.with_bits(bits)?;
        }
        if let Some([sink, recent]) = self.windows {
            method = method.with_sink(sink).with_recent(recent);
        }
        if let Some(page_means) = self.page_means {
            method = method.with_page_means(page_means);
        }
        let key = self.side(method.key_side(), &self.key)?;
        let value = self.side(method.value_side(), &self.value)?;
        let method = method.with_key_side(key).with_value_side(value);
        Ok(Variant {
            note: MethodNote {
                name: self.name.clone(),
                sink: method.sink(),
                recent: method.recent(),
                bits: self.bits,
                group: self.group,
                page_means: self.page_means,
                key: self.key.clone(),
                value: self.value.clone(),
                calibration,
                label: self.label.clone(),
            },
            method,
        })
    }

    /// One side with its group and its changes.
    fn side(&self, side: &Side, change: &SideChange) -> Result<Side> {
        let mut side = side.clone();
        if let (Some(group), Some(quantizer)) = (self.group, &mut side.quantizer)
            && quantizer.group_size.is_some()
        {
            quantizer.group_size = Some(group);
        }
        change.apply(&side, &self.name)
    }
}

/// Hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
