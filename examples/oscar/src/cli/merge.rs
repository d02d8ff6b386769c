//! `oscar merge`: parts of a calibration added up.

use std::path::PathBuf;

use clap::Args;
use models::cli::print;

use super::calibrate::merged;
use crate::error::Result;

/// Add up the statistics of several parts
#[derive(Debug, Args)]
#[command(
    long_about = "Add up the statistics that several runs of `calibrate --shard` have written.\n\n\
        The sums are exact, so the result is the same to the bit in any order, and the same as that of \
        one run over everything. All parts must be of one model.",
    after_long_help = "Examples:\n  \
        oscar merge first.safetensors second.safetensors --out all.safetensors\n  \
        oscar calibrate --model model.gguf --statistics all.safetensors --out tc.safetensors"
)]
pub struct MergeArgs {
    /// The parts
    #[arg(value_name = "FILES", required = true)]
    parts: Vec<PathBuf>,

    /// The sum
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

impl MergeArgs {
    /// Adds up and writes.
    pub fn run(self) -> Result<()> {
        let sum = merged(&self.parts)?;
        sum.save(&self.out)?;
        Ok(print(&format!(
            "{} tokens in {} windows of up to {}\n{}\n",
            sum.tokens(),
            sum.sequences(),
            sum.longest(),
            self.out.display()
        ))?)
    }
}
