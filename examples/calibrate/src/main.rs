//! Calibrates a checkpoint as a Burn learner job: progress, checkpoints, early stop, and a held-out
//! measurement. A killed job goes on where its folder's last checkpoint is.
//!
//! `oscar calibrate` does the same with more options; this is how a program of its own would.

use std::{error::Error, path::PathBuf, process::ExitCode};

use burn_oscar::calibration::learner::{CalibrationJob, Windows};
use burn_oscar::calibration::solve::SolveOptions;
use calibrate::{Frozen, rope_of, summary};
use clap::Parser;
use models::cli::{ModelArgs, Session, positive, read_text};

/// Calibrate a model's 2-bit key/value cache as a Burn learner job
///
/// Reads windows of a text through the model with an exact cache that observes attention, and
/// solves what it saw for the transforms of `transform_coded`. Nothing is trained: there are no
/// gradients. Kill it and run it again: it goes on from its last checkpoint.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example:\n  calibrate --model model.gguf --text train.txt --valid valid.txt --folder job"
)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,

    /// The text to observe, a UTF-8 file
    #[arg(long, value_name = "FILE")]
    text: PathBuf,

    /// A held-out text; two windows of it are attended to with and without the artifact
    #[arg(long, value_name = "FILE")]
    valid: Option<PathBuf>,

    /// Where checkpoints, logs and the artifact go
    #[arg(long, value_name = "FOLDER")]
    folder: PathBuf,

    /// Windows of the text, at most
    #[arg(long, default_value_t = 8, value_name = "COUNT", value_parser = positive)]
    windows: usize,

    /// Tokens of a window
    #[arg(long, default_value_t = 2048, value_name = "TOKENS", value_parser = positive)]
    window: usize,

    /// Stop early when the bases move by less than this, 0 to 1, between two checkpoints
    #[arg(long, value_name = "DISTANCE")]
    tolerance: Option<f64>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let session = Session::open(&arguments.model)?;
    let config = &session.loaded.config;
    let windows = |path: &PathBuf, count| -> Result<Windows, Box<dyn Error>> {
        let tokens = session.tokenizer().encode(&read_text(path)?, false)?;
        Ok(Windows::of_corpus(&tokens, arguments.window).take(count))
    };
    let train = windows(&arguments.text, arguments.windows)?;
    let valid = match &arguments.valid {
        Some(path) => windows(path, 2)?,
        None => Windows::of([]),
    };
    let options =
        SolveOptions::transform_coded().with_rope(rope_of(config), config.max_position_embeddings);
    let mut job = CalibrationJob::new(
        &arguments.folder,
        session.cache_config(),
        session.device.clone(),
    )
    .with_options(options)
    .with_checkpoint_every(1);
    if let Some(tolerance) = arguments.tolerance {
        job = job.with_tolerance(tolerance);
    }
    let outcome = job.run(Frozen(session.loaded.model), train, valid)?;
    print!("{}", summary(&outcome));
    println!(
        "{}",
        arguments.folder.join("calibration.safetensors").display()
    );
    Ok(())
}
