//! `cargo xtask demo`: a real model, a long prompt, the exact cache and 2-bit caches side by side.

use crate::{
    error::Result,
    model, process, text,
    workspace::{self, CARGO_REMEDY},
};
use std::path::PathBuf;

/// Options of the demo.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file or Hugging Face folder to use in place of the small model.
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// A text file to use as the prompt.
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Caches to compare with the exact one, separated by commas.
    #[arg(long, value_name = "NAMES", default_value = METHODS)]
    methods: String,
    /// Further options for `qwen3 demo`, after `--`.
    #[arg(last = true, value_name = "OPTIONS")]
    pub options: Vec<String>,
}

const METHODS: &str = "kivi,hadamard_centred,oscar_scaled";

/// Fetches what is missing, builds the example and runs it.
pub fn run(args: &Args) -> Result<()> {
    let model = match &args.model {
        Some(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
        None => model::fetch()?,
    };
    let prompt = match &args.prompt_file {
        Some(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
        None => text::fetch()?.prompt,
    };
    let mut qwen3 = workspace::cargo();
    qwen3
        .args(["run", "--release", "--package", "qwen3", "--", "demo"])
        .arg("--model")
        .arg(model)
        .arg("--prompt-file")
        .arg(prompt)
        .args(["--methods", &args.methods])
        .args(&args.options);
    process::run(&mut qwen3, CARGO_REMEDY)
}
