//! `oscar inspect`: what is in a calibration artifact.

use std::path::PathBuf;

use burn_oscar::{
    Calibration,
    calibration::{LayerCalibration, Matrices, SideCalibration},
};
use clap::Args;
use models::{
    cli::{print, print_json},
    table::table,
};
use serde::Serialize;

use crate::error::Result;

/// Show what is in a calibration artifact
#[derive(Debug, Args)]
#[command(
    long_about = "Show what is in a calibration artifact, after checking all of it: the method and \
        the model it was made for, the positions it serves, the tokens it comes from, and for each \
        layer which matrices, means, clips and bits it has. What a layer does not have is as the \
        method has it.",
    after_long_help = "Examples:\n  \
        oscar inspect oscar.safetensors\n  \
        oscar inspect transform_coded.safetensors --json"
)]
pub struct InspectArgs {
    /// The artifact, a .safetensors file
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
        format!(
            "method {}, made for model {}\n{} layers, {} KV heads of {} channels\nserves {} \
             positions, from statistics of {} tokens\n\n{layers}\n\nA dash is what the method has. \
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

impl InspectArgs {
    /// Prints the artifact.
    pub fn run(self) -> Result<()> {
        let artifact = Artifact::new(&Calibration::load(&self.file)?);
        if self.json {
            print_json(&artifact)?;
        } else {
            print(&artifact.text())?;
        }
        Ok(())
    }
}
