//! What a method costs on real text: perplexity, divergence from the exact cache, memory.
//!
//! The windows are spread evenly over the text and never overlap: of `n` tokens, window `w` of `k`
//! starts at token `w * max(W, (n - W) / k)` and has `W` tokens. Each window starts with an empty
//! cache. It goes through the model once with the exact cache and once with every method, and token
//! `p` of the window is scored from the logits of token `p - 1`. Methods see what they would have
//! seen had the tokens come one by one ([`AttentionOptions::streaming`]), so the scores are those
//! of decoding.

use std::time::Instant;

use burn::tensor::{Device, Tensor};
use burn_oscar::{AttentionOptions, KvCache, KvCacheConfig, MemoryReport, Method};

use crate::{
    generate::{forward, read_f32},
    model::{Model, ModelError},
    sampling::SamplingError,
};

mod agreement;
mod score;
mod summary;

pub use agreement::{Agreement, agreement};
pub use score::{Reference, Tally};
pub use summary::{MethodScore, Spread, WindowScore};

/// Positions whose logits exist at the same time. `[positions, vocabulary]` in f32 would be
/// 200 MB for a window of 1,024 tokens and a small vocabulary.
const SCORED_AT_ONCE: usize = 64;

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
        let mut run = |method: &Method| {
            let cache = caches
                .clone()
                .with_method(method.clone())
                .with_max_tokens(options.window)
                .init(device)?;
            run_window(
                model,
                device,
                cache,
                tokens,
                options.chunk,
                method,
                &mut |n| {
                    on_progress(EvaluateProgress {
                        method: method.name(),
                        window,
                        tokens: n,
                    });
                },
            )
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

/// The exact preset, and it alone, needs no run of its own.
fn is_exact(method: &Method) -> bool {
    method.name() == "exact"
}

fn run_window(
    model: &Model,
    device: &Device,
    mut cache: KvCache,
    tokens: &[u32],
    chunk: usize,
    method: &Method,
    on_chunk: &mut dyn FnMut(usize),
) -> Result<Run, EvaluateError> {
    let start = Instant::now();
    let mut parts = Vec::new();
    for part in tokens.chunks(chunk.max(1)) {
        let options = if is_exact(method) {
            AttentionOptions::causal()
        } else {
            AttentionOptions::causal().streaming()
        };
        parts.push(forward(model, device, &mut cache, part, options)?);
        on_chunk(part.len());
    }
    let hidden = Tensor::cat(parts, 1);
    device
        .sync()
        .map_err(|error| EvaluateError::Read(error.to_string()))?;
    Ok(Run {
        hidden,
        memory: cache.memory(),
        seconds: start.elapsed().as_secs_f64(),
    })
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
    let logits = |run: &Run, first: usize, count: usize| {
        read_f32(model.logits(run.hidden.clone().narrow(1, first, count)))
            .map_err(EvaluateError::Read)
    };
    let mut tallies = vec![Tally::default(); runs.len()];
    let mut first = options.positions_from.max(1);
    while first < tokens.len() {
        let count = SCORED_AT_ONCE.min(tokens.len() - first);
        // The logits of position `p - 1` predict token `p`.
        let exact = logits(reference, first - 1, count)?;
        let vocabulary = exact.len() / count;
        let at = |position: usize, source| EvaluateError::Logits {
            window,
            position,
            source,
        };
        let references = exact
            .chunks_exact(vocabulary)
            .zip(first..)
            .map(|(row, position)| {
                Reference::new(row, tokens[position] as usize).map_err(|e| at(position, e))
            })
            .collect::<Result<Vec<_>, _>>()?;
        for (run, tally) in runs.iter().zip(&mut tallies) {
            let Some(run) = run else {
                references.iter().for_each(|r| tally.add(&r.own_score()));
                continue;
            };
            let rows = logits(run, first - 1, count)?;
            for (row, reference) in references.iter().enumerate() {
                let position = first + row;
                let range = row * vocabulary..(row + 1) * vocabulary;
                let target = tokens[position] as usize;
                let score = reference
                    .score(&exact[range.clone()], &rows[range], target)
                    .map_err(|e| at(position, e))?;
                tally.add(&score);
            }
        }
        first += count;
    }
    Ok(tallies)
}

#[cfg(test)]
mod tests;
