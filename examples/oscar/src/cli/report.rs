//! `oscar report`: from rows to pages.

use std::path::PathBuf;

use clap::Args;
use models::cli::print;

use crate::{
    error::{Error, Result},
    report::document,
    rows,
};

/// Make a page with tables and figures of measured rows
#[derive(Debug, Args)]
#[command(
    long_about = "Make a page with tables and figures of what `evaluate` measured.\n\n\
        Written are report.md with its figures as SVG files, and report.html, which holds everything \
        itself. For each task there is a table of all methods; for perplexity KL by position and \
        against bytes with the Pareto front; where a method was measured with several settings, what \
        they do; where there are artifacts of several sizes, KL by size. Spreads over windows are \
        always printed.",
    after_long_help = "Examples:\n  \
        oscar report rows.jsonl --out report\n  \
        oscar report presets.jsonl ablations.jsonl --out report"
)]
pub struct ReportArgs {
    /// Rows of `oscar evaluate --out`; of equal measurements the last counts
    #[arg(value_name = "FILES", required = true)]
    rows: Vec<PathBuf>,

    /// The folder that is written to, made if need be
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

impl ReportArgs {
    /// Writes both pages and prints their paths.
    pub fn run(self) -> Result<()> {
        let rows = rows::read(&self.rows)?;
        if rows.is_empty() {
            return Err(Error::usage(
                "the files hold no rows: fill them with `oscar evaluate --out FILE`",
            ));
        }
        for path in document(&rows)?.write(&self.out)? {
            print(&format!("{}\n", path.display()))?;
        }
        Ok(())
    }
}
