//! Texts through the exact cache, which observes them.

use std::{path::PathBuf, str::FromStr};

use burn_oscar::{
    Method, ObserveOptions,
    calibration::{Statistics, learner::Window},
};
use indicatif::ProgressBar;
use models::{cli::Session, evaluate::stream};
use sha2::{Digest, Sha256};

use crate::{
    error::{Error, Result},
    tasks::{Source, starts},
};

/// Which windows of which texts are read.
#[derive(Clone, Debug)]
pub struct Gather {
    /// The texts, UTF-8 files.
    pub texts: Vec<PathBuf>,
    /// Windows of each text, spread evenly.
    pub windows: usize,
    /// Tokens of a window.
    pub window: usize,
    /// The part that is read here.
    pub shard: Shard,
    /// Tokens that go through the model at once.
    pub chunk: usize,
}

/// One of several parts of the windows, which are dealt out like cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    pub number: usize,
    /// How many parts there are.
    pub of: usize,
}

impl Shard {
    /// Everything.
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    fn has(self, index: usize) -> bool {
        index % self.of == self.number - 1
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(number, of)| {
            Some(Self {
                number: number.parse().ok()?,
                of: of.parse().ok()?,
            })
        });
        parsed
            .filter(|shard| shard.number >= 1 && shard.number <= shard.of)
            .ok_or_else(|| "write NUMBER/COUNT, as in 1/4 for the first of four parts".to_string())
    }
}

impl Gather {
    /// Tokens that will be read here, for a progress bar.
    pub fn tokens(&self) -> usize {
        let all = self.texts.len() * self.windows;
        (0..all).filter(|index| self.shard.has(*index)).count() * self.window
    }

    /// Reads the texts through the model.
    ///
    /// # Errors
    /// A text that cannot be read or is too short, and what the model and the cache give.
    pub fn run(&self, session: &Session, bar: &ProgressBar) -> Result<Statistics> {
        let windows = self.windows(session)?;
        let mut cache = session
            .cache_config()
            .with_method(Method::exact())
            .with_max_tokens(self.window)
            .observing(ObserveOptions::default())
            .init(&session.device)?;
        let (model, device) = (&session.loaded.model, &session.device);
        let count = windows.len();
        for (index, window) in windows.iter().enumerate() {
            bar.set_message(format!("calibration, window {} of {count}", index + 1));
            let sequence = cache.reset();
            cache.set_text_id(sequence, window.text)?;
            stream(
                model,
                device,
                &mut cache,
                &window.tokens,
                self.chunk,
                &mut |n| {
                    bar.inc(n as u64);
                },
            )?;
        }
        cache.take_statistics().ok_or_else(|| {
            Error::usage("the cache observed nothing: build burn-oscar with its feature calibrate")
        })
    }

    /// The windows of this part, each with the number by which its sample of tokens is drawn.
    ///
    /// # Errors
    /// A text that cannot be read or is too short, a window that the model was not trained for, a
    /// part without windows.
    pub fn windows(&self, session: &Session) -> Result<Vec<Window>> {
        let trained = session.loaded.config.max_position_embeddings;
        if self.window > trained {
            return Err(Error::usage(format!(
                "a window of {} tokens: this model was trained for {trained}, give at most that; \
                 --serve-length reaches further by the rotary embedding",
                self.window
            )));
        }
        let mut windows = Vec::new();
        let mut index = 0;
        for path in &self.texts {
            let source = Source::read(path)?;
            let ids = source.tokens(session.tokenizer())?;
            let starts = starts(ids.len(), self.window, self.windows).ok_or_else(|| {
                source.too_short(
                    "calibration",
                    "tokens",
                    ids.len(),
                    self.window * self.windows,
                    "fewer or shorter --windows",
                )
            })?;
            for start in starts {
                if self.shard.has(index) {
                    windows.push(Window {
                        text: text_id(&source, start),
                        tokens: ids[start..start + self.window].to_vec(),
                    });
                }
                index += 1;
            }
        }
        if windows.is_empty() {
            return Err(Error::usage(format!(
                "part {} of {} of {index} windows is empty: give fewer parts or more --windows",
                self.shard.number, self.shard.of
            )));
        }
        Ok(windows)
    }
}

/// The same for the same stretch of the same text, in any part and beside any other text.
fn text_id(source: &Source, start: usize) -> u64 {
    let digest = Sha256::digest(format!("{} {start}", source.digest()));
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(bytes)
}
