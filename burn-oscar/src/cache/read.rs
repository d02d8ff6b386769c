//! What is stored, read back: for inspection, for tests, and for models that keep their own
//! attention.

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{DType, Int, Tensor};

use super::{KvCache, SequenceId};
use crate::backend::{Pages, read_pages};
use crate::error::Result;
use crate::quantizer::Role;

impl KvCache {
    /// Everything a sequence holds in a layer, oldest token first and transforms taken back: f32
    /// keys and values `[kv_heads, tokens, head_dim]`. It costs the memory that the cache saves.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`](crate::Error::UnknownSequence),
    /// [`Error::Layer`](crate::Error::Layer).
    pub fn dequantize(&self, id: SequenceId, layer: usize) -> Result<[Tensor<3>; 2]> {
        let stored = self.layer(layer)?;
        let row = self.plan_rows(layer, &[self.index_of(id)?]).remove(0);
        let side = |role, tier: &DispatchTensor| {
            let tier = Tensor::<4>::from_dispatch(tier.clone()).narrow(0, row.slot, 1);
            let [_, heads, _, head_dim] = tier.dims();
            let tier = tier.cast(DType::F32);
            let exact = |start, count| (count > 0).then(|| tier.clone().narrow(2, start, count));
            let mut parts = Vec::from_iter(exact(0, row.sinks));
            if !row.pages.is_empty() {
                let ids = row.pages.iter().map(|&(page, _)| page);
                let pages = read_pages(stored.clone(), self.page_ids(ids), role);
                for (i, &(_, tokens)) in row.pages.iter().enumerate() {
                    parts.push(pages.clone().narrow(0, i, 1).narrow(2, 0, tokens));
                }
            }
            parts.extend(exact(stored.sink, row.recent));
            if parts.is_empty() {
                return Tensor::zeros([1, heads, 0, head_dim], &self.device);
            }
            Tensor::cat(parts, 2)
        };
        let transform = &self.transforms[layer];
        let key = transform.key_back(side(Role::Key, &stored.key_tier));
        let value = transform.value_back(side(Role::Value, &stored.value_tier));
        Ok([key, value].map(|side| {
            let [_, heads, tokens, head_dim] = side.dims();
            side.reshape([heads, tokens, head_dim])
        }))
    }

    /// The packed words of a sequence's pages in a layer, oldest first: u32
    /// `[pages, kv_heads, words]` of keys and of values. `None` where a side is exact, or nothing
    /// is packed yet.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`](crate::Error::UnknownSequence),
    /// [`Error::Layer`](crate::Error::Layer).
    pub fn packed_words(
        &self,
        id: SequenceId,
        layer: usize,
    ) -> Result<[Option<Tensor<3, Int>>; 2]> {
        let stored = self.layer(layer)?;
        let sequence = self.sequence(id)?;
        let count = sequence.layers[layer].pages.len();
        let words = |pages: &Pages<Dispatch>| match pages {
            Pages::Packed(packed) if count > 0 => {
                let ids = self.page_ids(sequence.pages[..count].iter().copied());
                Some(Tensor::from_dispatch(packed.words.clone()).select(0, ids))
            }
            _ => None,
        };
        Ok([words(&stored.key), words(&stored.value)])
    }

    /// Page numbers as a tensor of indices.
    pub(super) fn page_ids(&self, pages: impl Iterator<Item = u32>) -> Tensor<1, Int> {
        let ids: Vec<i64> = pages.map(i64::from).collect();
        Tensor::from_data(ids.as_slice(), &self.device)
    }
}
