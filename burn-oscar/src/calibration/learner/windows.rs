//! The texts, cut into windows of equal length, as a Burn data loader.

use std::sync::Arc;

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::tensor::Device;
use sha2::{Digest, Sha256};

/// Some tokens that the model sees as one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its number in the whole corpus, the same in every shard.
    pub text: u64,
    /// Token ids.
    pub tokens: Vec<u32>,
}

/// Windows in a fixed order: every run sees the same ones, which is what resuming and sharding rest
/// on. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Windows(Arc<[Window]>);

impl Windows {
    /// Cuts a corpus into whole windows of `length` tokens; a shorter rest is left out.
    pub fn of_corpus(tokens: &[u32], length: usize) -> Self {
        let windows = tokens.chunks_exact(length.max(1)).enumerate();
        Self::of(windows.map(|(text, tokens)| Window {
            text: text as u64,
            tokens: tokens.to_vec(),
        }))
    }

    /// Windows of the caller's own.
    pub fn of(windows: impl IntoIterator<Item = Window>) -> Self {
        Self(windows.into_iter().collect())
    }

    /// Every `count`-th window from number `index` on: what one of `count` processes observes.
    /// Their statistics merge to those of all windows.
    #[must_use]
    pub fn shard(&self, index: usize, count: usize) -> Self {
        Self::of(self.0.iter().skip(index).step_by(count.max(1)).cloned())
    }

    /// The first `count` windows.
    #[must_use]
    pub fn take(&self, count: usize) -> Self {
        Self::of(self.0.iter().take(count).cloned())
    }

    /// Tokens of the longest window.
    pub(super) fn longest(&self) -> usize {
        let lengths = self.0.iter().map(|window| window.tokens.len());
        lengths.max().unwrap_or(0)
    }

    /// Windows.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// SHA-256 of all windows and their numbers, hexadecimal.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for window in self.0.iter() {
            hash.update(window.text.to_le_bytes());
            hash.update((window.tokens.len() as u64).to_le_bytes());
            for token in &window.tokens {
                hash.update(token.to_le_bytes());
            }
        }
        format!("{:x}", hash.finalize())
    }
}

impl DataLoader<Window> for Windows {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Window> + 'a> {
        Box::new(Iter {
            windows: &self.0,
            next: 0,
        })
    }

    fn num_items(&self) -> usize {
        self.0.len()
    }

    fn to_device(&self, _device: &Device) -> Arc<dyn DataLoader<Window>> {
        // Token ids stay on the host until the model runs.
        Arc::new(self.clone())
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<Window>> {
        let end = end.min(self.0.len());
        Arc::new(Self::of(self.0[start.min(end)..end].iter().cloned()))
    }
}

struct Iter<'a> {
    windows: &'a [Window],
    next: usize,
}

impl Iterator for Iter<'_> {
    type Item = Result<Window, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let window = self.windows.get(self.next)?;
        self.next += 1;
        Some(Ok(window.clone()))
    }
}

impl DataLoaderIterator<Window> for Iter<'_> {
    fn progress(&self) -> Progress {
        Progress::new(self.next, self.windows.len(), Some("windows".into()))
    }
}
