//! The two commands of the README, `cargo xtask demo` and `cargo xtask test`, and the checks
//! around them. Every command does its own set-up.

mod demo;
mod error;
mod features;
mod llvm;
mod model;
mod process;
mod test;
mod text;
mod workspace;

use clap::{Parser, Subcommand};
use error::Result;
use std::process::ExitCode;

/// Tasks of the burn-oscar workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Fetch a small model and generate from a long prompt with exact and 2-bit caches, side by
    /// side.
    Demo(demo::Args),
    /// Run everything that continuous integration runs, the tests on the real model included.
    Test(test::Args),
    /// Fetch the small model and the text that demo and tests use, and print where they are.
    Fetch,
    /// Prepare Debian's LLVM 22 for the `cpu` and `cuda` features where the prebuilt LLVM that
    /// CubeCL downloads cannot be reached.
    Llvm(llvm::Args),
    /// Check that every feature is forwarded to Burn, and type-check the feature combinations.
    Features(features::Args),
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    match cli.task {
        Task::Demo(args) => demo::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Fetch => fetch(),
        Task::Llvm(args) => llvm::run(&args),
        Task::Features(args) => features::run(&args),
    }
}

fn fetch() -> Result<()> {
    println!("model   {}", model::fetch()?.display());
    let texts = text::fetch()?;
    println!("text    {}", texts.corpus.display());
    println!("prompt  {}", texts.prompt.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn demo_passes_unknown_options_on_after_two_dashes() {
        let cli = Cli::parse_from(["xtask", "demo", "--", "--sink", "4"]);
        let Task::Demo(args) = cli.task else {
            panic!("demo was parsed as another task");
        };
        assert_eq!(args.options, ["--sink", "4"]);
    }
}
