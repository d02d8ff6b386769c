//! The next token of a text, over all positions, over those past the windows, and by position.

use std::path::PathBuf;

use models::tokenizer::Tokenizer;
use serde::Deserialize;
use serde_json::json;

use super::{Branch, Kind, Sample, Source, Span, source::starts};
use crate::error::{Error, Result};

/// Windows of a text.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Perplexity {
    /// The text.
    #[serde(default)]
    pub text: PathBuf,
    /// Tokens of a window.
    #[serde(default = "window")]
    pub window: usize,
    /// Windows, spread evenly over the text.
    #[serde(default = "windows")]
    pub windows: usize,
    /// Windows of the spread that are measured, from 0; all where there are none. Comparing with
    /// figures that were taken of some windows only needs the same ones.
    #[serde(default)]
    pub only: Vec<usize>,
    /// The first position of the headline: earlier ones see few packed tokens, or none.
    #[serde(default = "past")]
    pub past: usize,
    /// Whether the windows follow each other from the beginning of the text.
    #[serde(default)]
    pub consecutive: bool,
}

fn window() -> usize {
    2048
}

fn windows() -> usize {
    4
}

fn past() -> usize {
    512
}

impl Perplexity {
    /// One sample a window.
    pub fn samples(&self, tokenizer: &Tokenizer) -> Result<Vec<Sample>> {
        if self.window < 2 || self.past >= self.window || self.past == 0 {
            return Err(Error::usage(format!(
                "positions from {} on leave nothing to score in a window of {} tokens: --past is at \
                 least 1 and below --window",
                self.past, self.window
            )));
        }
        let source = Source::read(&self.text)?;
        let ids = source.tokens(tokenizer)?;
        let length = self.window;
        let short = || {
            let needed = self.windows * length;
            source.too_short(
                "perplexity",
                "tokens",
                ids.len(),
                needed,
                "fewer or shorter windows",
            )
        };
        let mut starts = starts(ids.len(), length, self.windows).ok_or_else(short)?;
        if self.consecutive {
            starts = (0..self.windows).map(|index| index * length).collect();
        }
        let task = source.note(
            Kind::Perplexity,
            json!({"window": self.window, "past": self.past}),
        );
        let chosen = starts.iter().enumerate();
        let chosen = chosen.filter(|(index, _)| self.only.is_empty() || self.only.contains(index));
        Ok(chosen
            .map(|(_, &start)| Sample {
                task: task.clone(),
                item: json!({"start": start}),
                prefix: Vec::new(),
                branches: vec![Branch {
                    tokens: ids[start..start + length].to_vec(),
                    spans: spans(length, self.past),
                }],
            })
            .collect())
    }
}

/// All positions, those past the threshold, and stretches that double from it.
fn spans(window: usize, past: usize) -> Vec<Span> {
    let mut spans = vec![
        Span::new("all", 1..window),
        Span::new(format!("from {past}"), past..window),
        Span::new(format!("1-{past}"), 1..past),
    ];
    let mut start = past;
    while start < window {
        let end = (2 * start).min(window);
        spans.push(Span::new(format!("{start}-{end}"), start..end));
        start = end;
    }
    spans.retain(|span| !span.range.is_empty());
    spans
}
