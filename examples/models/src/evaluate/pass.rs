//! One way of a text through the model, and two of them compared position by position.

use std::ops::Range;

use burn::tensor::{Device, Tensor};
use burn_oscar::{AttentionOptions, KvCache, Method};

use super::{EvaluateError, Reference, Tally};
use crate::{
    generate::{forward, read_f32},
    model::Model,
};

/// Positions whose logits exist at the same time. `[positions, vocabulary]` in f32 would be
/// 200 MB for a window of 1,024 tokens and a small vocabulary.
const SCORED_AT_ONCE: usize = 64;

/// The exact preset, and it alone, is its own reference and needs no run of its own.
pub fn is_exact(method: &Method) -> bool {
    method.name() == "exact"
}

/// Appends `tokens` to the newest sequence of the cache, `chunk` at a time: hidden states
/// `[1, tokens, hidden_size]`.
///
/// Every token sees what it would have seen had they come one by one
/// ([`AttentionOptions::streaming`]), so nothing depends on the chunk. `on_chunk` hears how many
/// tokens went through.
///
/// # Errors
/// What the model and its cache give, and [`EvaluateError::Read`] where the device fails.
pub fn stream(
    model: &Model,
    device: &Device,
    cache: &mut KvCache,
    tokens: &[u32],
    chunk: usize,
    on_chunk: &mut dyn FnMut(usize),
) -> Result<Tensor<3>, EvaluateError> {
    // Nothing leaves the exact cache, so streaming would only be slower.
    let options = if is_exact(cache.config().method()) {
        AttentionOptions::causal()
    } else {
        AttentionOptions::causal().streaming()
    };
    let mut parts = Vec::new();
    for part in tokens.chunks(chunk.max(1)) {
        parts.push(forward(model, device, cache, part, options.clone())?);
        on_chunk(part.len());
    }
    let hidden = Tensor::cat(parts, 1);
    device
        .sync()
        .map_err(|error| EvaluateError::Read(error.to_string()))?;
    Ok(hidden)
}

/// Scores the `positions` of a text, at least 1 each, for several runs against a reference; `None`
/// stands for the reference itself.
///
/// `text` is the tokens and the number of the text, which errors name. `reference` and `runs` are
/// hidden states `[1, tokens, hidden_size]`, as [`stream`] gives them. Token `p` is scored from the
/// hidden state of token `p - 1`; `on_score` is given the run, the position and its score.
///
/// # Errors
/// [`EvaluateError::Logits`] for logits that are not finite, [`EvaluateError::Read`].
pub fn compare(
    model: &Model,
    (tokens, window): (&[u32], usize),
    positions: Range<usize>,
    reference: &Tensor<3>,
    runs: &[Option<&Tensor<3>>],
    on_score: &mut dyn FnMut(usize, usize, &Tally),
) -> Result<(), EvaluateError> {
    let logits = |hidden: &Tensor<3>, first: usize, count: usize| {
        read_f32(model.logits(hidden.clone().narrow(1, first, count))).map_err(EvaluateError::Read)
    };
    let mut first = positions.start.max(1);
    let end = positions.end.min(tokens.len());
    while first < end {
        let count = SCORED_AT_ONCE.min(end - first);
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
        for (index, run) in runs.iter().enumerate() {
            let Some(run) = run else {
                for (reference, position) in references.iter().zip(first..) {
                    on_score(index, position, &reference.own_score());
                }
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
                on_score(index, position, &score);
            }
        }
        first += count;
    }
    Ok(())
}
