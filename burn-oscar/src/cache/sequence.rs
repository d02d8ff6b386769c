//! What the host knows of a sequence.

use std::fmt;

use super::KvCache;
use super::append::Growth;
use crate::error::{Error, Result};

/// Names a sequence of one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub(super) u64);

impl SequenceId {
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Tokens of a sequence in one layer, by tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LayerTable {
    pub sinks: usize,
    /// Valid tokens of each page, oldest first; the page's number is in [`Sequence::pages`].
    pub pages: Vec<usize>,
    pub recent: usize,
}

impl LayerTable {
    pub fn len(&self) -> usize {
        self.sinks + self.pages.iter().sum::<usize>() + self.recent
    }

    /// Counts `tokens` more, of which whole pages have left the recent tier.
    pub fn grow(&mut self, tokens: usize, growth: &Growth, page_tokens: usize) {
        self.sinks += growth.to_sinks;
        let recent = self.recent + tokens - growth.to_sinks;
        self.recent = recent - growth.pages * page_tokens;
        self.pages.extend(vec![page_tokens; growth.pages]);
    }

    /// Drops the newest tokens.
    pub fn truncate(&mut self, len: usize) {
        let mut surplus = self.len().saturating_sub(len);
        let recent = surplus.min(self.recent);
        self.recent -= recent;
        surplus -= recent;
        while surplus > 0
            && let Some(last) = self.pages.last_mut()
        {
            let cut = surplus.min(*last);
            *last -= cut;
            surplus -= cut;
            if *last == 0 {
                self.pages.pop();
            }
        }
        self.sinks -= surplus;
    }
}

/// One sequence: where its tokens are.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub id: SequenceId,
    /// Its row of the exact tiers.
    pub slot: usize,
    /// Page numbers, oldest first, the same in every layer.
    pub pages: Vec<u32>,
    pub layers: Vec<LayerTable>,
}

impl Sequence {
    pub fn new(id: SequenceId, slot: usize, layers: usize) -> Self {
        Self {
            id,
            slot,
            pages: Vec::new(),
            layers: vec![LayerTable::default(); layers],
        }
    }

    /// Tokens that every layer holds.
    pub fn len(&self) -> usize {
        self.layers.iter().map(LayerTable::len).min().unwrap_or(0)
    }

    /// Tokens of the longest layer: more than [`len`](Self::len) in the middle of a step.
    pub fn longest(&self) -> usize {
        self.layers.iter().map(LayerTable::len).max().unwrap_or(0)
    }

    /// Pages that every layer has filled. A step that was undone may leave more in some.
    pub fn common_pages(&self) -> usize {
        let pages = self.layers.iter().map(|table| table.pages.len());
        pages.min().unwrap_or(0)
    }
}

impl KvCache {
    /// The sequences, in the order of the batch rows.
    pub fn sequences(&self) -> Vec<SequenceId> {
        self.sequences.iter().map(|sequence| sequence.id).collect()
    }

    /// Tokens held of each sequence, in the order of the batch rows. A token counts when every
    /// layer has it.
    pub fn lens(&self) -> Vec<usize> {
        self.sequences.iter().map(Sequence::len).collect()
    }

    /// Tokens held of one sequence.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub fn len(&self, id: SequenceId) -> Result<usize> {
        Ok(self.sequence(id)?.len())
    }

    /// Whether no sequence holds a token.
    pub fn is_empty(&self) -> bool {
        self.sequences.iter().all(|sequence| sequence.len() == 0)
    }

    pub(super) fn index_of(&self, id: SequenceId) -> Result<usize> {
        self.sequences
            .iter()
            .position(|sequence| sequence.id == id)
            .ok_or(Error::UnknownSequence { id: id.0 })
    }

    pub(super) fn sequence(&self, id: SequenceId) -> Result<&Sequence> {
        Ok(&self.sequences[self.index_of(id)?])
    }
}

#[cfg(test)]
mod tests {
    use super::LayerTable;

    #[test]
    fn truncation_takes_the_newest_first() {
        let full = LayerTable {
            sinks: 4,
            pages: vec![64, 64],
            recent: 10,
        };
        for len in 0..=full.len() {
            let mut table = full.clone();
            table.truncate(len);
            assert_eq!(table.len(), len);
            assert!(table.pages.iter().all(|&tokens| tokens > 0));
            assert!(table.recent == 0 || table.pages == [64, 64]);
            assert!(table.pages.is_empty() || table.sinks == 4);
        }
    }
}
