//! What a cache does with keys and values, as data.
//!
//! A method is two independent sides and two windows. A new method is a new row of the table in `presets`,
//! never a new branch in a kernel. Sources: OSCAR, arXiv 2605.17757 (`oscar`); OScaR,
//! arXiv 2605.19660 (`oscar_scaled`); KIVI, arXiv 2402.02750; QuaRot, arXiv 2404.00456
//! (`hadamard`). `hadamard_centred` and `transform_coded` are this project's own.

mod presets;

use crate::calibration::Calibration;
use crate::error::{Error, Result};
use crate::quantizer::{ChannelBits, Quantizer, Rounding};
#[cfg(feature = "calibrate")]
pub(crate) use presets::{FOUR_TWO_NONE, centred};
use presets::{RECENT, ROWS, Row, SINK};

/// How one side's vectors are transformed when they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransformKind {
    /// Stored as they are.
    Identity,
    /// Multiplied by the normalised Hadamard matrix of head_dim.
    Hadamard,
    /// Multiplied by the matrices, and centred by the means, of a calibration artifact.
    Calibrated,
}

/// What happens to the keys, or to the values.
#[derive(Clone, Debug, PartialEq)]
pub struct Side {
    /// Applied on arrival; every tier holds transformed vectors.
    pub transform: TransformKind,
    /// How a page is packed; `None` keeps pages in the activation dtype.
    pub quantizer: Option<Quantizer>,
}

impl Side {
    pub(crate) const EXACT: Self = Self {
        transform: TransformKind::Identity,
        quantizer: None,
    };
}

/// A complete recipe: keys, values and windows.
#[derive(Clone, Debug)]
pub struct Method {
    pub(crate) name: String,
    pub(crate) summary: &'static str,
    pub(crate) key: Side,
    pub(crate) value: Side,
    pub(crate) sink: usize,
    pub(crate) recent: usize,
    pub(crate) calibration: Option<Calibration>,
}

