//! The command line: one file per sub-command, and what they share.

use clap::{Parser, Subcommand};
use models::cli::CliError;

mod args;
mod chat;
mod compare;
mod demo;
mod generate;
mod perplexity;

/// Run Qwen3, Qwen2 and Llama models on a key/value cache of 2 bits per number.
#[derive(Debug, Parser)]
#[command(
    name = "qwen3",
    version,
    about,
    long_about = "Run Qwen3, Qwen2 and Llama models on a key/value cache of 2 bits per number.\n\n\
        A cache holds a few tokens at the start (sinks) and the newest ones exactly; everything in \
        between is stored in pages of packed bits. The method says how. `exact` stores everything \
        exactly and is what the others are measured against.\n\n\
        Results go to standard output; progress and statistics go to standard error.",
    after_long_help = "Examples:\n  \
        qwen3 generate --model model.gguf --prompt 'The capital of France is'\n  \
        qwen3 chat --model model.gguf --method kivi\n  \
        qwen3 perplexity --model model.gguf --text wiki.txt --method kivi --json\n  \
        qwen3 compare --model model.gguf --text wiki.txt\n  \
        qwen3 demo --model model.gguf --prompt-file long.txt\n\n\
        `qwen3 help COMMAND` explains a command and all its options."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Generate(generate::GenerateArgs),
    Chat(chat::ChatArgs),
    Perplexity(perplexity::PerplexityArgs),
    Compare(compare::CompareArgs),
    Demo(demo::DemoArgs),
}

impl Cli {
    /// Runs the sub-command that was asked for.
    ///
    /// # Errors
    /// Everything that can go wrong, ready to be printed.
    pub fn run(self) -> Result<(), CliError> {
        match self.command {
            Command::Generate(args) => args.run(),
            Command::Chat(args) => args.run(),
            Command::Perplexity(args) => args.run(),
            Command::Compare(args) => args.run(),
            Command::Demo(args) => args.run(),
        }
    }
}

#[cfg(test)]
mod tests;
