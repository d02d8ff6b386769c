//! A sample of tokens that does not depend on the order in which they come: those with the smallest
//! hashes of text and position ("bottom k").

use std::collections::BTreeMap;

use super::fixed::Fixed;

/// A place in the texts, ordered by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    hash: u64,
    /// The caller's number of the text.
    pub text: u64,
    /// Counted from the start of the sequence.
    pub position: u64,
    /// Of the keys and values: two texts that were given one number stay two.
    content: u64,
}

impl Place {
    pub fn new(text: u64, position: u64, token: &Token) -> Self {
        let mut content = 0;
        for x in token.keys.iter().chain(&token.values) {
            content = mix(content ^ u64::from(x.to_bits()));
        }
        Self {
            hash: hash(text, position),
            text,
            position,
            content,
        }
    }
}

/// What orders the places.
pub(super) fn hash(text: u64, position: u64) -> u64 {
    mix(mix(text).wrapping_add(position))
}

/// SplitMix64 (Steele, Lea, Flood, 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// One token of a layer, all KV heads.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    /// `[kv_heads, head_dim]`.
    pub keys: Vec<f32>,
    /// `[kv_heads, head_dim]`.
    pub values: Vec<f32>,
    /// Sum of the squared attention weights on it so far, `[kv_heads]`.
    pub weights: Vec<Fixed>,
}

/// The sampled tokens of a layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sample(pub BTreeMap<Place, Token>);

impl Sample {
    /// Adds the tokens of another run, and keeps the `size` first. A token that both hold, because
    /// later calls went on attending to it, adds up its weights: one that was dropped before had
    /// `size` tokens ahead of it, and still has.
    pub fn add(&mut self, other: &Self, size: usize) {
        for (place, token) in &other.0 {
            match self.0.get_mut(place) {
                Some(held) => {
                    for (mine, theirs) in held.weights.iter_mut().zip(&token.weights) {
                        mine.add(*theirs);
                    }
                }
                None => {
                    self.0.insert(*place, token.clone());
                }
            }
        }
        while self.0.len() > size {
            self.0.pop_last();
        }
    }
}
