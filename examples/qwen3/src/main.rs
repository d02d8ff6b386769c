//! The `qwen3` command: see `qwen3 --help`.

use std::{
    io::{Write, stderr},
    process::ExitCode,
};

use clap::Parser;

mod cli;
mod report;

fn main() -> ExitCode {
    match cli::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has gone, `| head` for one: nobody is left to be told.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed as well, and then the exit code has to do.
            let _ = writeln!(stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}
