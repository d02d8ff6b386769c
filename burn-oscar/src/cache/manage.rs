//! Sequences come, fork, shrink and go.

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{Int, Tensor};

use super::sequence::Sequence;
use super::{KvCache, SequenceId};
use crate::backend::{KvLayer, OptionalTensor, PackedPages, Pages};
use crate::error::{Error, Result};

impl KvCache {
    /// Adds an empty sequence as the last batch row.
    ///
    /// # Errors
    /// [`Error::TooManySequences`].
    pub fn add_sequence(&mut self) -> Result<SequenceId> {
        let slot = self.free_slots.pop().ok_or(Error::TooManySequences {
            max_sequences: self.config.max_sequences,
        })?;
        self.outdate_plan();
        let id = self.fresh_id();
        let sequence = Sequence::new(id, slot, self.layers.len());
        self.sequences.push(sequence);
        Ok(id)
    }

    fn fresh_id(&mut self) -> SequenceId {
        self.next_id += 1;
        SequenceId(self.next_id - 1)
    }

    /// Copies a sequence to a new one, the last batch row. Pages are shared, the exact tokens
    /// copied.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`], [`Error::TooManySequences`]; [`Error::UnevenLayers`] in the
    /// middle of a step; [`Error::PoolExhausted`] where an undone step left a page that cannot be
    /// shared.
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId> {
        let source = self.sequence(id)?.clone();
        check_even(&source)?;
        for layer in 0..self.layers.len() {
            self.layer(layer)?;
        }
        // Pages that some layer has yet to fill will differ from now on.
        let common = source.common_pages();
        let needed = source.pages.len() - common;
        self.check_pages(0, needed)?;
        let slot = self.free_slots.pop().ok_or(Error::TooManySequences {
            max_sequences: self.config.max_sequences,
        })?;
        self.outdate_plan();
        let own: Vec<u32> = (0..needed).filter_map(|_| self.pool.allocate()).collect();
        for layer in 0..self.layers.len() {
            let mut stored = self.take_layer(layer)?;
            stored.key_tier = copy_row::<4>(stored.key_tier, source.slot, slot);
            stored.value_tier = copy_row::<4>(stored.value_tier, source.slot, slot);
            for (&from, &to) in source.pages[common..].iter().zip(&own) {
                stored.key = copy_page(stored.key, from as usize, to as usize);
                stored.value = copy_page(stored.value, from as usize, to as usize);
            }
            self.layers[layer] = Some(stored);
        }
        self.pool.share(&source.pages[..common]);
        let id = self.fresh_id();
        let pages = [&source.pages[..common], &own].concat();
        self.sequences.push(Sequence {
            id,
            slot,
            pages,
            ..source
        });
        Ok(id)
    }

    /// Removes a sequence; its pages are free when no fork shares them.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub fn free(&mut self, id: SequenceId) -> Result<()> {
        let row = self.index_of(id)?;
        self.outdate_plan();
        let sequence = self.sequences.remove(row);
        self.release(&sequence.pages)?;
        self.free_slots.push(sequence.slot);
        self.poison_slot(sequence.slot)
    }

    /// Drops the newest tokens of a sequence, in every layer. A page that is cut keeps its other
    /// tokens; it is never packed again. Also undoes a step that failed in the middle of a model:
    /// truncate to [`len`](Self::len).
    ///
    /// # Errors
    /// [`Error::UnknownSequence`], [`Error::TruncateBeyond`].
    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<()> {
        let row = self.index_of(id)?;
        let sequence = &mut self.sequences[row];
        if len > sequence.len() {
            return Err(Error::TruncateBeyond {
                id: id.0,
                to: len,
                len: sequence.len(),
            });
        }
        for table in &mut sequence.layers {
            table.truncate(len);
        }
        let pages = sequence.layers.iter().map(|table| table.pages.len()).max();
        let surplus = sequence.pages.split_off(pages.unwrap_or(0));
        self.outdate_plan();
        self.release(&surplus)
    }

    /// Puts the batch rows in the order of `ids`, as beam search wants: a sequence named again is
    /// forked, one not named is freed. Returns the rows' sequences.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`], and those of [`fork`](Self::fork).
    pub fn reorder(&mut self, ids: &[SequenceId]) -> Result<Vec<SequenceId>> {
        if ids.len() > self.config.max_sequences {
            return Err(Error::TooManySequences {
                max_sequences: self.config.max_sequences,
            });
        }
        let mut needed = 0;
        for (i, &id) in ids.iter().enumerate() {
            let sequence = self.sequence(id)?;
            if ids[..i].contains(&id) {
                check_even(sequence)?;
                needed += sequence.pages.len() - sequence.common_pages();
            }
        }
        self.check_pages(0, needed)?;
        for id in self.sequences() {
            if !ids.contains(&id) {
                self.free(id)?;
            }
        }
        let mut order = Vec::new();
        for (i, &id) in ids.iter().enumerate() {
            let repeated = ids[..i].contains(&id);
            order.push(if repeated { self.fork(id)? } else { id });
        }
        self.outdate_plan();
        self.sequences
            .sort_by_key(|sequence| order.iter().position(|&id| id == sequence.id));
        Ok(order)
    }

    /// Empties the cache: one empty sequence is left, whose id is new.
    pub fn reset(&mut self) -> SequenceId {
        for id in self.sequences() {
            // The ids come from the cache itself, and a lost layer needs no poison.
            let _ = self.free(id);
        }
        let slot = self.free_slots.pop().unwrap_or(0);
        let id = self.fresh_id();
        self.sequences = vec![Sequence::new(id, slot, self.layers.len())];
        id
    }

    fn release(&mut self, pages: &[u32]) -> Result<()> {
        let freed = self.pool.release(pages);
        if !self.config.poison || freed.is_empty() {
            return Ok(());
        }
        for layer in 0..self.layers.len() {
            let mut stored = self.take_layer(layer)?;
            for &page in &freed {
                stored.key = poison_page(stored.key, page as usize);
                stored.value = poison_page(stored.value, page as usize);
            }
            self.layers[layer] = Some(stored);
        }
        Ok(())
    }

    fn poison_slot(&mut self, slot: usize) -> Result<()> {
        if !self.config.poison {
            return Ok(());
        }
        for layer in 0..self.layers.len() {
            let stored = self.take_layer(layer)?;
            self.layers[layer] = Some(KvLayer {
                key_tier: poison_row::<4>(stored.key_tier, slot),
                value_tier: poison_row::<4>(stored.value_tier, slot),
                ..stored
            });
        }
        Ok(())
    }
}

