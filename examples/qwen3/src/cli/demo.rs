//! `qwen3 demo`: the same long prompt on the exact cache and on 2-bit caches, side by side.

use std::ops::ControlFlow;

use burn_oscar::Method;
use clap::Args;
use qwen3::{
    evaluate::agreement,
    generate::{GenerateOptions, prefill},
    report::{GenerationReport, demo_table},
    sampling::Sampler,
};

use super::{
    CliError,
    args::ModelArgs,
    compare::MethodsArgs,
    generate::{PromptArgs, stream},
    output::{note, print, print_json, progress},
    session::Session,
};

/// What the demo compares with the exact cache unless --methods says otherwise.
const DEMO_METHODS: &[&str] = &["kivi", "oscar_scaled", "hadamard_centred"];

/// Continue a long prompt with the exact cache and with 2-bit caches, side by side
#[derive(Debug, Args)]
#[command(
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
    #[arg(long)]
    json: bool,
}

impl DemoArgs {
    /// Runs the exact cache, then the others.
    pub fn run(self) -> Result<(), CliError> {
        let session = Session::open(&self.model)?;
        let prompt = self.prompt.encode(&session)?;
        let options = self.prompt.options(&session, prompt.len());
        let (methods, skipped) = self.methods.select(DEMO_METHODS)?;
        for skipped in skipped {
            note(
                session.quiet,
                &format!("{} skipped: {}", skipped.method, skipped.reason),
            );
        }
        let others = methods.into_iter().filter(|m| m.name() != "exact");
        let mut exact_tokens = Vec::new();
        let mut reports = Vec::new();
        for method in std::iter::once(Method::exact()).chain(others) {
            if !self.json {
                print(&format!("--- {}: {}\n", method.name(), method.summary()))?;
            }
            let mut report = self.continue_prompt(&session, &prompt, &method, &options)?;
            if method.name() == "exact" {
                exact_tokens = report.1;
            } else {
                report.0.agreement =
                    Some(agree(&session, &prompt, &method, &options, &exact_tokens)?);
            }
            reports.push(report.0);
        }
        if self.json {
            print_json(&reports)
        } else {
            print(&format!("{}\n", demo_table(&reports)))
        }
    }

    /// One method's own continuation: its report and its tokens.
    fn continue_prompt(
        &self,
        session: &Session,
        prompt: &[u32],
        method: &Method,
        options: &GenerateOptions,
    ) -> Result<(GenerationReport, Vec<u32>), CliError> {
        let mut cache = session.cache(method.clone(), options.max_tokens)?;
        let mut text = String::new();
        let mut sampler = Sampler::greedy();
        let generation = stream(
            session,
            &mut cache,
            prompt,
            &mut sampler,
            options,
            |piece| {
                text.push_str(piece);
                if self.json { Ok(()) } else { print(piece) }
            },
        )?;
        if !self.json {
            print("\n\n")?;
        }
        let memory = cache.memory();
        let report = GenerationReport::new(method.name(), text, &generation, memory, None);
        Ok((report, generation.tokens))
    }
}

/// How often `method` would have chosen the tokens of the exact cache's continuation.
fn agree(
    session: &Session,
    prompt: &[u32],
    method: &Method,
    options: &GenerateOptions,
    continuation: &[u32],
) -> Result<qwen3::evaluate::Agreement, CliError> {
    let mut cache = session.cache(method.clone(), options.max_tokens)?;
    let (model, device) = (&session.loaded.model, &session.device);
    let bar = progress(session.quiet, prompt.len(), "comparing with the exact text");
    let logits = prefill(
        model,
        device,
        &mut cache,
        prompt,
        options.chunk,
        &mut |event| {
            if let qwen3::generate::Progress::Prefill(done) = event {
                bar.set_position(done as u64);
            }
            ControlFlow::Continue(())
        },
    );
    bar.finish_and_clear();
    // Nothing interrupts this prefill, so it always ends with logits.
    let logits = logits?.unwrap_or_default();
    Ok(agreement(model, device, &mut cache, &logits, continuation)?)
}
