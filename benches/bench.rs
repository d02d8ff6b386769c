//! All benchmarks in one program, so that one file is carried to the machine that is measured.

mod append;
mod attention;
mod prefill;
mod report;
mod stream;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures burn-oscar: what an operation costs, the bytes that it must move, and its share of
/// the device's streaming read.
#[derive(Parser)]
#[command(name = "bench", version)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    Attention(attention::Arguments),
    Append(append::Arguments),
    Prefill(prefill::Arguments),
    Stream(stream::Arguments),
    Report(report::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().bench {
        Bench::Attention(arguments) => attention::run(arguments),
        Bench::Append(arguments) => append::run(arguments),
        Bench::Prefill(arguments) => prefill::run(arguments),
        Bench::Stream(arguments) => stream::run(arguments),
        Bench::Report(arguments) => report::run(arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
