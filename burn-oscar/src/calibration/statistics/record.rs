//! What one call contributes.

use super::fixed::Fixed;
use super::moments::Accumulator;
use super::sample::{self, Place, Sample, Token};
use super::{HeadStatistics, Histogram, LayerStatistics, StatisticsConfig};
use crate::error::{Error, Result};

/// One call of attention, as one sequence of it has it, on the host.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// Names the text, so that the sample is the same however the texts are shared out.
    pub text: u64,
    /// Tokens that the sequence held before.
    pub past: usize,
    /// Tokens of the call.
    pub tokens: usize,
    /// Multiplies the scores.
    pub scale: f64,
    /// `[query heads, tokens, head_dim]`.
    pub queries: &'a [f32],
    /// `[kv_heads, past + tokens, head_dim]`.
    pub keys: &'a [f32],
    /// `[kv_heads, past + tokens, head_dim]`.
    pub values: &'a [f32],
    /// `[kv_heads, past + tokens]`: on each token the sum, over the call's queries and the query
    /// heads of the group, of the squared attention weights.
    pub weights: &'a [f64],
    /// `[query heads, tokens]`: of each query the sum of `p (1 - p)`, `p` its attention weights, over
    /// the tokens past the sinks that are at least a block older.
    pub query_sensitivity: &'a [f64],
    /// `[kv_heads, past + tokens]`: the same terms on each token, over the call's queries and the
    /// query heads of the group.
    pub key_sensitivity: &'a [f64],
}

impl Observation<'_> {
    fn check(&self, config: &StatisticsConfig) -> Result<()> {
        let (heads, d, held) = (
            config.n_kv_heads,
            config.head_dim,
            self.past.saturating_add(self.tokens),
        );
        let row = self.tokens.saturating_mul(d);
        let query_heads = self.queries.len().checked_div(row).unwrap_or(0);
        let shape = |tensor, found: usize, expected: String| {
            Err(Error::Shape {
                tensor,
                found: vec![found],
                expected,
            })
        };
        if self.tokens == 0
            || query_heads * row != self.queries.len()
            || query_heads == 0
            || !query_heads.is_multiple_of(heads)
        {
            return shape(
                "query",
                self.queries.len(),
                format!(
                    "a multiple of {heads} heads x {} tokens x {d} channels, at least 1 of each",
                    self.tokens
                ),
            );
        }
        for (name, numbers) in [("key", self.keys), ("value", self.values)] {
            if numbers.len() != heads * held * d {
                let expected = format!("{heads} KV heads x {held} tokens x {d} channels");
                return shape(name, numbers.len(), expected);
            }
        }
        for (name, numbers, heads, tokens) in [
            ("weights", self.weights, heads, held),
            ("key_sensitivity", self.key_sensitivity, heads, held),
            (
                "query_sensitivity",
                self.query_sensitivity,
                query_heads,
                self.tokens,
            ),
        ] {
            if numbers.len() != heads * tokens {
                let expected = format!("{heads} heads x {tokens} tokens");
                return shape(name, numbers.len(), expected);
            }
        }
        Ok(())
    }

    fn query_heads(&self, config: &StatisticsConfig) -> usize {
        self.queries.len() / (self.tokens * config.head_dim)
    }
}

impl LayerStatistics {
    /// The statistics of one call alone.
    pub(super) fn of_call(config: &StatisticsConfig, call: &Observation) -> Result<Self> {
        call.check(config)?;
        let heads = (0..config.n_kv_heads)
            .map(|head| head_statistics(config, call, head))
            .collect::<Result<_>>()?;
        Ok(Self {
            tokens: call.tokens as u64,
            sequences: u64::from(call.past == 0),
            longest: (call.past + call.tokens) as u64,
            query_heads: call.query_heads(config),
            scale: call.scale,
            heads,
            contributions: 1,
            sample: sampled(config, call)?,
        })
    }
}

