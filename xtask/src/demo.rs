//! `cargo xtask demo`: a real model, a long prompt, the exact cache and 2-bit caches side by side.

use crate::{
    error::Result,
    model, process, text,
    workspace::{self, CARGO_REMEDY},
};
use std::path::{Path, PathBuf};

/// Options of the demo.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file, Hugging Face folder or hub id to use in place of the small model.
    #[arg(long, value_name = "FILE|FOLDER|ID")]
    model: Option<PathBuf>,
    /// A text file to use as the prompt.
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Caches to compare with the exact one, separated by commas.
    #[arg(long, value_name = "NAMES", default_value = METHODS)]
    methods: String,
    /// Tokens to generate with each cache.
    #[arg(long, short = 'n', value_name = "TOKENS", default_value_t = 48)]
    tokens: usize,
    /// Further options for `qwen3 demo`, after `--`.
    #[arg(last = true, value_name = "OPTIONS")]
    pub options: Vec<String>,
}

const METHODS: &str = "kivi,hadamard_centred,oscar_scaled";

/// Fetches what is missing, builds the example and runs it.
pub fn run(args: &Args) -> Result<()> {
    let model = match &args.model {
        Some(path) => absolute(path),
        None => model::fetch()?,
    };
    // The prompt of our own is a question to a model that was trained to answer; somebody else's
    // text is continued as it is, unless `-- --chat` says otherwise.
    let (prompt, chat) = match &args.prompt_file {
        Some(path) => (absolute(path), None),
        None => (text::fetch()?.prompt, Some("--chat")),
    };
    let mut qwen3 = workspace::cargo();
    qwen3
        .args(["run", "--release", "--package", "qwen3", "--", "demo"])
        .arg("--model")
        .arg(model)
        .arg("--prompt-file")
        .arg(prompt)
        .args(["--methods", &args.methods])
        .args(["--max-new-tokens", &args.tokens.to_string()])
        .args(chat)
        .args(&args.options);
    process::run(&mut qwen3, CARGO_REMEDY)
}

/// Cargo runs in the workspace's folder, so a path relative to the caller's would not be found.
/// What is no path here may be a hub id, which the example understands.
fn absolute(path: &Path) -> PathBuf {
    match path.exists() {
        true => std::path::absolute(path).unwrap_or_else(|_| path.into()),
        false => path.into(),
    }
}
