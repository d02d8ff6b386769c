//! `qwen3 demo`: the same long prompt on the exact cache and on 2-bit caches, side by side.

use std::{ops::ControlFlow, time::Instant};

use burn_oscar::{KvCache, Method};
use clap::Args;
use models::{
    cli::{CliError, ModelArgs, Session, note, print, print_json, progress},
    evaluate::{Agreement, agreement},
    generate::{GenerateError, GenerateOptions, Generation, Progress, decode, prefill},
    sampling::Sampler,
};

use super::{
    compare::MethodsArgs,
    generate::{PromptArgs, stream_text},
};
use crate::report::{GenerationReport, demo_table};

/// What the demo compares with the exact cache unless --methods says otherwise.
const DEMO_METHODS: &[&str] = &["kivi", "oscar_scaled", "hadamard_centred"];

const METHODS_HELP: &str = "The methods to compare with exact, separated by commas \
    [default: kivi,oscar_scaled,hadamard_centred]";

/// Continue a long prompt with the exact cache and with 2-bit caches, side by side
#[derive(Debug, Args)]
#[command(
    mut_arg("methods", |methods| methods.help(METHODS_HELP)),
    long_about = "Continue a long prompt with the exact cache and with 2-bit caches, side by side.\n\n\
        Every cache continues the prompt by itself, always with the most likely token: these are \
        the texts and the speeds. Then each is fed the exact cache's text: `same next token` is \
        the share of tokens where it would have chosen the same, `same text for` is the number of \
        tokens before the first difference.",
    after_long_help = "Examples:\n  \
        qwen3 demo --model model.gguf --prompt-file long.txt\n  \
        qwen3 demo --model model.gguf --prompt-file long.txt --methods kivi,hadamard -n 32 --json"
)]
pub struct DemoArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    methods: MethodsArgs,

    /// Print one JSON array instead of texts and a table
    #[arg(long, help_heading = "Output")]
    json: bool,
}

impl DemoArgs {
    /// Runs the exact cache, then the others.
    pub fn run(self) -> Result<(), CliError> {
        let session = Session::open(&self.model)?;
        let prompt = self.prompt.encode(&session)?;
        let options = self.prompt.options(&session, prompt.len());
        if prompt.len() > options.max_tokens {
            return Err(CliError::Generate(GenerateError::PromptTooLong {
                prompt: prompt.len(),
                held: 0,
                max_tokens: options.max_tokens,
            }));
        }
        let (methods, skipped) = self.methods.select(DEMO_METHODS)?;
        for skipped in skipped {
            note(
                session.quiet,
                &format!("{} skipped: {}", skipped.method, skipped.reason),
            );
        }
        let others = methods.into_iter().filter(|m| m.name() != "exact");
        let mut exact_tokens = None;
        let mut reports = Vec::new();
        for method in std::iter::once(Method::exact()).chain(others) {
            if !self.json {
                print(&format!("--- {}: {}\n", method.name(), method.summary()))?;
            }
            let exact = exact_tokens.as_deref();
            let (report, tokens) = self.column(&session, &prompt, &method, &options, exact)?;
            exact_tokens.get_or_insert(tokens);
            reports.push(report);
        }
        if self.json {
            print_json(&reports)
        } else {
            print(&format!("{}\n", demo_table(&reports)))
        }
    }

    /// One method's own continuation: its report and its tokens. The prompt is read once; a fork
    /// of it is fed the `exact` tokens.
    fn column(
        &self,
        session: &Session,
        prompt: &[u32],
        method: &Method,
        options: &GenerateOptions,
        exact: Option<&[u32]>,
    ) -> Result<(GenerationReport, Vec<u32>), CliError> {
        let (model, device) = (&session.loaded.model, &session.device);
        session.check_memory(method, options.max_tokens)?;
        let mut cache = session
            .cache_config()
            .with_method(method.clone())
            .with_max_tokens(options.max_tokens)
            .with_max_sequences(2)
            .init(device)?;

        let bar = progress(session.quiet, prompt.len(), "reading the prompt");
        let start = Instant::now();
        let logits = prefill(
            model,
            device,
            &mut cache,
            prompt,
            options.chunk,
            &mut |step| {
                if let Progress::Prefill(done) = step {
                    bar.set_position(done as u64);
                }
                ControlFlow::Continue(())
            },
        );
        let prefill = start.elapsed();
        bar.finish_and_clear();
        // Nothing interrupts this prefill, so it ends with logits.
        let logits = logits?.unwrap_or_default();

        let agreement = match exact {
            Some(exact) => Some(agree(session, &mut cache, &logits, exact)?),
            None => None,
        };
        let mut text = String::new();
        let print_piece = |piece: &str| {
            text.push_str(piece);
            if self.json { Ok(()) } else { print(piece) }
        };
        let decoded = stream_text(session, 0, print_piece, |on_progress| {
            let greedy = &mut Sampler::greedy();
            decode(
                model,
                device,
                &mut cache,
                logits,
                greedy,
                options,
                on_progress,
            )
        })?;
        if !self.json {
            print("\n\n")?;
        }
        let generation = Generation {
            prompt_tokens: prompt.len(),
            prefill,
            ..decoded
        };
        let memory = cache.memory();
        let report = GenerationReport::new(method.name(), text, &generation, memory, agreement);
        Ok((report, generation.tokens))
    }
}

/// How often the cache, which holds the prompt, would have chosen the tokens of `continuation`. It
/// is as before afterwards.
fn agree(
    session: &Session,
    cache: &mut KvCache,
    prompt_logits: &[f32],
    continuation: &[u32],
) -> Result<Agreement, CliError> {
    let (model, device) = (&session.loaded.model, &session.device);
    let Some(prompt) = cache.sequences().first().copied() else {
        return Err(CliError::Usage("the cache holds no sequence".to_string()));
    };
    let fork = cache.fork(prompt)?;
    let agreement = agreement(model, device, cache, prompt_logits, continuation)?;
    cache.free(fork)?;
    Ok(agreement)
}
