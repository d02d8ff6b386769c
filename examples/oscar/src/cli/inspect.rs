//! `oscar inspect`: what is in a calibration artifact, or in statistics.

use std::{collections::BTreeMap, fs, path::PathBuf};

use burn_oscar::{
    Calibration,
    calibration::{
        LayerCalibration, Matrices, SideCalibration, Statistics,
        statistics::{HeadStatistics, LayerStatistics},
    },
};
use clap::Args;
use models::{
    cli::{print, print_json},
    table::table,
};
use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, Result};

/// Show what is in a calibration artifact, or in statistics
#[derive(Debug, Args)]
#[command(
    long_about = "Show what is in a calibration artifact or in the statistics that one is made from, after \
        checking all of it. Of an artifact: the method and \
        the model it was made for, the positions it serves, the tokens it comes from, and for each \
        layer which matrices, means, clips and bits it has. What a layer does not have is as the \
        method has it. Of statistics: tokens, windows, and for each layer medians of the norms.",
    after_long_help = "Examples:\n  \
        oscar inspect oscar.safetensors\n  \
        oscar inspect transform_coded.safetensors --json\n  \
        oscar inspect transform_coded.statistics.safetensors"
)]
pub struct InspectArgs {
    /// The artifact or statistics, a .safetensors file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// An artifact without its numbers.
#[derive(Debug, Serialize)]
struct Artifact {
    method: String,
    model_fingerprint: String,
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    served_length: usize,
    tokens: usize,
    notes: BTreeMap<String, String>,
    per_layer: Vec<Layer>,
}

#[derive(Debug, Serialize)]
struct Layer {
    key: Side,
    value: Side,
}

/// What a layer has for its keys, or for its values.
#[derive(Debug, PartialEq, Serialize)]
struct Side {
    /// `per_head`, `shared`, or nothing.
    transform: Option<&'static str>,
    /// Whether the transform is orthogonal, and so its own inverse, transposed.
    orthogonal: bool,
    mean: bool,
    clip: Option<f32>,
    /// (sixteenths of head_dim, bits)
    segments: Option<Vec<(usize, u8)>>,
}

impl Side {
    fn new(side: &SideCalibration) -> Self {
        let kind = |matrices: &Matrices| match matrices.heads {
            1 => "shared",
            _ => "per_head",
        };
        Self {
            transform: side.transform.as_ref().map(kind),
            orthogonal: side.inverse.is_none(),
            mean: side.mean.is_some(),
            clip: side.clip,
            segments: side.segments.as_ref().map(|segments| {
                let pairs = segments.iter().map(|s| (s.sixteenths, s.bits));
                pairs.collect()
            }),
        }
    }

    fn cells(&self) -> [String; 4] {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_string());
        let transform = self.transform.map(|kind| {
            let inverse = if self.orthogonal { "" } else { " and inverse" };
            format!("{}{inverse}", kind.replace('_', " "))
        });
        let segments = self.segments.as_ref().map(|segments| {
            let parts = segments
                .iter()
                .map(|(sixteenths, bits)| format!("{sixteenths}x{bits}"));
            parts.collect::<Vec<_>>().join("+")
        });
        [
            or_dash(transform),
            if self.mean { "yes" } else { "-" }.to_string(),
            or_dash(self.clip.map(|clip| clip.to_string())),
            or_dash(segments),
        ]
    }
}

impl Artifact {
    fn new(calibration: &Calibration) -> Self {
        let layer = |layer: &LayerCalibration| Layer {
            key: Side::new(&layer.key),
            value: Side::new(&layer.value),
        };
        Self {
            method: calibration.method().to_string(),
            model_fingerprint: calibration.fingerprint().to_string(),
            layers: calibration.n_layers(),
            kv_heads: calibration.n_kv_heads(),
            head_dim: calibration.head_dim(),
            served_length: calibration.served_length(),
            tokens: calibration.tokens(),
            notes: calibration.notes().clone(),
            per_layer: calibration.layers().iter().map(layer).collect(),
        }
    }

