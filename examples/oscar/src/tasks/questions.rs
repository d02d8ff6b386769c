//! The likelihood of the given answers of a question set, after several examples.

use std::path::PathBuf;

use models::tokenizer::Tokenizer;
use serde::Deserialize;
use serde_json::json;

use super::{Branch, Kind, Sample, Source, Span};
use crate::error::{Error, Result};

/// Questions that share one prefix of examples, and a row.
const AT_ONCE: usize = 16;

/// Questions of a JSON lines file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Questions {
    /// JSON lines with `question` and `answer`.
    #[serde(default)]
    pub file: PathBuf,
    /// Examples before each question, from the beginning of the file. There should be enough of
    /// them that their tokens are packed.
    #[serde(default = "shots")]
    pub shots: usize,
    /// Questions, spread evenly over the rest of the file.
    #[serde(default = "questions")]
    pub questions: usize,
}

/// Around 2,000 tokens of GSM8K.
fn shots() -> usize {
    12
}

fn questions() -> usize {
    16
}

/// One line.
#[derive(Debug, Deserialize)]
struct Line {
    question: String,
    answer: String,
}

impl Line {
    fn asked(&self) -> String {
        format!("Question: {}\nAnswer:", self.question)
    }

    fn answered(&self) -> String {
        format!(" {}", self.answer)
    }
}

impl Questions {
    /// One sample for every few questions.
    pub fn samples(&self, tokenizer: &Tokenizer) -> Result<Vec<Sample>> {
        let source = Source::read(&self.file)?;
        let lines = read_lines(&source)?;
        let needed = self.shots + self.questions;
        if self.questions == 0 || lines.len() < needed {
            return Err(source.too_short(
                "questions",
                "questions",
                lines.len(),
                needed.max(self.shots + 1),
                "fewer --shots or --questions",
            ));
        }
        let examples: String = lines[..self.shots]
            .iter()
            .map(|line| format!("{}{}\n\n", line.asked(), line.answered()))
            .collect();
        let prefix = tokenizer.encode(&examples, false)?;
        let task = source.note(Kind::Questions, json!({"shots": self.shots}));
        let rest = lines.len() - self.shots;
        let chosen: Vec<usize> = (0..self.questions)
            .map(|index| self.shots + index * rest / self.questions)
            .collect();
        chosen
            .chunks(AT_ONCE)
            .map(|numbers| {
                let branches = numbers.iter().map(|&number| {
                    let mut tokens = tokenizer.encode(&lines[number].asked(), false)?;
                    let asked = tokens.len();
                    tokens.extend(tokenizer.encode(&lines[number].answered(), false)?);
                    let spans = vec![Span::new("answer", asked..tokens.len())];
                    Ok(Branch { tokens, spans })
                });
                Ok(Sample {
                    task: task.clone(),
                    item: json!({"questions": numbers}),
                    prefix: prefix.clone(),
                    branches: branches.collect::<Result<_>>()?,
                })
            })
            .collect()
    }
}

fn read_lines(source: &Source) -> Result<Vec<Line>> {
    let lines = source.text.lines().enumerate();
    lines
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(index, line)| {
            serde_json::from_str(line).map_err(|error| Error::Line {
                path: source.path.clone(),
                line: index + 1,
                reason: format!("{error}; each line is a JSON object with `question` and `answer`"),
            })
        })
        .collect()
}
