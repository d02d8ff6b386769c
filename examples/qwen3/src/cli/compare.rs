//! `qwen3 compare`: all methods on the same text, in one table.

use std::path::PathBuf;

use burn_oscar::{Calibration, Method};
use clap::{Args, builder::PossibleValuesParser};
use models::cli::{CliError, ModelArgs, Session, print, print_json};

use super::{args::WindowArgs, perplexity::TextArgs};
use crate::report::{Comparison, Skipped, comparison_table};

/// Compare all methods on the same text, in one table
#[derive(Debug, Args)]
#[command(
    long_about = "Compare methods on the same windows of a text, in one table.\n\n\
        The measurements are those of `perplexity`. Where there are several windows, ± gives the \
        standard deviation over them. `times smaller` compares the bytes with those of the same \
        tokens in 16 bits; the exact cache itself has the device's own format, 32 bits on flex, and \
        so have the sinks and the recent tokens of the others. Calibrated methods are skipped unless their artifact is given.",
    after_long_help = "Examples:\n  \
        qwen3 compare --model model.gguf --text wiki.txt\n  \
        qwen3 compare --model model.gguf --text wiki.txt --methods exact,kivi,oscar_scaled --json\n  \
        qwen3 compare --model model.gguf --text wiki.txt --artifact oscar.safetensors \\\n    \
        --artifact transform_coded.safetensors"
)]
pub struct CompareArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    methods: MethodsArgs,
    #[command(flatten)]
    text: TextArgs,

    /// Print one JSON object instead of a table
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Several methods and the options that apply to all of them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Cache")]
pub struct MethodsArgs {
    /// The methods to run, separated by commas [default: all of them]
    #[arg(long, value_name = "METHODS", value_delimiter = ',',
          value_parser = PossibleValuesParser::new(Method::PRESETS.iter().copied()))]
    pub methods: Vec<String>,

    #[command(flatten)]
    pub windows: WindowArgs,

    /// Calibration artifact (.safetensors) of a calibrated method; may be repeated
    ///
    /// Each artifact names the method it was made for.
    #[arg(long, value_name = "FILE")]
    pub artifact: Vec<PathBuf>,
}

impl MethodsArgs {
    /// The methods that can run, and those that cannot, with the reason. Without `--methods`,
    /// `defaults` are considered.
    ///
    /// # Errors
    /// An artifact that is damaged; two artifacts for the same method.
    pub fn select(&self, defaults: &[&str]) -> Result<(Vec<Method>, Vec<Skipped>), CliError> {
        let mut artifacts: Vec<Calibration> = Vec::new();
        for path in &self.artifact {
            let artifact = Calibration::load(path)?;
            if artifacts.iter().any(|a| a.method() == artifact.method()) {
                return Err(CliError::Usage(format!(
                    "{} is a second artifact for method {}: give one for each method",
                    path.display(),
                    artifact.method()
                )));
            }
            artifacts.push(artifact);
        }
        let mut names: Vec<&str> = if self.methods.is_empty() {
            defaults.to_vec()
        } else {
            self.methods.iter().map(String::as_str).collect()
        };
        if self.methods.is_empty() {
            let extra = artifacts.iter().map(Calibration::method);
            let extra: Vec<_> = extra.filter(|name| !names.contains(name)).collect();
            names.extend(extra);
        }
        let (mut methods, mut skipped) = (Vec::new(), Vec::new());
        for name in names {
            let calibration = artifacts.iter().find(|artifact| artifact.method() == name);
            let method = if calibration.is_none() && Method::needs_calibration(name) {
                Err("calibrated: give its artifact with --artifact FILE".to_string())
            } else {
                self.windows
                    .method(name, calibration)
                    .map_err(|error| error.to_string())
            };
            match method {
                Ok(method) => methods.push(method),
                Err(reason) => skipped.push(Skipped {
                    method: name.to_string(),
                    reason,
                }),
            }
        }
        Ok((methods, skipped))
    }
}

impl CompareArgs {
    /// Scores every method that can run.
    pub fn run(self) -> Result<(), CliError> {
        let session = Session::open(&self.model)?;
        let (methods, skipped) = self.methods.select(Method::PRESETS)?;
        if methods.is_empty() {
            let reasons: Vec<_> = skipped
                .iter()
                .map(|Skipped { method, reason }| format!("{method}: {reason}"))
                .collect();
            return Err(CliError::Usage(format!(
                "none of the methods can run\n{}",
                reasons.join("\n")
            )));
        }
        let scores = self.text.evaluate(&session, &methods)?;
        if self.json {
            print_json(&Comparison {
                model: &self.model.model.to_string_lossy(),
                text: &self.text.text.to_string_lossy(),
                methods: &scores,
                skipped: &skipped,
            })?;
        } else {
            print(&format!("{}\n", comparison_table(&scores)))?;
            for Skipped { method, reason } in &skipped {
                print(&format!("{method} skipped: {reason}\n"))?;
            }
        }
        Ok(())
    }
}
