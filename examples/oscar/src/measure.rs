//! One sample through one method, and its score against the exact cache.

use std::time::Instant;

use burn::tensor::Tensor;
use burn_oscar::{KvCache, MemoryReport, Method};
use models::{
    cli::Session,
    evaluate::{Tally, compare, stream},
};

use crate::{
    error::Result,
    rows::{Bytes, SpanScore},
    tasks::Sample,
};

/// What one way through the model left behind.
pub struct Pass {
    /// Hidden states of the branches, each `[1, tokens, hidden_size]`.
    hidden: Vec<Tensor<3>>,
    memory: MemoryReport,
    /// Time of it, scoring excluded.
    pub seconds: f64,
}

impl Pass {
    /// Reads a sample through the cache of `method`, as if token by token. `on_tokens` hears how
    /// many tokens were read.
    ///
    /// # Errors
    /// What the model and the cache give.
    pub fn run(
        session: &Session,
        method: &Method,
        sample: &Sample,
        chunk: usize,
        on_tokens: &mut dyn FnMut(usize),
    ) -> Result<Self> {
        let (model, device) = (&session.loaded.model, &session.device);
        let forked = !sample.prefix.is_empty();
        let mut cache = session
            .cache_config()
            .with_method(method.clone())
            .with_max_tokens(sample.longest())
            .with_max_sequences(if forked { 2 } else { 1 })
            .init(device)?;
        let start = Instant::now();
        let mut read = |cache: &mut KvCache, tokens: &[u32]| {
            stream(model, device, cache, tokens, chunk, on_tokens)
        };
        if forked {
            read(&mut cache, &sample.prefix)?;
        }
        // Forks would count shared pages twice.
        let mut memory = cache.memory();
        let prefix = cache.sequences().last().copied();
        let mut hidden = Vec::new();
        for branch in &sample.branches {
            let fork = prefix
                .filter(|_| forked)
                .map(|prefix| cache.fork(prefix))
                .transpose()?;
            hidden.push(read(&mut cache, &branch.tokens)?);
            match fork {
                Some(fork) => cache.free(fork)?,
                None => {
                    memory = cache.memory();
                    cache.reset();
                }
            }
        }
        Ok(Self {
            hidden,
            memory,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// The scores of every span against the exact pass; of the exact pass itself without `run`.
    ///
    /// # Errors
    /// Logits that are not finite, a device that fails.
    pub fn score(
        session: &Session,
        sample: &Sample,
        exact: &Self,
        run: Option<&Self>,
    ) -> Result<Vec<SpanScore>> {
        let mut scores = Vec::new();
        for (index, branch) in sample.branches.iter().enumerate() {
            let mut tallies = vec![Tally::default(); branch.spans.len()];
            let starts = branch.spans.iter().map(|span| span.range.start);
            let ends = branch.spans.iter().map(|span| span.range.end);
            let (Some(first), Some(end)) = (starts.min(), ends.max()) else {
                continue;
            };
            compare(
                &session.loaded.model,
                (&branch.tokens, index),
                first..end,
                &exact.hidden[index],
                &[run.map(|run| &run.hidden[index])],
                &mut |_, position, tally| {
                    let spans = branch.spans.iter().zip(&mut tallies);
                    for (_, sum) in spans.filter(|(span, _)| span.range.contains(&position)) {
                        sum.add(tally);
                    }
                },
            )?;
            let spans = branch.spans.iter().zip(&tallies);
            scores.extend(spans.map(|(span, tally)| SpanScore::new(span, tally)));
        }
        Ok(scores)
    }

    /// The cache at the end; `exact` says how large a stored number is where nothing is packed.
    pub fn bytes(&self, exact: &Self) -> Bytes {
        Bytes::new(&self.memory, &exact.memory)
    }
}
