//! What is done with every method. Each task makes samples: texts with marked stretches to score.

mod perplexity;
mod questions;
mod recall;
mod retrieval;
mod source;

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
};

use models::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use perplexity::Perplexity;
pub use questions::Questions;
pub use recall::Recall;
pub use retrieval::Retrieval;
pub use source::{Source, starts};

use crate::error::Result;

/// A task and its settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Task {
    /// The next token of a text, by position.
    Perplexity(Perplexity),
    /// The answers of a question set after several examples.
    Questions(Questions),
    /// Numbers hidden in a text.
    Retrieval(Retrieval),
    /// A passage that comes again much later.
    Recall(Recall),
}

/// What a row says of its task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskNote {
    /// The task.
    pub kind: Kind,
    /// Name of the file, without its folder.
    pub text: String,
    /// Digest of the file.
    pub sha256: String,
    /// What all samples of the task have in common.
    pub settings: Value,
}

/// The tasks by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Perplexity,
    Questions,
    Retrieval,
    Recall,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Perplexity => "perplexity",
            Self::Questions => "questions",
            Self::Retrieval => "retrieval",
            Self::Recall => "recall",
        })
    }
}

/// Texts that go through the model: a beginning, and continuations of which each follows it anew.
#[derive(Clone, Debug)]
pub struct Sample {
    /// What the row says of the task.
    pub task: TaskNote,
    /// What sets this sample apart from the others of its task.
    pub item: Value,
    /// Read once.
    pub prefix: Vec<u32>,
    /// Read one after the other, each after the prefix. Where there is a prefix, each has its own
    /// copy of the cache.
    pub branches: Vec<Branch>,
}

/// A continuation.
#[derive(Clone, Debug)]
pub struct Branch {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// What is scored of it.
    pub spans: Vec<Span>,
}

/// A stretch of tokens that is scored. Stretches may overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// What tables call it.
    pub label: String,
    /// Positions in the branch, from 1: the first token has nothing to predict it from.
    pub range: Range<usize>,
}

impl Span {
    fn new(label: impl Into<String>, range: Range<usize>) -> Self {
        Self {
            label: label.into(),
            range,
        }
    }
}

impl Sample {
    /// Tokens that one pass reads.
    pub fn tokens(&self) -> usize {
        let branches = self.branches.iter().map(|branch| branch.tokens.len());
        self.prefix.len() + branches.sum::<usize>()
    }

    /// The most tokens that a sequence holds.
    pub fn longest(&self) -> usize {
        let branches = self.branches.iter().map(|branch| branch.tokens.len());
        self.prefix.len() + branches.max().unwrap_or(0)
    }
}

impl Task {
    /// See [`Task::file`].
    pub fn file_mut(&mut self) -> &mut PathBuf {
        match self {
            Self::Perplexity(task) => &mut task.text,
            Self::Questions(task) => &mut task.file,
            Self::Retrieval(task) => &mut task.text,
            Self::Recall(task) => &mut task.text,
        }
    }

    /// The file that the task reads; empty where none was named.
    pub fn file(&self) -> &Path {
        match self {
            Self::Perplexity(task) => &task.text,
            Self::Questions(task) => &task.file,
            Self::Retrieval(task) => &task.text,
            Self::Recall(task) => &task.text,
        }
    }

    /// The task's texts, ready for the model.
    ///
    /// # Errors
    /// A file that cannot be read or is too short, settings that leave nothing to score.
    pub fn samples(&self, tokenizer: &Tokenizer) -> Result<Vec<Sample>> {
        match self {
            Self::Perplexity(task) => task.samples(tokenizer),
            Self::Questions(task) => task.samples(tokenizer),
            Self::Retrieval(task) => task.samples(tokenizer),
            Self::Recall(task) => task.samples(tokenizer),
        }
    }
}

#[cfg(test)]
mod tests;
