//! Joins the measurements with the BF16 baseline into a table and a drawing.

use std::path::{Path, PathBuf};

use benches::report::{TARGETS, join, plot, table};
use benches::results::Results;
use benches::{Error, Result};
use clap::Args;

/// Joins attention.json with baseline.json into a table and a drawing
///
/// Joins attention.json with baseline.json: a Markdown table with ratios and targets, and a
/// drawing of microseconds by shape. Reads and writes files only; needs no device. What is
/// missing is listed under the table.
///
///   bench report --results benches/results/nvidia-h200 --table docs/decode.md --plot docs/decode.svg
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// Folder that holds attention.json and baseline.json
    #[arg(
        long,
        value_name = "DIR",
        default_value = "benches/results/nvidia-h200"
    )]
    results: PathBuf,
    /// The measurements, if they are elsewhere
    #[arg(long, value_name = "FILE")]
    attention: Option<PathBuf>,
    /// The baseline, if it is elsewhere
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Where the table goes (default: it is only printed)
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Where the drawing goes, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

pub fn run(arguments: Arguments) -> Result<()> {
    let file = |given: &Option<PathBuf>, name: &str| {
        given
            .clone()
            .unwrap_or_else(|| arguments.results.join(name))
    };
    let attention = Results::read(&file(&arguments.attention, "attention.json"))?;
    let baseline = Results::read(&file(&arguments.baseline, "baseline.json"))?;
    let report = join(&attention, &baseline, TARGETS)?;
    let text = table(&report);
    print!("{text}");
    if let Some(path) = &arguments.table {
        write(path, &text)?;
    }
    if let Some(path) = &arguments.plot {
        write(path, &plot(&report)?)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|source| Error::File {
        path: path.into(),
        source,
    })
}
