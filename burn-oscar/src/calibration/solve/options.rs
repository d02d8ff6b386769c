//! What the solver is asked for.

use super::rope::Rope;
use crate::error::{Error, Result};

/// The method that is solved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// `oscar`: `U H P` for keys and values, clips.
    Oscar,
    /// `transform_coded`: keys in the eigenbasis, sorted by importance; values by Hadamard.
    TransformCoded,
}

impl Target {
    /// The method's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Oscar => "oscar",
            Self::TransformCoded => "transform_coded",
        }
    }
}

/// Whose eigenbasis the keys are turned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyTarget {
    /// The second moment of the queries, `C_Q`: what a key's error does to the logits.
    Queries,
    /// That of the keys themselves: OSCAR's ablation, and plain key PCA.
    Keys,
}

/// Whose eigenbasis the values are turned to; only for `oscar`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueTarget {
    /// Values weighted by the squared attention weights on them.
    Attended,
    /// Values weighted by the softmax-free proxy of OSCAR's code.
    Proxy,
    /// Values as they come.
    Values,
}

/// What is subtracted from keys and values before they are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Centring {
    /// Nothing, as published.
    None,
    /// The mean of the calibration texts, in the artifact. `transform_coded` then wants
    /// [`Method::with_page_means(false)`](crate::Method::with_page_means).
    Mean,
    /// The mean of each page, by the cache: `transform_coded` as it comes.
    Page,
}

/// How the clips are chosen; only for `oscar`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clips {
    /// On a grid, none included, by the error of the sampled tokens as attention sees it; per layer
    /// and side.
    Searched,
    /// The same for all layers.
    Fixed {
        /// Quantile of the magnitudes of a key, in (0, 1).
        key: f32,
        /// Quantile of the magnitudes of a value, in (0, 1).
        value: f32,
    },
}

/// How bits are given to channels; only for `transform_coded`. Budgets are in bits per value of
/// the keys, 8-bit scales included, page means not (the method itself spends 2.25 at head_dim 64).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Allocate {
    /// As the method has it: 4 bits for a quarter, 2 for a half, none for the rest.
    Fixed,
    /// The best within a budget that every layer has.
    PerLayer {
        /// Bits per value of each layer's keys.
        bits: f64,
    },
    /// The best within a budget that the layers share.
    AcrossLayers {
        /// Bits per value of all keys.
        bits: f64,
    },
}

/// How statistics become a calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct SolveOptions {
    /// The method.
    pub target: Target,
    /// One basis for each KV head, or one for all of a layer.
    pub per_head: bool,
    /// Whether keys and values are turned to an eigenbasis at all (`U`).
    pub eigenbasis: bool,
    /// Whether a Hadamard matrix follows (`H`): over the head, or inside segments.
    pub hadamard: bool,
    /// Whether OSCAR's bit-reversed order follows (`P`), where head_dim is a power of two.
    pub reversal: bool,
    /// Whose eigenbasis the keys are turned to.
    pub key_target: KeyTarget,
    /// Whose eigenbasis the values are turned to.
    pub value_target: ValueTarget,
    /// What is subtracted first.
    pub centring: Centring,
    /// How clips are chosen.
    pub clips: Clips,
    /// How bits are given to channels.
    pub allocate: Allocate,
    /// Whether queries and keys count by how much of the attention an error would change, or all the
    /// same. Without effect where no text was longer than the windows. For centring by the mean of the
    /// texts, only the queries.
    pub sensitivity: bool,
    /// Added to the energies by which channels are sorted, in units of their mean.
    pub damping: f64,
    /// The model's rotary embedding, by which statistics reach further than the texts.
    pub rope: Option<Rope>,
    /// Positions that will be served (default: those of the longest text). Longer ones want
    /// `rope`.
    pub served_length: Option<usize>,
}

impl SolveOptions {
    /// `oscar` with a basis and means for each KV head, true attention weights, and the clips as
    /// published: searched ones leave less squared error and no better model.
    pub fn oscar() -> Self {
        Self {
            target: Target::Oscar,
            per_head: true,
            eigenbasis: true,
            hadamard: true,
            reversal: true,
            key_target: KeyTarget::Queries,
            value_target: ValueTarget::Attended,
            centring: Centring::Mean,
            clips: Clips::Fixed {
                key: 0.96,
                value: 0.92,
            },
            allocate: Allocate::Fixed,
            sensitivity: false,
            damping: 0.0,
            rope: None,
            served_length: None,
        }
    }

    /// `oscar` as in arXiv 2605.17757 and its code: one basis for a layer, the softmax-free proxy,
    /// no means.
    pub fn oscar_as_published() -> Self {
        Self {
            per_head: false,
            value_target: ValueTarget::Proxy,
            centring: Centring::None,
            ..Self::oscar()
        }
    }

    /// `transform_coded` as the preset is: page means, channels sorted by what is left within
    /// blocks.
    pub fn transform_coded() -> Self {
        Self {
            target: Target::TransformCoded,
            centring: Centring::Page,
            sensitivity: true,
            damping: 0.01,
            ..Self::oscar()
        }
    }

    /// `transform_coded` with the means of the calibration texts in place of page means; to be
    /// used with [`Method::with_page_means(false)`](crate::Method::with_page_means).
    pub fn transform_coded_with_means() -> Self {
        Self {
            centring: Centring::Mean,
            ..Self::transform_coded()
        }
    }

    /// The same, for positions up to `served_length`, reached by the model's rotary embedding.
    #[must_use]
    pub fn with_rope(mut self, rope: Rope, served_length: usize) -> Self {
        self.rope = Some(rope);
        self.served_length = Some(served_length);
        self
    }

    pub(super) fn validate(&self, head_dim: usize) -> Result<()> {
        let fail = |option, value: String, reason| {
            Err(Error::Option {
                option,
                value,
                reason,
            })
        };
        if self.target == Target::Oscar {
            if self.centring == Centring::Page {
                return fail(
                    "centring",
                    "Page".into(),
                    "the pages of `oscar` have no means: use Mean or None",
                );
            }
            if self.allocate != Allocate::Fixed {
                return fail(
                    "allocate",
                    format!("{:?}", self.allocate),
                    "the codes of `oscar` all have the same bits: use Fixed",
                );
            }
        }
        if !(self.damping.is_finite() && self.damping >= 0.0) {
            return fail(
                "damping",
                self.damping.to_string(),
                "it is finite and at least 0",
            );
        }
        if let Clips::Fixed { key, value } = self.clips {
            for clip in [key, value] {
                if !(clip > 0.0 && clip < 1.0) {
                    return fail(
                        "clip",
                        clip.to_string(),
                        "a quantile lies between 0 and 1, both excluded",
                    );
                }
            }
        }
        if let Allocate::PerLayer { bits } | Allocate::AcrossLayers { bits } = self.allocate
            && !(bits > 0.0 && bits.is_finite())
        {
            return fail("bits", bits.to_string(), "a budget is finite and above 0");
        }
        match &self.rope {
            Some(rope) => rope.validate(head_dim),
            None => Ok(()),
        }
    }
}
