//! The command line: one file per sub-command.

use clap::{Parser, Subcommand};

mod calibrate;
mod evaluate;
mod inspect;
mod merge;
mod report;

use crate::error::Result;

/// Calibrate 2-bit key/value caches and measure what they cost.
#[derive(Debug, Parser)]
#[command(
    name = "oscar",
    version,
    about,
    long_about = "Calibrate 2-bit key/value caches and measure what they cost.\n\n\
        `calibrate` reads texts through a model and makes the artifact that `oscar` and \
        `transform_coded` need; `merge` adds up what several runs have read. `evaluate` runs texts, questions, hidden numbers and repeated passages through the packed \
        cache and through the exact one, and writes how far they are apart as JSON lines. `report` \
        makes pages with tables and figures of them. `inspect` shows what is in an \
        artifact or in statistics.\n\n\
        Results go to standard output; progress goes to standard error.",
    after_long_help = "Examples:\n  \
        oscar calibrate --model model.gguf --text wiki.txt --method transform_coded --out tc.safetensors\n  \
        oscar evaluate --model model.gguf --text wiki.txt --methods kivi,hadamard_centred --out rows.jsonl\n  \
        oscar evaluate --model model.gguf --grid grid.json --out rows.jsonl\n  \
        oscar report rows.jsonl --out report\n  \
        oscar inspect artifact.safetensors\n\n\
        `oscar help COMMAND` explains a command and all its options."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Calibrate(Box<calibrate::CalibrateArgs>),
    Merge(merge::MergeArgs),
    Evaluate(Box<evaluate::EvaluateArgs>),
    Report(report::ReportArgs),
    Inspect(inspect::InspectArgs),
}

impl Cli {
    /// Runs the sub-command that was asked for.
    ///
    /// # Errors
    /// Everything that can go wrong, ready to be printed.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Calibrate(args) => args.run(),
            Command::Merge(args) => args.run(),
            Command::Evaluate(args) => args.run(),
            Command::Report(args) => args.run(),
            Command::Inspect(args) => args.run(),
        }
    }
}

#[cfg(test)]
mod tests;
