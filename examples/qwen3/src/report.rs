//! Results as tables for people and JSON for programs.

use burn_oscar::MemoryReport;
use models::{
    evaluate::{Agreement, MethodScore},
    generate::{Generation, StopReason},
    table::{bytes, table},
};
use serde::Serialize;

/// A method that `compare` left out.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// The method's name.
    pub method: String,
    /// Why, and what would bring it in.
    pub reason: String,
}

/// What `compare --json` prints.
#[derive(Debug, Serialize)]
pub struct Comparison<'a> {
    /// The model as it was named on the command line.
    pub model: &'a str,
    /// The text file.
    pub text: &'a str,
    /// One entry per method that ran.
    pub methods: &'a [MethodScore],
    /// The methods that did not run.
    pub skipped: &'a [Skipped],
}

/// One generation with its text, speed and memory: what `generate --json` prints, and one column
/// of the demo.
#[derive(Clone, Debug, Serialize)]
pub struct GenerationReport {
    /// The method's name.
    pub method: String,
    /// The generated text, without the prompt.
    pub text: String,
    /// Why it ended, in snake case.
    pub stop: StopReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub new_tokens: usize,
    /// Time to read the prompt.
    pub prefill_seconds: f64,
    /// Prompt tokens per second.
    pub prefill_tokens_per_second: f64,
    /// Time for the tokens after the first.
    pub decode_seconds: f64,
    /// Tokens per second after the first.
    pub decode_tokens_per_second: f64,
    /// The cache at the end.
    pub memory: MemoryReport,
    /// How often the method prefers the token that the exact cache chose; only in the demo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement: Option<Agreement>,
}

impl GenerationReport {
    /// Gathers what one generation left behind.
    pub fn new(
        method: &str,
        text: String,
        generation: &Generation,
        memory: MemoryReport,
        agreement: Option<Agreement>,
    ) -> Self {
        Self {
            method: method.to_string(),
            text,
            stop: generation.stop,
            prompt_tokens: generation.prompt_tokens,
            new_tokens: generation.tokens.len(),
            prefill_seconds: generation.prefill.as_secs_f64(),
            prefill_tokens_per_second: generation.prefill_rate(),
            decode_seconds: generation.decode.as_secs_f64(),
            decode_tokens_per_second: generation.decode_rate(),
            memory,
            agreement,
        }
    }

    /// Speed and memory in a few lines, for standard error.
    pub fn summary(&self) -> String {
        format!(
            "{}: {} prompt tokens in {:.2} s ({:.1} tokens/s), {} new tokens in {:.2} s ({:.1} \
             tokens/s), {}\n{}",
            self.method,
            self.prompt_tokens,
            self.prefill_seconds,
            self.prefill_tokens_per_second,
            self.new_tokens,
            self.decode_seconds,
            self.decode_tokens_per_second,
            self.stop,
            memory_line(&self.memory),
        )
    }
}

/// The cache's bytes by tier, in one line.
pub fn memory_line(memory: &MemoryReport) -> String {
    format!(
        "cache: {} tokens, {:.2} bits per value, {} (in 16 bits: {}): sinks {}, pages {}, recent {}",
        memory.tokens,
        memory.bits_per_value,
        bytes(memory.resident_bytes),
        bytes(memory.exact_bytes),
        bytes(memory.sink_bytes),
        bytes(memory.page_bytes),
        bytes(memory.recent_bytes),
    )
}

/// The comparison of several methods on one text.
pub fn comparison_table(scores: &[MethodScore]) -> String {
    let mut table = table([
        "method",
        "bits/value",
        "bytes",
        "times smaller",
        "ppl",
        "delta nll",
        "KL",
        "top-1",
        "seconds",
    ]);
    for score in scores {
        table.add_row([
            score.method.clone(),
            format!("{:.3}", score.bits_per_value),
            bytes(score.bytes),
            format!("{:.2}", score.ratio()),
            format!("{:.3}", score.ppl),
            with_spread(score.delta_nll, score.spread.delta_nll),
            with_spread(score.kl, score.spread.kl),
            format!("{:.4}", score.top1),
            format!("{:.1}", score.seconds),
        ]);
    }
    table.to_string()
}

/// The demo: memory, speed and agreement, one column for each method.
pub fn demo_table(reports: &[GenerationReport]) -> String {
    let mut table =
        table(std::iter::once("").chain(reports.iter().map(|report| report.method.as_str())));
    let mut row = |name: &str, value: &dyn Fn(&GenerationReport) -> String| {
        table.add_row(std::iter::once(name.to_string()).chain(reports.iter().map(value)));
    };
    row("bits per value", &|r| {
        format!("{:.3}", r.memory.bits_per_value)
    });
    row("bytes in all", &|r| bytes(r.memory.resident_bytes));
    row("  sinks, exact", &|r| bytes(r.memory.sink_bytes));
    row("  pages", &|r| bytes(r.memory.page_bytes));
    row("  recent, exact", &|r| bytes(r.memory.recent_bytes));
    row("in 16 bits", &|r| bytes(r.memory.exact_bytes));
    row("prompt, tokens/s", &|r| {
        format!("{:.1}", r.prefill_tokens_per_second)
    });
    row("new text, tokens/s", &|r| {
        format!("{:.1}", r.decode_tokens_per_second)
    });
    let agreement = |report: &GenerationReport, text: &dyn Fn(&Agreement) -> String| {
        report.agreement.as_ref().map_or("-".to_string(), text)
    };
    row("same next token", &|r| {
        agreement(r, &|a| format!("{:.1} %", 100.0 * a.share()))
    });
    row("same text for", &|r| {
        agreement(r, &|a| {
            format!("{} of {} tokens", a.common_prefix, a.compared)
        })
    });
    table.to_string()
}

/// The result of `perplexity` for people: the method's row, then its windows.
pub fn perplexity_tables(score: &MethodScore) -> String {
    let mut windows = table(["window at", "ppl", "exact ppl", "delta nll", "KL", "top-1"]);
    for window in &score.per_window {
        windows.add_row([
            window.start.to_string(),
            format!("{:.3}", window.ppl),
            format!("{:.3}", window.exact_ppl),
            format!("{:+.4}", window.nll - window.exact_nll),
            format!("{:.4}", window.kl),
            format!("{:.4}", window.top1),
        ]);
    }
    windows.add_row([
        "all".to_string(),
        format!("{:.3}", score.ppl),
        format!("{:.3}", score.exact_ppl),
        format!("{:+.4}", score.delta_nll),
        format!("{:.4}", score.kl),
        format!("{:.4}", score.top1),
    ]);
    format!(
        "{}\n{}, {} sinks, {} recent: {:.3} bits per value, {} where 16 bits take {}; {} positions, \
         {:.1} s",
        windows,
        score.method,
        score.sink,
        score.recent,
        score.bits_per_value,
        bytes(score.bytes),
        bytes(score.exact_bytes),
        score.scored,
        score.seconds,
    )
}

fn with_spread(value: f64, spread: Option<f64>) -> String {
    match spread {
        Some(spread) => format!("{value:.4} ± {spread:.4}"),
        None => format!("{value:.4}"),
    }
}
