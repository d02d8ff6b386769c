//! The options that all command lines share.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::Args;

use super::{CliError, DeviceChoice};

/// Which model, and where it runs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// The model: a .gguf file, a Hugging Face folder, or a hub id
    ///
    /// A folder holds config.json, tokenizer.json and the weights as *.safetensors. A hub id, such
    /// as Qwen/Qwen3-0.6B, is downloaded once where the Hugging Face hub can be reached.
    #[arg(long, short, value_name = "FILE|FOLDER|ID")]
    pub model: PathBuf,

    /// Where the model runs: auto, flex, cpu, cuda, rocm, metal, vulkan or wgpu
    ///
    /// `flex` runs on the CPU and needs nothing installed. Every other device is a Cargo feature of
    /// the same name and must be built in. `auto` takes the fastest one that is built in. A number
    /// picks one of several, as in cuda:1.
    #[arg(long, default_value = "auto", value_name = "DEVICE[:NUMBER]")]
    pub device: DeviceChoice,

    /// Show no progress and no statistics on standard error
    #[arg(long, short)]
    pub quiet: bool,
}

/// Reads a text file, or standard input for `-`. Windows' line ends become plain ones, as when
/// Python reads a text: models hardly know the others.
///
/// # Errors
/// [`CliError::Read`], also for text that is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, CliError> {
    let text = if path == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(path)
    };
    text.map(|text| text.replace("\r\n", "\n"))
        .map_err(|source| CliError::Read {
            path: path.to_path_buf(),
            source,
        })
}

/// Parses a number of at least 1.
///
/// # Errors
/// A message for anything else.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".to_string()),
        Ok(number) => Ok(number),
        Err(error) => Err(error.to_string()),
    }
}
