//! `qwen3 generate`: continue one prompt.

use std::{ops::ControlFlow, path::PathBuf};

use burn_oscar::KvCache;
use clap::Args;
use models::{
    cli::{CliError, ModelArgs, Session, note, positive, print, print_json, progress},
    generate::{GenerateError, GenerateOptions, Generation, Progress, generate},
    sampling::Sampler,
    tokenizer::Message,
};

use super::args::{CacheArgs, ChunkArgs, SamplingArgs, read_prompt};
use crate::report::GenerationReport;

/// Continue a prompt
#[derive(Debug, Args)]
#[command(
    long_about = "Continue a prompt.\n\n\
        The text is streamed to standard output; speed and memory follow on standard error. With \
        --json everything is printed as one JSON object at the end.",
    after_long_help = "Examples:\n  \
        qwen3 generate --model model.gguf --prompt 'The capital of France is'\n  \
        qwen3 generate --model model.gguf --chat --prompt 'Why is the sky blue?' --temperature 0.7\n  \
        qwen3 generate --model model.gguf --prompt-file long.txt --method kivi --recent 128\n  \
        cat long.txt | qwen3 generate --model model.gguf --method exact --json"
)]
pub struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    sampling: SamplingArgs,

    /// Fold the method's value transform into the weights: the same text without two matrix
    /// products a layer and token. Not for methods without such a transform
    #[arg(long, help_heading = "Cache")]
    fold: bool,

    /// Print one JSON object at the end instead of streaming the text
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// The text to continue, and how far.
#[derive(Debug, Args)]
#[command(next_help_heading = "Text")]
pub struct PromptArgs {
    /// The text to continue
    #[arg(long, short, value_name = "TEXT", conflicts_with = "prompt_file")]
    pub prompt: Option<String>,

    /// A UTF-8 file to continue, or - for standard input [default: standard input, if piped]
    #[arg(long, value_name = "FILE|-")]
    pub prompt_file: Option<PathBuf>,

    /// Treat the prompt as a user's message and apply the model's chat template
    #[arg(long)]
    pub chat: bool,

    /// The most tokens to generate
    #[arg(long, short = 'n', default_value_t = 128, value_name = "TOKENS", value_parser = positive)]
    pub max_new_tokens: usize,

    /// Tokens that the cache has room for [default: those of the prompt and --max-new-tokens]
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    pub max_tokens: Option<usize>,

    #[command(flatten)]
    pub chunk: ChunkArgs,
}

impl PromptArgs {
    /// The prompt's tokens.
    ///
    /// # Errors
    /// Where there is no prompt, or it cannot be read or tokenised.
    pub fn encode(&self, session: &Session) -> Result<Vec<u32>, CliError> {
        let text = read_prompt(self.prompt.as_deref(), self.prompt_file.as_deref())?;
        if self.chat {
            let text = session
                .tokenizer()
                .apply_chat_template(&[Message::new("user", text)], true)?;
            Ok(session.tokenizer().encode(&text, false)?)
        } else {
            Ok(session.tokenizer().encode(&text, true)?)
        }
    }

    /// The bounds of the generation for a prompt of `prompt_tokens` tokens.
    pub fn options(&self, session: &Session, prompt_tokens: usize) -> GenerateOptions {
        GenerateOptions {
            max_new_tokens: self.max_new_tokens,
            max_tokens: self
                .max_tokens
                .unwrap_or(prompt_tokens + self.max_new_tokens),
            chunk: self.chunk.chunk,
            stop_tokens: session.stop_tokens(),
        }
    }
}

impl GenerateArgs {
    /// Generates once.
    pub fn run(self) -> Result<(), CliError> {
        let sampler = &mut self.sampling.sampler()?;
        let mut session = Session::open(&self.model)?;
        let prompt = self.prompt.encode(&session)?;
        let method = self.cache.method()?;
        if self.fold {
            session.fold_values(&method)?;
        }
        let name = method.name().to_string();
        let options = self.prompt.options(&session, prompt.len());
        let mut cache = session.cache(method, options.max_tokens)?;

        let mut text = String::new();
        let generation = stream(&session, &mut cache, &prompt, sampler, &options, |piece| {
            text.push_str(piece);
            if self.json { Ok(()) } else { print(piece) }
        })?;

        let report = GenerationReport::new(&name, text, &generation, cache.memory(), None);
        if self.json {
            print_json(&report)?;
        } else {
            print("\n")?;
            note(session.quiet, &report.summary());
        }
        Ok(())
    }
}

/// Generates and hands over the text as it grows, with a progress bar while the prompt is read.
///
/// # Errors
/// What [`generate`], the tokenizer and `on_text` give.
pub fn stream(
    session: &Session,
    cache: &mut KvCache,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    on_text: impl FnMut(&str) -> Result<(), CliError>,
) -> Result<Generation, CliError> {
    let (model, device) = (&session.loaded.model, &session.device);
    stream_text(session, prompt.len(), on_text, |on_progress| {
        generate(model, device, cache, prompt, sampler, options, on_progress)
    })
}

/// Runs a generation and hands over the text as it grows, with a progress bar for the
/// `prompt_tokens` that it may read first.
///
/// # Errors
/// What `run`, the tokenizer and `on_text` give.
pub fn stream_text(
    session: &Session,
    prompt_tokens: usize,
    mut on_text: impl FnMut(&str) -> Result<(), CliError>,
    run: impl FnOnce(&mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<Generation, GenerateError>,
) -> Result<Generation, CliError> {
    let bar = progress(session.quiet, prompt_tokens, "reading the prompt");
    let mut decoder = session.tokenizer().stream();
    let mut failed = None;
    let result = run(&mut |event| {
        let text = match event {
            Progress::Prefill(done) => {
                bar.set_position(done as u64);
                if done == prompt_tokens {
                    bar.finish_and_clear();
                }
                return ControlFlow::Continue(());
            }
            Progress::Token(token) => decoder.push(token),
        };
        match text.map_err(CliError::from).and_then(|text| on_text(&text)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    });
    bar.finish_and_clear();
    if let Some(error) = failed {
        return Err(error);
    }
    let generation = result?;
    on_text(&decoder.finish()?)?;
    Ok(generation)
}