    fn text(&self) -> String {
        let mut layers = table([
            "layer",
            "key transform",
            "mean",
            "clip",
            "bits",
            "value transform",
            "mean",
            "clip",
            "bits",
        ]);
        for (index, layer) in self.per_layer.iter().enumerate() {
            let sides = [layer.key.cells(), layer.value.cells()].concat();
            layers.add_row([vec![index.to_string()], sides].concat());
        }
        let notes = self.notes.iter();
        let notes: String = notes
            .map(|(key, value)| format!("{key} {value}\n"))
            .collect();
        format!(
            "method {}, made for model {}\n{} layers, {} KV heads of {} channels\nserves {} \
             positions, from statistics of {} tokens\n{notes}\n{layers}\n\nA dash is what the method has. \
             Bits are sixteenths of the channels x bits, in the order of the transform's output.\n",
            self.method,
            self.model_fingerprint,
            self.layers,
            self.kv_heads,
            self.head_dim,
            self.served_length,
            self.tokens,
        )
    }
}

/// Statistics without their sums.
#[derive(Debug, Serialize)]
struct Gathered {
    model_fingerprint: String,
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    sinks: usize,
    tokens: u64,
    windows: u64,
    longest: u64,
    per_layer: Vec<GatheredLayer>,
}

/// One layer, as a mean over its KV heads.
#[derive(Debug, Serialize)]
struct GatheredLayer {
    query_heads: usize,
    keys: f64,
    median_key_norm: f64,
    median_value_norm: f64,
    sampled: usize,
}

impl Gathered {
    fn new(statistics: &Statistics) -> Self {
        let config = statistics.config();
        let layer = |layer: &LayerStatistics| {
            let heads = layer.heads.len().max(1) as f64;
            let mean = |value: &dyn Fn(&HeadStatistics) -> f64| {
                layer.heads.iter().map(value).sum::<f64>() / heads
            };
            GatheredLayer {
                query_heads: layer.query_heads,
                keys: mean(&|head| head.keys.weight()),
                median_key_norm: mean(&|head| head.key_norms.quantile(0.5).unwrap_or(0.0)),
                median_value_norm: mean(&|head| head.value_norms.quantile(0.5).unwrap_or(0.0)),
                sampled: layer.sample(0).count(),
            }
        };
        Self {
            model_fingerprint: config.fingerprint.clone(),
            layers: config.n_layers,
            kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
            sinks: config.sinks,
            tokens: statistics.tokens(),
            windows: statistics.sequences(),
            longest: statistics.longest(),
            per_layer: statistics.layers().iter().map(layer).collect(),
        }
    }

    fn text(&self) -> String {
        let mut layers = table([
            "layer",
            "query heads",
            "keys",
            "key norm",
            "value norm",
            "sampled",
        ]);
        for (index, layer) in self.per_layer.iter().enumerate() {
            layers.add_row([
                index.to_string(),
                layer.query_heads.to_string(),
                format!("{:.0}", layer.keys),
                format!("{:.2}", layer.median_key_norm),
                format!("{:.2}", layer.median_value_norm),
                layer.sampled.to_string(),
            ]);
        }
        format!(
            "statistics of model {}\n{} layers, {} KV heads of {} channels\n{} tokens in {} windows \
             of up to {}; the first {} of each count as queries only\n\n{layers}\n\nNorms are medians, \
             to a quarter of an octave, of the KV heads' mean.\n",
            self.model_fingerprint,
            self.layers,
            self.kv_heads,
            self.head_dim,
            self.tokens,
            self.windows,
            self.longest,
            self.sinks,
        )
    }
}

/// Whether the header of a file says that it holds statistics. Damaged files are left to whoever
/// loads them.
fn is_statistics(bytes: &[u8]) -> bool {
    let header = || {
        let length = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
        let header = bytes.get(8..8usize.checked_add(usize::try_from(length).ok()?)?)?;
        let header: Value = serde_json::from_slice(header).ok()?;
        Some(header["__metadata__"]["format"] == "burn-oscar-statistics")
    };
    header().unwrap_or(false)
}

impl InspectArgs {
    /// Prints the artifact.
    pub fn run(self) -> Result<()> {
        let bytes = fs::read(&self.file).map_err(Error::file(&self.file))?;
        if is_statistics(&bytes) {
            let statistics = Gathered::new(&Statistics::load(&self.file)?);
            let printed = match self.json {
                true => print_json(&statistics),
                false => print(&statistics.text()),
            };
            return Ok(printed?);
        }
        let artifact = Artifact::new(&Calibration::from_bytes(&bytes, &self.file)?);
        let printed = match self.json {
            true => print_json(&artifact),
            false => print(&artifact.text()),
        };
        Ok(printed?)
    }
}
