//! New tokens into the tiers, and old ones into pages.

use std::sync::atomic::Ordering;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::KvCache;
use super::sequence::LayerTable;
use crate::backend::{KvLayer, write_pages};
use crate::error::{Error, Result};

/// What appending some tokens does to a sequence in one layer.
pub(super) struct Growth {
    pub to_sinks: usize,
    /// Whole pages that leave the recent tier.
    pub pages: usize,
}

impl KvCache {
    /// Sinks that a sequence may still take: none once a later token is there.
    pub(super) fn sink_room(&self, table: &LayerTable) -> usize {
        if table.pages.is_empty() && table.recent == 0 {
            self.config.method.sink() - table.sinks
        } else {
            0
        }
    }

    /// A page leaves the recent tier as soon as `recent` tokens and a whole page are there.
    pub(super) fn growth(&self, table: &LayerTable, tokens: usize) -> Growth {
        let to_sinks = tokens.min(self.sink_room(table));
        let recent = table.recent + tokens - to_sinks;
        Growth {
            to_sinks,
            pages: recent.saturating_sub(self.config.method.recent()) / self.page_tokens,
        }
    }

    /// Tokens that can be appended to a sequence until its next page leaves the recent tier.
    pub(super) fn until_next_page(&self, layer: usize, row: usize) -> usize {
        let table = &self.sequences[row].layers[layer];
        self.sink_room(table) + self.config.method.recent() + self.page_tokens - table.recent
    }

    /// Makes sure that the pool has the pages for `tokens` more tokens of each row.
    pub(super) fn check_room(&self, layer: usize, rows: &[usize], tokens: usize) -> Result<()> {
        let needed = rows
            .iter()
            .map(|&row| self.pages_needed(layer, row, tokens))
            .sum();
        self.check_pages(layer, needed)?;
        self.warn_past_served(layer, rows, tokens);
        Ok(())
    }

    /// Pages that a row takes from the pool for `tokens` more tokens.
    pub(super) fn pages_needed(&self, layer: usize, row: usize, tokens: usize) -> usize {
        let sequence = &self.sequences[row];
        let table = &sequence.layers[layer];
        let pages = table.pages.len() + self.growth(table, tokens).pages;
        pages.saturating_sub(sequence.pages.len())
    }

    /// Says once where a sequence becomes longer than its calibration was made for: every path
    /// that appends comes by here.
    fn warn_past_served(&self, layer: usize, rows: &[usize], tokens: usize) {
        let Some(calibration) = self.config.method.calibration() else {
            return;
        };
        if self.warned.load(Ordering::Relaxed) {
            return;
        }
        let lengths = rows
            .iter()
            .map(|&row| self.sequences[row].layers[layer].len() + tokens);
        let (longest, served) = (lengths.max().unwrap_or(0), calibration.served_length());
        if longest > served {
            self.warned.store(true, Ordering::Relaxed);
            log::warn!(
                "a sequence of {longest} tokens is longer than the {served} that calibration \
                 artifact {} serves: what follows is stored less well; solve again with RoPE \
                 extension to the length you serve",
                calibration.path().display()
            );
        }
    }

    /// Makes sure that the pool has `needed` free pages.
    pub(super) fn check_pages(&self, layer: usize, needed: usize) -> Result<()> {
        if needed <= self.pool.free() {
            return Ok(());
        }
        Err(Error::PoolExhausted {
            layer,
            needed,
            free: self.pool.free(),
            pages: self.pool.pages(),
            page_tokens: self.page_tokens,
        })
    }

    /// The number of a row's page, taken from the pool where it is new.
    pub(super) fn page(&mut self, layer: usize, row: usize, index: usize) -> Result<u32> {
        if index == self.sequences[row].pages.len() {
            self.check_pages(layer, 1)?;
            self.sequences[row].pages.extend(self.pool.allocate());
        }
        Ok(self.sequences[row].pages[index])
    }

    /// Appends transformed keys and values `[rows, kv_heads, tokens, head_dim]`. The caller has
    /// called [`check_room`](Self::check_room).
    pub(super) fn append(
        &mut self,
        layer: usize,
        rows: &[usize],
        key: Tensor<4>,
        value: Tensor<4>,
    ) -> Result<()> {
        let tokens = key.dims()[2];
        let mut stored = self.take_layer(layer)?;
        let mut demoted = Demoted::default();
        for (i, &row) in rows.iter().enumerate() {
            let table = self.sequences[row].layers[layer].clone();
            let growth = self.growth(&table, tokens);
            let new = [&key, &value].map(|side| side.clone().narrow(0, i, 1));
            let slot = self.sequences[row].slot;
            stored = self.append_row(stored, slot, &table, &growth, new, &mut demoted);

            for index in table.pages.len()..table.pages.len() + growth.pages {
                demoted.pages.push(self.page(layer, row, index)?);
            }
            self.sequences[row].layers[layer].grow(tokens, &growth, self.page_tokens);
        }
        if !demoted.pages.is_empty() {
            let ids = self.page_ids(demoted.pages.into_iter());
            let [key, value] = demoted.vectors.map(|pages| Tensor::cat(pages, 0));
            stored = write_pages(stored, key, value, ids);
        }
        self.layers[layer] = Some(stored);
        Ok(())
    }

