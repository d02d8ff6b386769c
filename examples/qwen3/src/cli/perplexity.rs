//! `qwen3 perplexity`: what one method costs on a text.

use std::path::PathBuf;

use burn_oscar::Method;
use clap::Args;
use models::{
    cli::{CliError, ModelArgs, Session, positive, print, print_json, progress, read_text},
    evaluate::{EvaluateOptions, MethodScore, evaluate},
};

use super::args::CacheArgs;
use crate::report::perplexity_tables;

/// Measure what a method costs on a text: perplexity and divergence from the exact cache
#[derive(Debug, Args)]
#[command(
    long_about = "Measure what a method costs on a text.\n\n\
        The text is tokenised whole, and windows are taken from it at even distances, never \
        overlapping. Each window starts with an empty cache and goes through the model twice: with the exact cache and with the \
        method, which sees what it would have seen had the tokens come one by one. Reported are\n\n  \
        ppl             perplexity, exp(nll)\n  \
        nll             mean negative log likelihood of the next token, in nats\n  \
        kl              mean divergence KL(exact || method) over the whole vocabulary, in nats\n  \
        top1            share of positions where both prefer the same token\n  \
        bits_per_value  bits per stored number at the end of a window, everything included\n  \
        bytes           bytes of the cache at the end of a window\n\n\
        Exact tokens count in the device's own format, 32 bits on flex.",
    after_long_help = "Examples:\n  \
        qwen3 perplexity --model model.gguf --text wiki.txt --windows 4 --method kivi --json\n  \
        qwen3 perplexity --model model.gguf --text wiki.txt --method kivi --sink 0 --recent 128\n  \
        qwen3 perplexity --model model.gguf --text book.txt --window 4096 --positions-from 1024"
)]
pub struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    text: TextArgs,

    /// Print one JSON object instead of a table
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Which text, and which part of it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Text")]
pub struct TextArgs {
    /// The text to score, a UTF-8 file, or - for standard input
    #[arg(long, value_name = "FILE|-")]
    pub text: PathBuf,

    /// Tokens of a window
    #[arg(long, default_value_t = 1024, value_name = "TOKENS")]
    pub window: usize,

    /// Windows, spread evenly over the text; 0 for as many as it holds
    #[arg(long, default_value_t = 4, value_name = "COUNT")]
    pub windows: usize,

    /// Score only tokens at this position of their window or later
    ///
    /// Early positions see only exact tokens, which flatters short windows.
    #[arg(long, default_value_t = 1, value_name = "POSITION", value_parser = positive)]
    pub positions_from: usize,

    /// Tokens that go through the model at once; fewer need less memory
    ///
    /// The scores do not depend on it.
    #[arg(long, default_value_t = 512, value_name = "TOKENS", value_parser = positive)]
    pub chunk: usize,
}

impl TextArgs {
    /// Scores `methods` on the text, with a progress bar.
    ///
    /// # Errors
    /// A text that cannot be read or is too short, and what [`evaluate`] gives.
    pub fn evaluate(
        &self,
        session: &Session,
        methods: &[Method],
    ) -> Result<Vec<MethodScore>, CliError> {
        for method in methods {
            session.check_memory(method, self.window)?;
        }
        let text = read_text(&self.text)?;
        let ids = session.tokenizer().encode(&text, false)?;
        let options = EvaluateOptions {
            window: self.window,
            windows: self.windows,
            positions_from: self.positions_from,
            chunk: self.chunk,
        };
        let windows = options.count_windows(ids.len())?;
        let bar = progress(session.quiet, options.work(windows, methods), "");
        let scores = evaluate(
            &session.loaded.model,
            &session.cache_config(),
            &session.device,
            &ids,
            methods,
            &options,
            &mut |step| {
                bar.set_message(format!(
                    "{}, window {} of {windows}",
                    step.method,
                    step.window + 1
                ));
                bar.inc(step.tokens as u64);
            },
        );
        bar.finish_and_clear();
        Ok(scores?)
    }
}

impl PerplexityArgs {
    /// Scores one method.
    pub fn run(self) -> Result<(), CliError> {
        let session = Session::open(&self.model)?;
        let method = self.cache.method()?;
        let scores = self.text.evaluate(&session, &[method])?;
        for score in &scores {
            if self.json {
                print_json(score)?;
            } else {
                print(&format!("{}\n", perplexity_tables(score)))?;
            }
        }
        Ok(())
    }
}
