//! The generation loop: read the prompt in chunks, then add one token at a time.
//!
//! The cache may already hold tokens. The prompt continues them, which is how a chat feeds only
//! what is new. Afterwards the cache holds the prompt and every generated token but the last: a
//! token enters the cache when the one after it is computed.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_oscar::{AttentionOptions, KvCache};

use crate::{
    model::{Model, ModelError},
    sampling::{Sampler, SamplingError},
};

/// The bounds of one generation.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// The most tokens to add to the prompt.
    pub max_new_tokens: usize,
    /// The most tokens the cache can hold. Generation stops there.
    pub max_tokens: usize,
    /// How many prompt tokens go through the model at once. Attention needs memory in proportion.
    pub chunk: usize,
    /// Generation ends when one of these is drawn; it is not part of the result.
    pub stop_tokens: Vec<u32>,
}

/// What is reported while generating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// This many of the prompt's tokens have been read.
    Prefill(usize),
    /// This token was added.
    Token(u32),
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model drew a stop token.
    StopToken,
    /// `max_new_tokens` were generated.
    MaxNewTokens,
    /// The cache holds `max_tokens`.
    CacheFull,
    /// The callback asked for it.
    Interrupted,
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::StopToken => "the model ended its text",
            Self::MaxNewTokens => "the limit of new tokens was reached",
            Self::CacheFull => "the cache is full",
            Self::Interrupted => "interrupted",
        })
    }
}

/// The outcome of one generation.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The generated tokens, without the prompt and without a stop token.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub stop: StopReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Time from the start to the first token.
    pub prefill: Duration,
    /// Time for the `decode_steps` after it.
    pub decode: Duration,
    /// Passes of a single token through the model.
    pub decode_steps: usize,
}

impl Generation {
    const EMPTY: Self = Self {
        tokens: Vec::new(),
        stop: StopReason::MaxNewTokens,
        prompt_tokens: 0,
        prefill: Duration::ZERO,
        decode: Duration::ZERO,
        decode_steps: 0,
    };

    /// Prompt tokens per second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens, self.prefill)
    }

    /// Generated tokens per second, the first token excluded: it belongs to the prompt's pass.
    pub fn decode_rate(&self) -> f64 {
        rate(self.decode_steps, self.decode)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() {
        0.0
    } else {
        count as f64 / time.as_secs_f64()
    }
}

/// Why nothing, or no more, could be generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The prompt has no tokens.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// Prompt and cache do not fit.
    #[error(
        "the prompt has {prompt} tokens and the cache already holds {held}, but it has room for \
         {max_tokens} in all: shorten the prompt or raise --max-tokens"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that the cache held before.
        held: usize,
        /// What the cache can hold.
        max_tokens: usize,
    },
    /// The model or its cache failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// No token could be drawn.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The logits could not be read back from the device.
    #[error("the logits could not be read from the device: {0}")]
    Read(String),
}

