//! Arguments that the benchmarks share.

use std::path::PathBuf;

use clap::Args;

use crate::device::DeviceName;
use crate::shape::Shape;
use crate::timing::Effort;

/// The device, and how much to measure.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Where to run: numbers mean something on cuda; cpu and flex show that it works
    #[arg(long, value_enum, default_value = "cuda")]
    pub device: DeviceName,
    /// Timed samples of each row, after warm-up; the median, least and greatest are printed
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(5..))]
    pub repeats: u16,
    /// Short samples and few copies of the input: to try a benchmark out, not to quote it
    #[arg(long)]
    pub quick: bool,
    /// Folder for the JSON file (default: benches/results/DEVICE)
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Also time operations that have no fused kernel on this device; their rows say so
    #[arg(long)]
    pub allow_portable: bool,
}

impl Common {
    /// How much to time.
    pub fn effort(&self) -> Effort {
        Effort {
            repeats: self.repeats.into(),
            quick: self.quick,
        }
    }
}

/// Shapes and methods.
#[derive(Args, Clone, Debug)]
pub struct Problems {
    /// Batch and context of each problem, comma-separated: 1x8192,8x32K
    #[arg(long, value_delimiter = ',', value_name = "BxC")]
    pub shapes: Vec<Shape>,
    /// Methods, comma-separated; `exact` is the cache in BF16
    #[arg(
        long,
        value_delimiter = ',',
        default_values = crate::methods::DEFAULT,
        value_name = "NAME"
    )]
    pub methods: Vec<String>,
}

impl Problems {
    /// The given shapes, or `default`.
    pub fn shapes_or(&self, default: &[Shape]) -> Vec<Shape> {
        if self.shapes.is_empty() {
            default.to_vec()
        } else {
            self.shapes.clone()
        }
    }
}
