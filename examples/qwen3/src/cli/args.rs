//! The options that several commands of `qwen3` share.

use std::{
    io::{self, IsTerminal},
    path::{Path, PathBuf},
};

use burn_oscar::{Calibration, Method};
use clap::{Args, builder::PossibleValuesParser};
use models::{
    cli::{CliError, positive, read_text},
    sampling::{Sampler, SamplingOptions},
};

/// The method that is used when none is named: the best that needs no calibration.
pub const DEFAULT_METHOD: &str = "hadamard_centred";

/// How many tokens are kept exact, and the bits of the others.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Cache")]
pub struct WindowArgs {
    /// Tokens kept exact at the start [default: the method's, 64]
    #[arg(long, value_name = "TOKENS")]
    pub sink: Option<usize>,

    /// Newest tokens kept exact, at least [default: the method's, 256]
    ///
    /// They are packed a page at a time, so up to a page more are exact.
    #[arg(long, value_name = "TOKENS")]
    pub recent: Option<usize>,

    /// Bits of a packed number: 2, 4 or 8 [default: the method's, 2]
    #[arg(long, value_name = "BITS")]
    pub bits: Option<u8>,
}

impl WindowArgs {
    /// The preset `name` with these options.
    ///
    /// # Errors
    /// What [`Method::preset`], [`Method::calibrated`] and [`Method::with_bits`] give.
    pub fn method(
        &self,
        name: &str,
        calibration: Option<&Calibration>,
    ) -> Result<Method, burn_oscar::Error> {
        let mut method = match calibration {
            Some(calibration) => Method::calibrated(name, calibration)?,
            None => Method::preset(name)?,
        };
        if let Some(bits) = self.bits {
            method = method.with_bits(bits)?;
        }
        if let Some(sink) = self.sink {
            method = method.with_sink(sink);
        }
        if let Some(recent) = self.recent {
            method = method.with_recent(recent);
        }
        Ok(method)
    }
}

/// One method and its options.
#[derive(Debug, Args)]
#[command(next_help_heading = "Cache")]
pub struct CacheArgs {
    /// How old tokens are stored [default: the artifact's method, or hadamard_centred]
    ///
    /// `exact` packs nothing. `oscar` and `transform_coded` are calibrated and need --artifact.
    #[arg(long, value_name = "METHOD", hide_default_value = true,
          value_parser = PossibleValuesParser::new(Method::PRESETS.iter().copied()))]
    pub method: Option<String>,

    #[command(flatten)]
    pub windows: WindowArgs,

    /// Calibration artifact (.safetensors) of a calibrated method, made for this model
    #[arg(long, value_name = "FILE")]
    pub artifact: Option<PathBuf>,
}

impl CacheArgs {
    /// The method that these options describe.
    ///
    /// # Errors
    /// [`CliError::Usage`] for an artifact that the method does not take or lacks,
    /// [`CliError::Cache`] for one that is damaged or of another method.
    pub fn method(&self) -> Result<Method, CliError> {
        if let (Some(name), Some(_)) = (&self.method, &self.artifact)
            && !Method::needs_calibration(name)
        {
            return Err(CliError::Usage(format!(
                "method {name} is not calibrated and takes no --artifact: leave it out, or leave \
                 out --method to use the artifact's"
            )));
        }
        let calibration = self
            .artifact
            .as_deref()
            .map(Calibration::load)
            .transpose()?;
        let name = match (&self.method, &calibration) {
            (Some(name), _) => name,
            (None, Some(calibration)) => calibration.method(),
            (None, None) => DEFAULT_METHOD,
        };
        if calibration.is_none() && Method::needs_calibration(name) {
            return Err(CliError::Usage(format!(
                "method {name} is calibrated: give its artifact for this model with --artifact FILE"
            )));
        }
        Ok(self.windows.method(name, calibration.as_ref())?)
    }
}

/// How the next token is chosen.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Randomness: 0 always takes the most likely token, 1 draws from the model's distribution
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "NUMBER",
        allow_negative_numbers = true
    )]
    pub temperature: f32,

    /// Draw among this many of the most likely tokens; 0 for all
    #[arg(long, default_value_t = 0, value_name = "TOKENS")]
    pub top_k: usize,

    /// Draw among the most likely tokens whose probabilities add up to this, above 0 to 1
    #[arg(
        long,
        default_value_t = 1.0,
        value_name = "SHARE",
        allow_negative_numbers = true
    )]
    pub top_p: f32,

    /// Seed of the random numbers; equal seeds give equal texts
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    pub seed: u64,
}

impl SamplingArgs {
    /// The sampler that these options describe.
    ///
    /// # Errors
    /// Values out of range.
    pub fn sampler(&self) -> Result<Sampler, CliError> {
        Ok(Sampler::new(SamplingOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            seed: self.seed,
        })?)
    }
}

/// The prompt: given, from a file, or from a pipe.
///
/// # Errors
/// [`CliError::Usage`] where there is none, [`CliError::Read`] for a file that cannot be read.
pub fn read_prompt(prompt: Option<&str>, file: Option<&Path>) -> Result<String, CliError> {
    let text = match (prompt, file) {
        (Some(text), _) => text.to_string(),
        (None, Some(file)) => read_text(file)?,
        (None, None) if !io::stdin().is_terminal() => read_text(Path::new("-"))?,
        (None, None) => {
            return Err(CliError::Usage(
                "there is no prompt: give --prompt TEXT, --prompt-file FILE, or pipe a text in"
                    .to_string(),
            ));
        }
    };
    if text.is_empty() {
        return Err(CliError::Usage(
            "the prompt is empty: give at least one character".to_string(),
        ));
    }
    Ok(text)
}

/// How many prompt tokens go through the model at once.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Text")]
pub struct ChunkArgs {
    /// Prompt tokens that go through the model at once; fewer need less memory
    ///
    /// Within a chunk tokens see each other exactly; earlier chunks are seen as they are stored.
    #[arg(long, default_value_t = 512, value_name = "TOKENS", value_parser = positive)]
    pub chunk: usize,
}
