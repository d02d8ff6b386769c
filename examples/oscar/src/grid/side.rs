//! Changes to what a preset does with keys, or with values.

use burn_oscar::{
    method::{Side, TransformKind},
    quantizer::{ChannelBits, Segment},
};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A part of a side and what it becomes; what is left out stays as the preset has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SideChange {
    /// Keep this side exact: packs nothing of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    /// `identity`, `hadamard` or `calibrated`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transform: Option<TransformName>,
    /// Bits per channel: 2, 4 or 8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits: Option<u8>,
    /// Runs of channels as [sixteenths of head_dim, bits].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<Vec<(usize, u8)>>,
    /// Elements that share parameters; 0 is the whole head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
    /// Quantile to which magnitudes are clamped; 1 clamps nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f32>,
    /// Whether tokens are divided by their norm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_norm: Option<bool>,
    /// Whether the mean of each page is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_mean: Option<bool>,
}

/// A transform by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransformName {
    Identity,
    Hadamard,
    Calibrated,
}

impl From<TransformName> for TransformKind {
    fn from(name: TransformName) -> Self {
        match name {
            TransformName::Identity => Self::Identity,
            TransformName::Hadamard => Self::Hadamard,
            TransformName::Calibrated => Self::Calibrated,
        }
    }
}

impl SideChange {
    /// Whether anything changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// `side` of the method `name`, changed.
    ///
    /// # Errors
    /// A usage error where the side has nothing of the kind: the exact side has no quantiser.
    pub fn apply(&self, side: &Side, name: &str) -> Result<Side> {
        let mut side = side.clone();
        if let Some(transform) = self.transform {
            side.transform = transform.into();
        }
        if self.exact {
            side.quantizer = None;
        }
        let rest = Self {
            exact: false,
            transform: None,
            ..self.clone()
        };
        if rest.is_empty() {
            return Ok(side);
        }
        let Some(quantizer) = &mut side.quantizer else {
            return Err(Error::usage(format!(
                "method {name}: a side that is kept exact has no bits, groups, clips, norms or \
                 means to change: leave them out"
            )));
        };
        if let Some(bits) = self.bits {
            quantizer.bits = ChannelBits::Uniform(bits);
        }
        if let Some(segments) = &self.segments {
            let segments = segments
                .iter()
                .map(|&(sixteenths, bits)| Segment::new(sixteenths, bits));
            quantizer.bits = ChannelBits::Segments(segments.collect());
        }
        if let Some(group) = self.group {
            quantizer.group_size = (group > 0).then_some(group);
        }
        if let Some(clip) = self.clip {
            quantizer.clip = (clip < 1.0).then_some(clip);
        }
        if let Some(token_norm) = self.token_norm {
            quantizer.token_norm = token_norm;
        }
        if let Some(page_mean) = self.page_mean {
            quantizer.page_mean = page_mean;
        }
        Ok(side)
    }

    /// The changes in words, for tables.
    pub fn words(&self, side: &str) -> Vec<String> {
        let mut words = Vec::new();
        if self.exact {
            words.push(format!("{side} exact"));
        }
        if let Some(transform) = self.transform {
            words.push(format!("{side} {transform:?}").to_lowercase());
        }
        if let Some(bits) = self.bits {
            words.push(format!("{side} {bits} bits"));
        }
        if let Some(segments) = &self.segments {
            let parts: Vec<_> = segments
                .iter()
                .map(|(sixteenths, bits)| format!("{sixteenths}x{bits}"))
                .collect();
            words.push(format!("{side} bits {}", parts.join("+")));
        }
        if let Some(group) = self.group {
            words.push(format!("{side} group {group}"));
        }
        if let Some(clip) = self.clip {
            words.push(format!("{side} clip {clip}"));
        }
        if let Some(norm) = self.token_norm {
            let with = if norm { "with" } else { "without" };
            words.push(format!("{side} {with} token norm"));
        }
        if let Some(mean) = self.page_mean {
            let with = if mean { "with" } else { "without" };
            words.push(format!("{side} {with} page means"));
        }
        words
    }
}
