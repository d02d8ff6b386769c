//! A passage that comes again, word for word, after a long text: what copying from the cache costs.

use std::path::PathBuf;

use models::tokenizer::Tokenizer;
use serde::Deserialize;
use serde_json::json;

use super::{Branch, Kind, Sample, Source, Span, source::starts};
use crate::error::{Error, Result};

/// Tokens of the second copy before the headline: until they have been read, nothing says that
/// the passage comes again.
const CUE: usize = 16;

/// Passages and their repetitions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recall {
    /// The text that the passages and what is between the copies are taken from.
    #[serde(default)]
    pub text: PathBuf,
    /// Tokens of the passage.
    #[serde(default = "passage")]
    pub passage: usize,
    /// Tokens from the beginning to the second copy. The first copy lies in the middle of them, so
    /// both sinks and recent tokens are elsewhere.
    #[serde(default = "context")]
    pub context: usize,
    /// Passages, spread evenly over the text.
    #[serde(default = "windows")]
    pub windows: usize,
}

fn passage() -> usize {
    256
}

fn context() -> usize {
    2048
}

fn windows() -> usize {
    2
}

impl Recall {
    /// One sample a passage.
    pub fn samples(&self, tokenizer: &Tokenizer) -> Result<Vec<Sample>> {
        let (passage, context) = (self.passage, self.context);
        if passage <= CUE || context < passage {
            return Err(Error::usage(format!(
                "a passage of {passage} tokens in a context of {context}: a passage has more than \
                 {CUE} tokens and fits into the context"
            )));
        }
        let source = Source::read(&self.text)?;
        let ids = source.tokens(tokenizer)?;
        let starts = starts(ids.len(), context, self.windows).ok_or_else(|| {
            source.too_short(
                "recall",
                "tokens",
                ids.len(),
                context * self.windows,
                "a shorter context or fewer windows",
            )
        })?;
        let settings = json!({"passage": passage, "context": context});
        let task = source.note(Kind::Recall, settings);
        let first = (context - passage) / 2;
        Ok(starts
            .into_iter()
            .map(|start| {
                let text = &ids[start..start + context];
                let mut tokens = text.to_vec();
                tokens.extend_from_slice(&text[first..first + passage]);
                let spans = vec![
                    Span::new("copy", context + CUE..tokens.len()),
                    Span::new("cue", context..context + CUE),
                ];
                Sample {
                    task: task.clone(),
                    item: json!({"start": start}),
                    prefix: Vec::new(),
                    branches: vec![Branch { tokens, spans }],
                }
            })
            .collect())
    }
}