/// A sequence can be copied between steps only.
pub(super) fn check_even(sequence: &Sequence) -> Result<()> {
    let (shortest, longest) = (sequence.len(), sequence.longest());
    if shortest == longest {
        return Ok(());
    }
    Err(Error::UnevenLayers {
        id: sequence.id.0,
        shortest,
        longest,
    })
}

fn copy_row<const D: usize>(tensor: DispatchTensor, from: usize, to: usize) -> DispatchTensor {
    let tensor = Tensor::<D>::from_dispatch(tensor);
    let row = tensor.clone().narrow(0, from, 1);
    tensor.slice_assign(to..to + 1, row).into_dispatch()
}

fn poison_row<const D: usize>(tensor: DispatchTensor, row: usize) -> DispatchTensor {
    let tensor = Tensor::<D>::from_dispatch(tensor);
    tensor.slice_fill(row..row + 1, f32::NAN).into_dispatch()
}

fn copy_page(pages: Pages<Dispatch>, from: usize, to: usize) -> Pages<Dispatch> {
    each_part(
        pages,
        |tensor, rank| match rank {
            2 => copy_row::<2>(tensor, from, to),
            3 => copy_row::<3>(tensor, from, to),
            _ => copy_row::<4>(tensor, from, to),
        },
        |words| {
            let row = words.clone().narrow(0, from, 1);
            words.slice_assign(to..to + 1, row)
        },
    )
}

fn poison_page(pages: Pages<Dispatch>, page: usize) -> Pages<Dispatch> {
    each_part(
        pages,
        |tensor, rank| match rank {
            2 => poison_row::<2>(tensor, page),
            3 => poison_row::<3>(tensor, page),
            _ => poison_row::<4>(tensor, page),
        },
        |words| words.slice_fill(page..page + 1, u32::MAX),
    )
}

/// Changes every tensor of a side's pages: floats by their rank, and the words.
fn each_part(
    pages: Pages<Dispatch>,
    float: impl Fn(DispatchTensor, usize) -> DispatchTensor,
    words: impl Fn(Tensor<3, Int>) -> Tensor<3, Int>,
) -> Pages<Dispatch> {
    let optional = |tensor, rank| match tensor {
        OptionalTensor::Present(tensor) => OptionalTensor::Present(float(tensor, rank)),
        OptionalTensor::Absent => OptionalTensor::Absent,
    };
    match pages {
        Pages::Exact(tensor) => Pages::Exact(float(tensor, 4)),
        Pages::Packed(packed) => Pages::Packed(PackedPages {
            words: words(Tensor::from_dispatch(packed.words)).into_dispatch(),
            pairs: optional(packed.pairs, 3),
            norms: optional(packed.norms, 2),
            means: optional(packed.means, 3),
            spec: packed.spec,
        }),
    }
}