    /// Writes one row's tokens to the exact tiers and collects the pages that leave them.
    fn append_row(
        &self,
        stored: KvLayer<Dispatch>,
        slot: usize,
        table: &LayerTable,
        growth: &Growth,
        new: [Tensor<4>; 2],
        demoted: &mut Demoted,
    ) -> KvLayer<Dispatch> {
        let sink = self.config.method.sink();
        let KvLayer {
            key_tier,
            value_tier,
            ..
        } = stored;
        let mut tiers = [key_tier, value_tier].map(Tensor::<4>::from_dispatch);
        for (side, new) in new.into_iter().enumerate() {
            let [_, heads, tokens, head_dim] = new.dims();
            let tier = &mut tiers[side];
            let mut rest = new;
            if growth.to_sinks > 0 {
                let sinks = rest.clone().narrow(2, 0, growth.to_sinks);
                write(tier, slot, table.sinks, sinks);
            }
            if growth.to_sinks == tokens {
                continue;
            }
            rest = rest.narrow(2, growth.to_sinks, tokens - growth.to_sinks);
            let mut start = sink + table.recent;
            if growth.pages > 0 {
                if table.recent > 0 {
                    let held = tier
                        .clone()
                        .narrow(0, slot, 1)
                        .narrow(2, sink, table.recent);
                    rest = Tensor::cat(vec![held, rest], 2);
                }
                let total = rest.dims()[2];
                let leaving = growth.pages * self.page_tokens;
                let pages = rest
                    .clone()
                    .narrow(2, 0, leaving)
                    .reshape([heads, growth.pages, self.page_tokens, head_dim])
                    .swap_dims(0, 1);
                demoted.vectors[side].push(pages);
                start = sink;
                if leaving == total {
                    continue;
                }
                rest = rest.narrow(2, leaving, total - leaving);
            }
            write(tier, slot, start, rest);
        }
        let [key_tier, value_tier] = tiers.map(Tensor::into_dispatch);
        KvLayer {
            key_tier,
            value_tier,
            key: stored.key,
            value: stored.value,
            sink: stored.sink,
        }
    }
}

/// Pages that leave the recent tier in one call, to be written together.
#[derive(Default)]
struct Demoted {
    /// `[n, kv_heads, page_tokens, head_dim]` of keys and of values.
    vectors: [Vec<Tensor<4>>; 2],
    pages: Vec<u32>,
}

/// Overwrites tokens of a slot from `start` on.
fn write(tier: &mut Tensor<4>, slot: usize, start: usize, tokens: Tensor<4>) {
    let [_, heads, count, head_dim] = tokens.dims();
    tier.inplace(|tier| {
        tier.slice_assign(
            [slot..slot + 1, 0..heads, start..start + count, 0..head_dim],
            tokens,
        )
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use burn::tensor::{Device, Tensor};

    use crate::calibration::{CalibrationBuilder, LayerCalibration, Matrices, SideCalibration};
    use crate::{AttentionOptions, KvCacheConfig, Method};

    #[test]
    fn it_is_said_once_that_a_sequence_is_longer_than_its_calibration_serves() {
        let identity = (0..256).map(|i| f32::from(u8::from(i % 17 == 0)));
        let side = SideCalibration {
            transform: Some(Matrices::shared(16, identity.collect())),
            ..SideCalibration::default()
        };
        let layer = LayerCalibration {
            key: side.clone(),
            value: side,
        };
        let calibration = CalibrationBuilder::new("oscar", 1, 1, 16)
            .fingerprint("model")
            .served_length(8)
            .tokens(8)
            .layer(0, layer)
            .build()
            .unwrap();
        let device = Device::flex();
        let mut cache = KvCacheConfig::new(1, 1, 16)
            .with_method(Method::oscar(&calibration).unwrap())
            .init(&device)
            .unwrap();
        for (tokens, warned) in [(8, false), (1, true), (1, true)] {
            let x = Tensor::<4>::ones([1, 1, tokens, 16], &device);
            let options = AttentionOptions::causal();
            cache.attend(0, x.clone(), x.clone(), x, options).unwrap();
            assert_eq!(cache.warned.load(Ordering::Relaxed), warned);
        }
    }
}
