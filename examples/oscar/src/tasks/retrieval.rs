//! Numbers hidden in a long text and asked for at its end, by length and depth.
//!
//! The hay is a stretch of the given text. A needle is a sentence with a city and a number; the
//! question ends right before the number, and the number's tokens are scored. Their likelihood is
//! the fine measure. The coarse one is whether greedy decoding would write the number: it would
//! exactly if each of its tokens is the most likely one after those before it, so the same pass
//! answers that.

use std::path::PathBuf;

use models::tokenizer::Tokenizer;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Branch, Kind, Sample, Source, Span, TaskNote, source::starts};
use crate::error::{Error, Result};

const CITIES: [&str; 16] = [
    "Lisbon", "Oslo", "Nairobi", "Lima", "Hanoi", "Quebec", "Athens", "Perth", "Dakar", "Seoul",
    "Havana", "Tunis", "Bergen", "Osaka", "Tbilisi", "Geneva",
];

/// Needles in hay.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retrieval {
    /// The hay.
    #[serde(default)]
    pub text: PathBuf,
    /// Tokens of hay and needles.
    #[serde(default = "lengths")]
    pub lengths: Vec<usize>,
    /// Where a single needle lies, 0 (beginning) to 1 (end). Several needles are spread evenly.
    #[serde(default = "depths")]
    pub depths: Vec<f64>,
    /// Needles in one text, each of which is asked for by itself.
    #[serde(default = "one")]
    pub needles: usize,
    /// Texts of each length and depth, with other hay and other numbers.
    #[serde(default = "one")]
    pub repeats: usize,
}

fn lengths() -> Vec<usize> {
    vec![2048]
}

fn depths() -> Vec<f64> {
    vec![0.0, 0.25, 0.5, 0.75, 1.0]
}

fn one() -> usize {
    1
}

/// A needle: where it lies, and what it says.
struct Needle {
    depth: f64,
    city: &'static str,
    number: u32,
}

impl Needle {
    fn new(depth: f64, repeat: usize, index: usize) -> Self {
        let seed = Sha256::digest(format!("needle {repeat} {index} {depth}"));
        let word = u32::from_le_bytes([seed[0], seed[1], seed[2], seed[3]]);
        Self {
            depth,
            city: CITIES[(repeat + index) % CITIES.len()],
            number: 10_000 + word % 90_000,
        }
    }

    fn sentence(&self) -> String {
        format!(" The secret number of {} is {}.", self.city, self.number)
    }

    fn question(&self) -> String {
        format!(
            "\n\nQuestion: What is the secret number of {}?\nAnswer: The secret number of {} is",
            self.city, self.city
        )
    }

    fn answer(&self) -> String {
        format!(" {}", self.number)
    }
}

impl Retrieval {
    /// One sample a text: for every length and repeat one for every depth, or one with several
    /// needles.
    pub fn samples(&self, tokenizer: &Tokenizer) -> Result<Vec<Sample>> {
        self.check()?;
        let source = Source::read(&self.text)?;
        let ids = source.tokens(tokenizer)?;
        let mut samples = Vec::new();
        for &length in &self.lengths {
            let starts = starts(ids.len(), length, self.repeats).ok_or_else(|| {
                source.too_short(
                    "retrieval",
                    "tokens",
                    ids.len(),
                    length * self.repeats,
                    "shorter --lengths or fewer --repeats",
                )
            })?;
            let settings = json!({"length": length, "needles": self.needles});
            let task = source.note(Kind::Retrieval, settings);
            for (repeat, start) in starts.into_iter().enumerate() {
                let hay = &ids[start..start + length];
                if self.needles > 1 {
                    let spread = |index| (index as f64 + 0.5) / self.needles as f64;
                    let needles = (0..self.needles)
                        .map(|index| Needle::new(spread(index), repeat, index))
                        .collect::<Vec<_>>();
                    let item = json!({"repeat": repeat});
                    samples.push(sample(tokenizer, &task, item, hay, &needles)?);
                    continue;
                }
                for &depth in &self.depths {
                    let item = json!({"repeat": repeat, "depth": depth});
                    let needles = [Needle::new(depth, repeat, 0)];
                    samples.push(sample(tokenizer, &task, item, hay, &needles)?);
                }
            }
        }
        Ok(samples)
    }

    fn check(&self) -> Result<()> {
        if self.needles == 0 || self.needles > CITIES.len() {
            return Err(Error::usage(format!(
                "{} needles: give 1 to {}",
                self.needles,
                CITIES.len()
            )));
        }
        if let Some(depth) = self
            .depths
            .iter()
            .find(|depth| !(0.0..=1.0).contains(*depth))
        {
            return Err(Error::usage(format!(
                "depth {depth}: 0 is the beginning of the text and 1 its end"
            )));
        }
        if self.lengths.is_empty() || self.repeats == 0 || self.depths.is_empty() {
            return Err(Error::usage(
                "retrieval needs at least one length, one depth and one repeat",
            ));
        }
        Ok(())
    }
}

/// Hay with needles, cut to the hay's length, and a question for each.
fn sample(
    tokenizer: &Tokenizer,
    task: &TaskNote,
    item: Value,
    hay: &[u32],
    needles: &[Needle],
) -> Result<Sample> {
    let sentences = needles
        .iter()
        .map(|needle| Ok(tokenizer.encode(&needle.sentence(), false)?))
        .collect::<Result<Vec<_>>>()?;
    let taken: usize = sentences.iter().map(Vec::len).sum();
    let Some(kept) = hay.len().checked_sub(taken) else {
        return Err(Error::usage(format!(
            "{} needles have {taken} tokens and do not fit into {}: give a larger length",
            needles.len(),
            hay.len()
        )));
    };
    let mut prefix = Vec::with_capacity(hay.len());
    let mut done = 0;
    for (needle, sentence) in needles.iter().zip(&sentences) {
        // Needles come in the order of their depths.
        let until = ((needle.depth * kept as f64).round() as usize).clamp(done, kept);
        prefix.extend_from_slice(&hay[done..until]);
        prefix.extend_from_slice(sentence);
        done = until;
    }
    prefix.extend_from_slice(&hay[done..kept]);
    let branches = needles.iter().map(|needle| {
        let mut tokens = tokenizer.encode(&needle.question(), false)?;
        let asked = tokens.len();
        tokens.extend(tokenizer.encode(&needle.answer(), false)?);
        let label = format!("depth {:.0} %", 100.0 * needle.depth);
        let spans = vec![Span::new(label, asked..tokens.len())];
        Ok(Branch { tokens, spans })
    });
    Ok(Sample {
        task: task.clone(),
        item,
        prefix,
        branches: branches.collect::<Result<_>>()?,
    })
}
