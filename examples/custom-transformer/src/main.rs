//! Trains a small decoder for a minute, then lets it continue a text without a cache, with an exact
//! one and with two bits.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use burn::tensor::Device;
use burn_oscar::Method;
use clap::Parser;
use custom_transformer::generate::{generate, generate_cached};
use custom_transformer::model::ModelConfig;
use custom_transformer::text::BUILT_IN;
use custom_transformer::train::train;

/// Train a small decoder on a text, then serve it with and without a 2-bit cache
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example:\n  custom-transformer --text book.txt --steps 400"
)]
struct Arguments {
    /// The text; a token is a byte [default: a few lines of the program's own]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,

    /// Optimiser steps
    #[arg(long, default_value_t = 200, value_name = "COUNT")]
    steps: usize,

    /// What is continued [default: the beginning of the text]
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,

    /// Bytes to generate, up to 1,024
    #[arg(long, default_value_t = 300, value_name = "COUNT")]
    new_tokens: usize,
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
    let text = match &arguments.text {
        Some(path) => {
            std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?
        }
        None => BUILT_IN.to_string(),
    };
    if arguments.new_tokens == 0 || arguments.new_tokens > 1024 {
        return Err("--new-tokens: give 1 to 1,024".into());
    }
    let device = Device::flex();
    let config = ModelConfig::default();
    let logs = tempfile::tempdir()?;
    let start = Instant::now();
    let model = train(
        &config,
        text.as_bytes(),
        arguments.steps,
        logs.path(),
        &device,
    )?;
    println!("{} steps in {:.0?}", arguments.steps, start.elapsed());

    let prompt: Vec<u8> = match &arguments.prompt {
        Some(prompt) if !prompt.is_empty() && prompt.len() <= 1024 => prompt.bytes().collect(),
        Some(_) => return Err("--prompt: give 1 to 1,024 bytes".into()),
        None => text.bytes().take(32).collect(),
    };
    let count = arguments.new_tokens;
    let start = Instant::now();
    let expected = generate(&model, &prompt, count, &device)?;
    report("without a cache", &expected, start, None);

    // Windows so small that most of a short text is packed.
    let windows = |method: Method| method.with_sink(8).with_recent(32);
    for method in [Method::exact(), Method::oscar_scaled()] {
        let name = method.name().to_string();
        let mut cache = config.cache(windows(method)).init(&device)?;
        let start = Instant::now();
        let found = generate_cached(&model, &prompt, count, &mut cache, &device)?;
        report(&name, &found, start, Some(cache.memory().bits_per_value));
        let same = found.iter().zip(&expected).take_while(|(a, b)| a == b);
        println!("the first {} bytes of {count} are the same\n", same.count());
    }
    Ok(())
}

fn report(what: &str, text: &[u8], start: Instant, bits: Option<f64>) {
    let seconds = start.elapsed().as_secs_f64();
    let bits = bits.map_or(String::new(), |bits| format!(", {bits:.1} bits per value"));
    println!(
        "{what}: {:.0} bytes/s{bits}\n{}\n",
        text.len() as f64 / seconds,
        String::from_utf8_lossy(text)
    );
}