/// Continues the newest sequence of `cache` with `prompt`, then with tokens that `sampler` draws:
/// [`prefill`], then [`decode`].
///
/// `on_progress` hears of every chunk and every token, and may end the generation.
///
/// # Errors
/// See [`GenerateError`]. Tokens reported before an error stay in the cache.
pub fn generate(
    model: &Model,
    device: &Device,
    cache: &mut KvCache,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Generation, GenerateError> {
    let start = Instant::now();
    let held = held_tokens(cache);
    if held + prompt.len() > options.max_tokens {
        return Err(GenerateError::PromptTooLong {
            prompt: prompt.len(),
            held,
            max_tokens: options.max_tokens,
        });
    }
    let logits = prefill(model, device, cache, prompt, options.chunk, on_progress)?;
    let prefill = start.elapsed();
    let decoded = match logits {
        Some(logits) => decode(model, device, cache, logits, sampler, options, on_progress)?,
        None => Generation {
            stop: StopReason::Interrupted,
            ..Generation::EMPTY
        },
    };
    Ok(Generation {
        prompt_tokens: prompt.len(),
        prefill,
        ..decoded
    })
}

/// Continues the newest sequence of `cache` with tokens that `sampler` draws, the first of them
/// from `logits`, which are those after the sequence's last token.
///
/// The result knows nothing of a prompt.
///
/// # Errors
/// See [`GenerateError`]. Tokens reported before an error stay in the cache.
pub fn decode(
    model: &Model,
    device: &Device,
    cache: &mut KvCache,
    mut logits: Vec<f32>,
    sampler: &mut Sampler,
    options: &GenerateOptions,
    on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Generation, GenerateError> {
    let start = Instant::now();
    let mut result = Generation::EMPTY;
    while result.tokens.len() < options.max_new_tokens {
        let token = sampler.sample(&logits)?;
        if options.stop_tokens.contains(&token) {
            result.stop = StopReason::StopToken;
            break;
        }
        result.tokens.push(token);
        if on_progress(Progress::Token(token)).is_break() {
            result.stop = StopReason::Interrupted;
            break;
        }
        if result.tokens.len() == options.max_new_tokens {
            break;
        }
        if held_tokens(cache) >= options.max_tokens {
            result.stop = StopReason::CacheFull;
            break;
        }
        let hidden = forward(model, device, cache, &[token], AttentionOptions::causal())?;
        logits = last_logits(model, hidden)?;
        result.decode_steps += 1;
    }
    result.decode = start.elapsed();
    Ok(result)
}

/// Reads `prompt` into the cache, `chunk` tokens at a time, and returns the logits that follow its
/// last token; `None` where `on_progress` ended it.
///
/// # Errors
/// See [`GenerateError`]. Chunks that were read before an error stay in the cache.
pub fn prefill(
    model: &Model,
    device: &Device,
    cache: &mut KvCache,
    prompt: &[u32],
    chunk: usize,
    on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Option<Vec<f32>>, GenerateError> {
    let mut done = 0;
    let mut last = None;
    for part in prompt.chunks(chunk.max(1)) {
        last = Some(forward(
            model,
            device,
            cache,
            part,
            AttentionOptions::causal(),
        )?);
        done += part.len();
        if on_progress(Progress::Prefill(done)).is_break() {
            return Ok(None);
        }
    }
    let hidden = last.ok_or(GenerateError::EmptyPrompt)?;
    last_logits(model, hidden).map(Some)
}

/// Appends `tokens` to the newest sequence of the cache: hidden states `[1, tokens, hidden_size]`.
///
/// # Errors
/// What [`Model::forward_rows`] gives; the cache is then as it was.
pub fn forward(
    model: &Model,
    device: &Device,
    cache: &mut KvCache,
    tokens: &[u32],
    options: AttentionOptions,
) -> Result<Tensor<3>, ModelError> {
    let ids: Vec<i32> = tokens.iter().map(|&id| id as i32).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, tokens.len()]), device);
    let newest: Vec<_> = cache.sequences().last().copied().into_iter().collect();
    model.forward_rows(ids, &newest, cache, options)
}

/// The logits after the last position of `hidden`, one per token of the vocabulary.
fn last_logits(model: &Model, hidden: Tensor<3>) -> Result<Vec<f32>, GenerateError> {
    let tokens = hidden.dims()[1];
    read_f32(model.logits(hidden.narrow(1, tokens - 1, 1))).map_err(GenerateError::Read)
}

/// The values of a float tensor of any precision, in row-major order.
pub(crate) fn read_f32(tensor: Tensor<3>) -> Result<Vec<f32>, String> {
    tensor
        .try_into_data_as::<f32>()
        .map_err(|error| error.to_string())?
        .try_into_vec::<f32>()
        .map_err(|error| error.to_string())
}

/// Tokens in the newest sequence of the cache.
fn held_tokens(cache: &KvCache) -> usize {
    cache.lens().last().copied().unwrap_or(0)
}

#[cfg(test)]
pub(crate) mod tests;
