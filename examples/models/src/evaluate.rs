//! What a method costs on real text: perplexity, divergence from the exact cache, memory.
//!
//! The windows are spread evenly over the text and never overlap: of `n` tokens, window `w` of `k`
//! starts at token `w * max(W, (n - W) / k)` and has `W` tokens. Each window starts with an empty
//! cache. It goes through the model once with the exact cache and once with every method, and token
//! `p` of the window is scored from the logits of token `p - 1`. Methods see what they would have
//! seen had the tokens come one by one ([`stream`]), so the scores are those
//! of decoding.

use std::time::Instant;

use burn::tensor::{Device, Tensor};
use burn_oscar::{KvCacheConfig, MemoryReport, Method};

use crate::{
    model::{Model, ModelError},
    sampling::SamplingError,
};

mod agreement;
mod pass;
mod score;
mod summary;

pub use agreement::{Agreement, agreement};
pub use pass::{compare, is_exact, stream};
pub use score::{Reference, Tally};
pub use summary::{MethodScore, Spread, WindowScore, deviation};

/// Which part of the text is scored, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluateOptions {
    /// Tokens of a window, at least 2.
    pub window: usize,
    /// Windows, spread evenly over the text; 0 takes every whole window.
    pub windows: usize,
    /// The first position of each window that is scored, at least 1.
    pub positions_from: usize,
    /// How many tokens go through the model at once. The scores do not depend on it.
    pub chunk: usize,
}

/// Why a text could not be scored.
#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    /// A window that holds nothing to predict.
    #[error("a window of {0} tokens has nothing to predict: give --window at least 2")]
    Window(usize),
    /// No position is left to score.
    #[error(
        "--positions-from {from} leaves nothing to score in a window of {window} tokens: give at \
         most {}", window - 1
    )]
    PositionsFrom {
        /// The first position to score.
        from: usize,
        /// Tokens of a window.
        window: usize,
    },
    /// The text is too short.
    #[error(
        "the text has {tokens} tokens, room for {available} of the {wanted} windows of {window} \
         tokens: give fewer --windows, a smaller --window, or a longer text"
    )]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a window.
        window: usize,
        /// Whole windows in the text.
        available: usize,
        /// Windows asked for.
        wanted: usize,
    },
    /// The model's output is broken.
    #[error("window {window}, position {position}: {source}")]
    Logits {
        /// The window, from 0.
        window: usize,
        /// The position in the window.
        position: usize,
        /// What is wrong.
        source: SamplingError,
    },
    /// A cache could not be made.
    #[error(transparent)]
    Cache(#[from] burn_oscar::Error),
    /// The model or a cache failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The logits could not be read back from the device.
    #[error("the logits could not be read from the device: {0}")]
    Read(String),
}

/// Reported after every chunk.
#[derive(Clone, Copy, Debug)]
pub struct EvaluateProgress<'a> {
    /// The method at work.
    pub method: &'a str,
    /// The window, from 0.
    pub window: usize,
    /// Tokens read by this chunk.
    pub tokens: usize,
}

impl EvaluateOptions {
    /// How many windows will be scored in a text of `tokens` tokens.
    ///
    /// # Errors
    /// [`EvaluateError::Window`], [`EvaluateError::PositionsFrom`] and
    /// [`EvaluateError::TextTooShort`].
    pub fn count_windows(&self, tokens: usize) -> Result<usize, EvaluateError> {
        if self.window < 2 {
            return Err(EvaluateError::Window(self.window));
        }
        if self.positions_from >= self.window {
            return Err(EvaluateError::PositionsFrom {
                from: self.positions_from,
                window: self.window,
            });
        }
        let available = tokens / self.window;
        let wanted = if self.windows == 0 {
            available.max(1)
        } else {
            self.windows
        };
        if wanted > available {
            return Err(EvaluateError::TextTooShort {
                tokens,
                window: self.window,
                available,
                wanted,
            });
        }
        Ok(wanted)
    }

    /// The first tokens of `windows` windows in a text of `tokens` tokens, which holds that many.
    fn starts(&self, tokens: usize, windows: usize) -> impl Iterator<Item = usize> + use<> {
        let step = (tokens - self.window) / windows.max(1);
        let step = step.max(self.window);
        (0..windows).map(move |window| window * step)
    }

    /// How many tokens will go through the model to score `methods`: the total for a progress bar.
    pub fn work(&self, windows: usize, methods: &[Method]) -> usize {
        let runs = 1 + methods.iter().filter(|method| !is_exact(method)).count();
        windows * self.window * runs
    }
}

/// One pass of one window.
struct Run {
    /// `[1, window, hidden_size]`
    hidden: Tensor<3>,
    memory: MemoryReport,
    seconds: f64,
}

/// Scores every method on the same windows of `ids`, against the exact cache.
///
/// `caches` says what the model needs of a cache; method and length are set here. The result has
/// one entry per method, in order. `exact` costs nothing extra: it is the reference.
///
/// # Errors
/// See [`EvaluateError`].
pub fn evaluate(
    model: &Model,
    caches: &KvCacheConfig,
    device: &Device,
    ids: &[u32],
    methods: &[Method],
    options: &EvaluateOptions,
    on_progress: &mut dyn FnMut(EvaluateProgress<'_>),
) -> Result<Vec<MethodScore>, EvaluateError> {
    let windows = options.count_windows(ids.len())?;
    let exact = Method::exact();
    let mut scores: Vec<MethodScore> = methods
        .iter()
        .map(|method| MethodScore::new(method, options, windows))
        .collect();
    for (window, start) in options.starts(ids.len(), windows).enumerate() {
        let tokens = &ids[start..start + options.window];
        let mut run = |method: &Method| -> Result<Run, EvaluateError> {
            let mut cache = caches
                .clone()
                .with_method(method.clone())
                .with_max_tokens(options.window)
                .init(device)?;
            let start = Instant::now();
            let hidden = stream(model, device, &mut cache, tokens, options.chunk, &mut |n| {
                on_progress(EvaluateProgress {
                    method: method.name(),
                    window,
                    tokens: n,
                });
            })?;
            Ok(Run {
                hidden,
                memory: cache.memory(),
                seconds: start.elapsed().as_secs_f64(),
            })
        };
        let reference = run(&exact)?;
        let runs = methods
            .iter()
            .map(|method| (!is_exact(method)).then(|| run(method)).transpose())
            .collect::<Result<Vec<Option<Run>>, EvaluateError>>()?;
        let tallies = score_window(model, tokens, window, options, &reference, &runs)?;
        for ((score, run), tally) in scores.iter_mut().zip(&runs).zip(tallies) {
            let run = run.as_ref().unwrap_or(&reference);
            score.add_window(start, tally, &run.memory, run.seconds);
        }
    }
    for score in &mut scores {
        score.finish();
    }
    Ok(scores)
}

/// Scores one window of every run, `None` standing for the reference itself.
fn score_window(
    model: &Model,
    tokens: &[u32],
    window: usize,
    options: &EvaluateOptions,
    reference: &Run,
    runs: &[Option<Run>],
) -> Result<Vec<Tally>, EvaluateError> {
    let mut tallies = vec![Tally::default(); runs.len()];
    let hidden: Vec<_> = runs
        .iter()
        .map(|run| run.as_ref().map(|run| &run.hidden))
        .collect();
    let positions = options.positions_from.max(1)..tokens.len();
    compare(
        model,
        (tokens, window),
        positions,
        &reference.hidden,
        &hidden,
        &mut |run, _, tally| tallies[run].add(tally),
    )?;
    Ok(tallies)
}

#[cfg(test)]
mod tests;
