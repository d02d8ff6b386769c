//! `oscar report`: from rows, or from a model and texts, to pages.

mod study;

use std::path::PathBuf;

use clap::Args;
use models::cli::{ModelArgs, Session, positive, print};

use crate::{
    error::{Error, Result},
    report::document,
    rows,
};
use study::Study;

/// Make a page with tables and figures, of measured rows or of a model and texts
#[derive(Debug, Args)]
#[command(
    // What is required only where a model is given.
    mut_arg("model", |model| model.required(false)),
    long_about = "Make a page with tables and figures of what `evaluate` measured.\n\n\
        Written are report.md with its figures as SVG files, and report.html, which holds everything \
        itself. For each task there is a table of all methods; for perplexity KL by position and \
        against bytes with the Pareto front; where a method was measured with several settings, what \
        they do; where there are artifacts of several sizes, KL by size. Spreads over windows are \
        always printed.\n\n\
        With --model everything is done in one go: artifacts are made from --calibration-text, all \
        methods are measured on --text, and the page is written. Statistics, artifacts and rows are \
        kept in the folder, so a run that was stopped goes on where it was. At its own sizes and with \
        a model of 135M parameters that takes less than half an hour on two CPU cores.",
    after_long_help = "Examples:\n  \
        oscar report rows.jsonl --out report\n  \
        oscar report presets.jsonl ablations.jsonl --out report\n  \
        oscar report --model model.gguf --text test.txt --calibration-text valid.txt --out report\n  \
        oscar report --model model.gguf --text test.txt --calibration-text valid.txt \\\n    \
        --question-file gsm8k.jsonl --window 8192 --out report"
)]
pub struct ReportArgs {
    /// Rows of `oscar evaluate --out`; of equal measurements the last counts
    #[arg(value_name = "FILES", required_unless_present = "model")]
    rows: Vec<PathBuf>,

    #[command(flatten)]
    model: Option<ModelArgs>,

    /// With --model: the text that is measured on, a UTF-8 file
    #[arg(long, value_name = "FILE", requires = "model", help_heading = "Study")]
    text: Option<PathBuf>,

    /// With --model: the text that is calibrated on, another one
    #[arg(long, value_name = "FILE", requires = "model", help_heading = "Study")]
    calibration_text: Option<PathBuf>,

    /// With --model: questions to measure on as well, JSON lines with `question` and `answer`
    #[arg(long, value_name = "FILE", requires = "model", help_heading = "Study")]
    question_file: Option<PathBuf>,

    /// With --model: tokens of a window
    #[arg(long, default_value_t = 2048, value_name = "TOKENS", value_parser = positive,
          help_heading = "Study")]
    window: usize,

    /// With --model: windows that are measured
    #[arg(long, default_value_t = 2, value_name = "COUNT", value_parser = positive,
          help_heading = "Study")]
    windows: usize,

    /// With --model: windows that are calibrated on
    #[arg(long, default_value_t = 4, value_name = "COUNT", value_parser = positive,
          help_heading = "Study")]
    calibration_windows: usize,

    /// With --model: the first position of the headline
    #[arg(long, default_value_t = 512, value_name = "POSITION", value_parser = positive,
          help_heading = "Study")]
    past: usize,

    /// The folder that is written to, made if need be
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

impl ReportArgs {
    /// Measures what is missing, writes both pages and prints their paths.
    pub fn run(self) -> Result<()> {
        let mut rows = rows::read(&self.rows)?;
        if let Some(model) = &self.model {
            let study = self.study()?;
            let session = Session::open(model)?;
            rows.extend(study.run(&session, &model.model, &self.out)?);
        }
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

    fn study(&self) -> Result<Study> {
        let (Some(text), Some(calibration_text)) = (&self.text, &self.calibration_text) else {
            return Err(Error::usage(
                "--model makes a whole study: give --text FILE to measure on and --calibration-text \
                 FILE, another one, to calibrate on",
            ));
        };
        Ok(Study {
            text: text.clone(),
            calibration_text: calibration_text.clone(),
            questions: self.question_file.clone(),
            window: self.window,
            windows: self.windows,
            calibration_windows: self.calibration_windows,
            past: self.past,
        })
    }
}