impl Method {
    /// The names of the presets, in the order of the table.
    pub const PRESETS: &'static [&'static str] = &[
        "exact",
        "round_to_nearest",
        "kivi",
        "hadamard",
        "hadamard_centred",
        "oscar",
        "oscar_scaled",
        "transform_coded",
    ];

    fn row(name: &str) -> Result<&'static Row> {
        ROWS.iter()
            .find(|row| row.name == name)
            .ok_or_else(|| Error::UnknownMethod {
                name: name.to_string(),
                known: Self::PRESETS.join(", "),
            })
    }

    fn of(row: &Row, calibration: Option<Calibration>) -> Self {
        Self {
            name: row.name.to_string(),
            summary: row.summary,
            key: row.key.clone(),
            value: row.value.clone(),
            sink: SINK,
            recent: RECENT,
            calibration,
        }
    }

    /// Whether the preset called `name` takes a calibration artifact. Unknown names do not.
    pub fn needs_calibration(name: &str) -> bool {
        Self::row(name).is_ok_and(|row| row.key.transform == TransformKind::Calibrated)
    }

    /// The preset called `name`, one of [`Method::PRESETS`].
    ///
    /// # Errors
    /// [`Error::UnknownMethod`]; [`Error::NeedsCalibration`] for `oscar` and `transform_coded`.
    pub fn preset(name: &str) -> Result<Self> {
        if Self::needs_calibration(name) {
            return Err(Error::NeedsCalibration {
                method: name.to_string(),
            });
        }
        Ok(Self::of(Self::row(name)?, None))
    }

    /// The preset called `name` with the transforms, clips and segments of an artifact. Presets
    /// that are not calibrated ignore the artifact.
    ///
    /// # Errors
    /// [`Error::UnknownMethod`]; [`Error::Method`] if the artifact was made for another method.
    pub fn calibrated(name: &str, calibration: &Calibration) -> Result<Self> {
        let row = Self::row(name)?;
        if !Self::needs_calibration(name) {
            return Ok(Self::of(row, None));
        }
        if calibration.method() != name {
            return Err(Error::Method {
                method: name.to_string(),
                reason: format!(
                    "the artifact was made for `{}`: calibrate again for this method",
                    calibration.method()
                ),
            });
        }
        Ok(Self::of(row, Some(calibration.clone())))
    }

    /// Keys and values in the activation dtype.
    pub fn exact() -> Self {
        Self::of(&ROWS[0], None)
    }

    /// Plain per-token rounding.
    pub fn round_to_nearest() -> Self {
        Self::of(&ROWS[1], None)
    }

    /// KIVI: keys per channel, values per token.
    pub fn kivi() -> Self {
        Self::of(&ROWS[2], None)
    }

    /// QuaRot-like: Hadamard and one group per token.
    pub fn hadamard() -> Self {
        Self::of(&ROWS[3], None)
    }

    /// Page means, Hadamard, scale-only codes with gain: the best that needs no calibration.
    pub fn hadamard_centred() -> Self {
        Self::of(&ROWS[4], None)
    }

    /// OSCAR, with the rotations of an artifact.
    ///
    /// # Errors
    /// [`Error::Method`] if the artifact was made for another method.
    pub fn oscar(calibration: &Calibration) -> Result<Self> {
        Self::calibrated("oscar", calibration)
    }

    /// OScaR: Hadamard and token norms, no calibration.
    pub fn oscar_scaled() -> Self {
        Self::of(&ROWS[6], None)
    }

    /// Transform coding, with the eigenbases of an artifact.
    ///
    /// # Errors
    /// [`Error::Method`] if the artifact was made for another method.
    pub fn transform_coded(calibration: &Calibration) -> Result<Self> {
        Self::calibrated("transform_coded", calibration)
    }

    /// The preset's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One line that says what the method does.
    pub fn summary(&self) -> &str {
        self.summary
    }

    /// Tokens kept exact at the start of every sequence.
    pub fn sink(&self) -> usize {
        self.sink
    }

    /// Newest tokens kept exact, at least.
    pub fn recent(&self) -> usize {
        self.recent
    }

    /// Keeps the first `sink` tokens of every sequence exact (default 64).
    #[must_use]
    pub fn with_sink(mut self, sink: usize) -> Self {
        self.sink = sink;
        self
    }

    /// Keeps at least the newest `recent` tokens exact (default 256). A page leaves the recent
    /// tier when it holds `recent` tokens and a whole page.
    #[must_use]
    pub fn with_recent(mut self, recent: usize) -> Self {
        self.recent = recent;
        self
    }

    /// The same method at `bits` bits, 2, 4 or 8, on both sides; the exact sides stay exact.
    ///
    /// # Errors
    /// [`Error::Option`] for another number, [`Error::Method`] where the method spends its bits
    /// by channel.
    pub fn with_bits(mut self, bits: u8) -> Result<Self> {
        if ![2, 4, 8].contains(&bits) {
            return Err(Error::Option {
                option: "bits",
                value: bits.to_string(),
                reason: "codes have 2, 4 or 8 bits",
            });
        }
        for side in [&mut self.key, &mut self.value] {
            if let Some(quantizer) = &mut side.quantizer {
                if matches!(quantizer.bits, ChannelBits::Segments(_)) {
                    return Err(Error::Method {
                        method: self.name,
                        reason: "its bits are given per channel: choose them in the artifact"
                            .into(),
                    });
                }
                quantizer.bits = ChannelBits::Uniform(bits);
            }
        }
        Ok(self)
    }

    /// The same method with or without the means of pages, on the sides whose codes are mid-rise
    /// (`hadamard_centred`, `transform_coded`). Without them the pages are shorter, 64 tokens, and
    /// the artifact had better have means: an offset that all keys share costs most of the bits.
    #[must_use]
    pub fn with_page_means(mut self, page_means: bool) -> Self {
        for side in [&mut self.key, &mut self.value] {
            if let Some(quantizer) = &mut side.quantizer
                && quantizer.rounding == Rounding::MidRise
            {
                quantizer.page_mean = page_means;
            }
        }
        self
    }

    /// The same method with other keys.
    #[must_use]
    pub fn with_key_side(mut self, key: Side) -> Self {
        self.key = key;
        self
    }

    /// The same method with other values.
    #[must_use]
    pub fn with_value_side(mut self, value: Side) -> Self {
        self.value = value;
        self
    }

    /// What happens to the keys.
    pub fn key_side(&self) -> &Side {
        &self.key
    }

    /// What happens to the values.
    pub fn value_side(&self) -> &Side {
        &self.value
    }

    /// The calibration artifact in use.
    pub fn calibration(&self) -> Option<&Calibration> {
        self.calibration.as_ref()
    }

    /// Tokens of one page: the larger of what the two sides need (64, or 256 with page means).
    pub fn page_tokens(&self) -> usize {
        [&self.key, &self.value]
            .into_iter()
            .filter_map(|side| side.quantizer.as_ref())
            .map(Quantizer::page_tokens)
            .max()
            .unwrap_or(crate::quantizer::layout::CHUNK_TOKENS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_rows_agree() {
        let rows: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(rows, Method::PRESETS);
        for (method, name) in [
            (Method::exact(), "exact"),
            (Method::round_to_nearest(), "round_to_nearest"),
            (Method::kivi(), "kivi"),
            (Method::hadamard(), "hadamard"),
            (Method::hadamard_centred(), "hadamard_centred"),
            (Method::oscar_scaled(), "oscar_scaled"),
        ] {
            assert_eq!(method.name(), name);
        }
    }

    #[test]
    fn wrong_names_and_bits_say_what_there_is() {
        let error = Method::preset("kivy").unwrap_err().to_string();
        assert!(error.contains("kivi") && error.contains("kivy"), "{error}");
        assert!(matches!(
            Method::preset("oscar"),
            Err(Error::NeedsCalibration { .. })
        ));
        assert!(Method::kivi().with_bits(3).is_err());
        assert_eq!(Method::hadamard_centred().page_tokens(), 256);
        assert_eq!(Method::kivi().page_tokens(), 64);
        let without = Method::hadamard_centred().with_page_means(false);
        assert_eq!(without.page_tokens(), 64);
        assert_eq!(Method::kivi().with_page_means(true).page_tokens(), 64);
    }
}