fn head_statistics(
    config: &StatisticsConfig,
    call: &Observation,
    head: usize,
) -> Result<HeadStatistics> {
    let d = config.head_dim;
    let held = call.past + call.tokens;
    let group = call.query_heads(config) / config.n_kv_heads;
    let wide = |numbers: &[f32], heads: usize, tokens: usize| -> Vec<f64> {
        let size = heads * tokens * d;
        let numbers = &numbers[head * size..(head + 1) * size];
        numbers.iter().copied().map(f64::from).collect()
    };
    let queries = wide(call.queries, group, call.tokens);
    let keys = wide(call.keys, 1, held);
    let values = wide(call.values, 1, held);
    let weights = &call.weights[head * held..(head + 1) * held];
    let on_keys = &call.key_sensitivity[head * held..(head + 1) * held];
    let size = group * call.tokens;
    let of_queries = &call.query_sensitivity[head * size..(head + 1) * size];
    // The first new token that counts as a key or value, and the first of all.
    let fresh = call.past.max(config.sinks).min(held);
    let past_sinks = config.sinks.min(held);

    let of = |vectors: &[f64], weight: &dyn Fn(usize) -> f64| {
        let mut sums = Accumulator::new(d);
        sums.add(vectors, weight);
        sums
    };
    let once = |_: usize| 1.0;
    let query_sums = of(&queries, &once);
    let new_keys = &keys[call.past * d..];
    let proxy = proxy_weights(query_sums.second(), new_keys, d);
    Ok(HeadStatistics {
        queries: query_sums.finish()?,
        sensitive_queries: of(&queries, &|t| of_queries[t]).finish()?,
        keys: of(&keys[fresh * d..], &once).finish()?,
        keys_in_block: blocks(config, call.past, &keys, &once).finish()?,
        sensitive_keys_in_block: blocks(config, 0, &keys, &|s| on_keys[s]).finish()?,
        values: of(&values[fresh * d..], &once).finish()?,
        attended: of(&values[past_sinks * d..], &|s| weights[past_sinks + s]).finish()?,
        proxy: of(&values[call.past * d..], &|t| proxy[t]).finish()?,
        key_norms: norms(&keys[fresh * d..], d),
        value_norms: norms(&values[fresh * d..], d),
    })
}

/// Keys about the mean of their block, for the blocks that end after the first `past` tokens.
fn blocks(
    config: &StatisticsConfig,
    past: usize,
    keys: &[f64],
    weight: &dyn Fn(usize) -> f64,
) -> Accumulator {
    let (d, block) = (config.head_dim, config.block);
    let mut sums = Accumulator::new(d);
    let ended = |tokens: usize| tokens.saturating_sub(config.sinks) / block;
    for index in ended(past)..ended(keys.len() / d) {
        let start = config.sinks + index * block;
        let mut centred = keys[start * d..(start + block) * d].to_vec();
        let mut mean = vec![0.0; d];
        for key in centred.chunks_exact(d) {
            mean.iter_mut().zip(key).for_each(|(m, x)| *m += x);
        }
        for key in centred.chunks_exact_mut(d) {
            let numbers = key.iter_mut().zip(&mean);
            numbers.for_each(|(x, m)| *x -= m / block as f64);
        }
        sums.add(&centred, |s| weight(start + s));
    }
    sums
}

/// OSCAR's weights without a softmax (its published code, `sst`): `k C_Q kᵀ`, 1 on average.
/// `second` is the upper triangle of the queries' second moments, whose scale cancels.
fn proxy_weights(second: &[f64], keys: &[f64], d: usize) -> Vec<f64> {
    let mut weights: Vec<f64> = keys
        .chunks_exact(d)
        .map(|k| {
            let row = |i: usize| {
                let right = second[i * d + i + 1..(i + 1) * d].iter().zip(&k[i + 1..]);
                let beside: f64 = right.map(|(c, x)| c * x).sum();
                k[i] * (second[i * d + i] * k[i] + 2.0 * beside)
            };
            // A square, up to rounding.
            (0..d).map(row).sum::<f64>().max(0.0)
        })
        .collect();
    let total: f64 = weights.iter().sum();
    let count = weights.len() as f64;
    // Keys that no query sees at all are worth the same.
    let even = total <= 0.0;
    for weight in &mut weights {
        *weight = if even { 1.0 } else { *weight * count / total };
    }
    weights
}

fn norms(vectors: &[f64], d: usize) -> Histogram {
    let mut histogram = Histogram::empty();
    for x in vectors.chunks_exact(d) {
        histogram.count(x.iter().map(|x| x * x).sum::<f64>().sqrt());
    }
    histogram
}

/// The call's own bottom tokens, older ones included, whose weights grow.
fn sampled(config: &StatisticsConfig, call: &Observation) -> Result<Sample> {
    let (d, held) = (config.head_dim, call.past + call.tokens);
    let mut order: Vec<(u64, usize)> = (config.sinks.min(held)..held)
        .map(|position| (sample::hash(call.text, position as u64), position))
        .collect();
    order.sort_unstable();
    let mut sample = Sample::default();
    for &(_, position) in order.iter().take(config.sample) {
        let of = |numbers: &[f32]| -> Vec<f32> {
            let row = |head| (head * held + position) * d;
            (0..config.n_kv_heads)
                .flat_map(|head| numbers[row(head)..row(head) + d].iter().copied())
                .collect()
        };
        let weights = (0..config.n_kv_heads).map(|head| call.weights[head * held + position]);
        let token = Token {
            keys: of(call.keys),
            values: of(call.values),
            weights: Fixed::all(weights)?,
        };
        let place = Place::new(call.text, position as u64, &token);
        sample.0.insert(place, token);
    }
    Ok(sample)
}
