//! The solver's options as those of a command line.

use burn_oscar::calibration::solve::{
    Allocate, Centring, Clips, KeyTarget, SolveOptions, ValueTarget,
};
use clap::{Args, ValueEnum};
use models::{cli::positive, config::ModelConfig};

use super::rope_of;

/// What is solved for, and how.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Solver")]
pub struct SolveArgs {
    /// The method that the artifact is for
    #[arg(long, value_enum, default_value_t = MethodName::TransformCoded, value_name = "METHOD")]
    pub method: MethodName,

    /// Positions that the artifact will serve [default: those that the model was trained for]
    ///
    /// Statistics of shorter texts are turned through the rest by the model's rotary embedding.
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    pub serve_length: Option<usize>,

    /// Do not turn statistics by the rotary embedding: serve the windows' length only
    #[arg(long, conflicts_with = "serve_length")]
    pub no_rope: bool,

    /// OSCAR as published: per layer, proxy weights, no means
    #[arg(long)]
    pub as_published: bool,

    /// One basis for all KV heads of a layer
    #[arg(long)]
    pub per_layer: bool,

    /// What is subtracted from keys and values [default: mean for oscar, page for transform_coded]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub centring: Option<CentringName>,

    /// Subtract nothing, the same as --centring none
    #[arg(long, conflicts_with = "centring")]
    pub no_centre: bool,

    /// Leave out the eigenbasis U
    #[arg(long)]
    pub no_eigenbasis: bool,

    /// Leave out the Hadamard matrix H
    #[arg(long)]
    pub no_hadamard: bool,

    /// Leave out the bit-reversed order P
    #[arg(long)]
    pub no_reversal: bool,

    /// Whose eigenbasis the keys are turned to
    #[arg(long, value_enum, value_name = "OF")]
    pub key_target: Option<KeyTargetName>,

    /// Whose eigenbasis the values are turned to
    #[arg(long, value_enum, value_name = "OF")]
    pub value_target: Option<ValueTargetName>,

    /// oscar: clips of keys and values, or `searched` by layer [default: 0.96/0.92]
    #[arg(long, value_name = "KEY/VALUE|searched", value_parser = clips)]
    pub clips: Option<Clips>,

    /// transform_coded: search the bits of channels, within so many bits per value of the keys
    #[arg(long, value_name = "BITS")]
    pub bits: Option<f64>,

    /// The bits of --bits are shared by all layers
    #[arg(long, requires = "bits")]
    pub across_layers: bool,

    /// Whether queries and keys count by what an error changes, or all the same [default: yes for
    /// transform_coded]
    #[arg(long, value_name = "YES|NO", value_parser = yes_or_no)]
    pub sensitivity: Option<bool>,

    /// transform_coded: adds so much of their mean to the energies of queries, against queries that
    /// the texts do not have [default: 0.01]
    #[arg(long, value_name = "SHARE")]
    pub damping: Option<f64>,
}

/// The calibrated methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum MethodName {
    /// A rotation per KV head, clips, flat bits
    Oscar,
    /// An eigenbasis per KV head, bits by importance
    TransformCoded,
}

/// What is subtracted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CentringName {
    /// Nothing
    None,
    /// The mean of the texts; transform_coded then wants "page_means": false in the grid
    Mean,
    /// The mean of each page, by the cache
    Page,
}

/// Bases of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeyTargetName {
    /// The queries that meet them
    Queries,
    /// The keys themselves
    Keys,
}

/// Bases of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ValueTargetName {
    /// Values as attention weighs them
    Attended,
    /// Values weighted by the softmax-free proxy
    Proxy,
    /// Values as they come
    Values,
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("write yes or no".to_string()),
    }
}

/// Parses `KEY/VALUE` or `searched`; the solver checks the range.
fn clips(text: &str) -> Result<Clips, String> {
    if text == "searched" {
        return Ok(Clips::Searched);
    }
    let parsed = text.split_once('/').and_then(|(key, value)| {
        Some(Clips::Fixed {
            key: key.parse().ok()?,
            value: value.parse().ok()?,
        })
    });
    parsed.ok_or_else(|| "write two quantiles, as in 0.96/0.92, or `searched`".to_string())
}

impl SolveArgs {
    /// A method with everything else as the solver has it, for the model's own length.
    pub fn preset(method: MethodName, as_published: bool) -> Self {
        Self {
            method,
            serve_length: None,
            no_rope: false,
            as_published,
            per_layer: false,
            centring: None,
            no_centre: false,
            no_eigenbasis: false,
            no_hadamard: false,
            no_reversal: false,
            key_target: None,
            value_target: None,
            clips: None,
            bits: None,
            across_layers: false,
            sensitivity: None,
            damping: None,
        }
    }

    /// The solver's options for statistics of texts of up to `gathered` tokens.
    pub fn options(&self, config: &ModelConfig, gathered: usize) -> SolveOptions {
        let mut options = match (self.method, self.as_published) {
            (MethodName::Oscar, false) => SolveOptions::oscar(),
            (MethodName::Oscar, true) => SolveOptions::oscar_as_published(),
            (MethodName::TransformCoded, _) => SolveOptions::transform_coded(),
        };
        options.per_head &= !self.per_layer;
        options.eigenbasis &= !self.no_eigenbasis;
        options.hadamard &= !self.no_hadamard;
        options.reversal &= !self.no_reversal;
        let centring = match self.no_centre {
            true => Some(CentringName::None),
            false => self.centring,
        };
        if let Some(centring) = centring {
            options.centring = match centring {
                CentringName::None => Centring::None,
                CentringName::Mean => Centring::Mean,
                CentringName::Page => Centring::Page,
            };
        }
        if let Some(target) = self.key_target {
            options.key_target = match target {
                KeyTargetName::Queries => KeyTarget::Queries,
                KeyTargetName::Keys => KeyTarget::Keys,
            };
        }
        if let Some(target) = self.value_target {
            options.value_target = match target {
                ValueTargetName::Attended => ValueTarget::Attended,
                ValueTargetName::Proxy => ValueTarget::Proxy,
                ValueTargetName::Values => ValueTarget::Values,
            };
        }
        if let Some(clips) = self.clips {
            options.clips = clips;
        }
        if let Some(bits) = self.bits {
            options.allocate = match self.across_layers {
                true => Allocate::AcrossLayers { bits },
                false => Allocate::PerLayer { bits },
            };
        }
        if let Some(sensitivity) = self.sensitivity {
            options.sensitivity = sensitivity;
        }
        if let Some(damping) = self.damping {
            options.damping = damping;
        }
        if !self.no_rope {
            let trained = config.max_position_embeddings.max(gathered);
            let length = self.serve_length.unwrap_or(trained);
            options = options.with_rope(rope_of(config), length);
        }
        options
    }
}
