//! Batches as tokenizers give them: rows filled up to one width with padding, which is not stored.

use std::ops::Range;

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use super::host::flags;
use super::{AttentionOptions, KvCache};
use crate::error::{Error, Result};

/// Which tokens of a padded batch are real: in each row a run without gaps, with padding on the
/// left, on the right, or on both sides.
///
/// Tokens keep their own positions: whatever the padding, the first real token of a new sequence
/// is its token 0. Learned and rotary embeddings want the same, see
/// [`positions`](Self::positions).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Padding {
    width: usize,
    rows: Vec<Range<usize>>,
}

impl Padding {
    /// Reads a mask `[batch, width]` that is true at padding, as burn-nn's `mask_pad`. The mask
    /// comes to the host here, once; use the result for every layer.
    ///
    /// # Errors
    /// [`Error::Mask`] for a row with padding between its tokens, [`Error::Execution`].
    pub fn from_mask(mask_pad: Tensor<2, Bool>) -> Result<Self> {
        let [batch, width] = mask_pad.dims();
        if batch * width == 0 {
            return Ok(Self {
                width,
                rows: vec![0..0; batch],
            });
        }
        let mask = flags(mask_pad)?;
        let rows = mask.chunks(width).enumerate().map(|(row, mask)| {
            let real = |&pad: &bool| !pad;
            let Some(start) = mask.iter().position(real) else {
                return Ok(0..0);
            };
            let tokens = mask.iter().filter(|pad| real(pad)).count();
            match mask[start..].iter().take_while(|pad| real(pad)).count() == tokens {
                true => Ok(start..start + tokens),
                false => Err(Error::Mask {
                    mask: "mask_pad",
                    row,
                    reason: "padding lies between tokens: only padding before and after a row's \
                             tokens can be left out, so move the tokens together"
                        .into(),
                }),
            }
        });
        Ok(Self {
            width,
            rows: rows.collect::<Result<_>>()?,
        })
    }

    /// Tokens of a row, padding included.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Real tokens of each row.
    pub fn lens(&self) -> Vec<usize> {
        self.rows.iter().map(Range::len).collect()
    }

    /// Position ids `[batch, width]` for learned and rotary embeddings: each row's real tokens
    /// count up from `past`, what its sequence holds already ([`KvCache::lens`]); padding has 0.
    ///
    /// # Errors
    /// [`Error::Shape`] unless `past` has one number for each row.
    pub fn positions(&self, past: &[usize], device: &Device) -> Result<Tensor<2, Int>> {
        if past.len() != self.rows.len() {
            return Err(Error::Shape {
                tensor: "past",
                found: vec![past.len()],
                expected: format!("[{}] lengths, one for each row", self.rows.len()),
            });
        }
        let mut ids = vec![0i64; self.rows.len() * self.width];
        for (row, (range, &past)) in self.rows.iter().zip(past).enumerate() {
            for (i, t) in range.clone().enumerate() {
                ids[row * self.width + t] = (past + i) as i64;
            }
        }
        let data = TensorData::new(ids, [self.rows.len(), self.width]);
        Ok(Tensor::from_data(data, device))
    }

    /// Zeros at the padding of `[batch, width, channels]`.
    pub(crate) fn clear(&self, tensor: Tensor<3>) -> Tensor<3> {
        if self.rows.iter().all(|row| row.len() == self.width) {
            return tensor;
        }
        let mut mask = vec![true; self.rows.len() * self.width];
        for (row, range) in self.rows.iter().enumerate() {
            mask[row * self.width..][range.clone()].fill(false);
        }
        let data = TensorData::new(mask, [self.rows.len(), self.width, 1]);
        let mask = Tensor::<3, Bool>::from_data(data, &tensor.device());
        tensor.mask_fill(mask, 0.0)
    }

    /// Refuses a batch of another shape.
    pub(crate) fn check(&self, batch: usize, width: usize) -> Result<()> {
        if (self.rows.len(), self.width) == (batch, width) {
            return Ok(());
        }
        Err(Error::Shape {
            tensor: "mask_pad",
            found: vec![self.rows.len(), self.width],
            expected: format!("[{batch}, {width}] as the batch and the tokens of this call"),
        })
    }

    /// The first row without tokens.
    pub(crate) fn empty_row(&self) -> Option<usize> {
        self.rows.iter().position(Range::is_empty)
    }

    /// The rows by their length, which is what one call takes; rows without tokens are left out.
    fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (row, range) in self.rows.iter().enumerate() {
            let tokens = range.len();
            match groups.iter_mut().find(|group| group.tokens == tokens) {
                _ if tokens == 0 => {}
                Some(group) => group.rows.push((row, range.start)),
                None => groups.push(Group {
                    tokens,
                    rows: vec![(row, range.start)],
                }),
            }
        }
        groups
    }
}

/// Rows of one length.
struct Group {
    tokens: usize,
    /// Batch row and first token.
    rows: Vec<(usize, usize)>,
}

impl Group {
    /// The tokens of these rows, `[rows, heads, tokens, head_dim]`.
    fn take(&self, batch: &Tensor<4>) -> Tensor<4> {
        let rows = self.rows.iter().map(|&(row, start)| {
            let row = batch.clone().narrow(0, row, 1);
            row.narrow(2, start, self.tokens)
        });
        Tensor::cat(rows.collect(), 0)
    }

    /// Puts what [`take`](Self::take) took back at its places.
    fn put(&self, mut batch: Tensor<4>, taken: Tensor<4>) -> Tensor<4> {
        let [_, heads, _, head_dim] = batch.dims();
        for (i, &(row, start)) in self.rows.iter().enumerate() {
            let place = [
                row..row + 1,
                0..heads,
                start..start + self.tokens,
                0..head_dim,
            ];
            batch = batch.slice_assign(place, taken.clone().narrow(0, i, 1));
        }
        batch
    }
}

impl KvCache {
    /// [`attend`](Self::attend) without the padding: one call for all rows of a length.
    pub(super) fn attend_padded(
        &mut self,
        layer: usize,
        query: Tensor<4>,
        [key, value]: [Tensor<4>; 2],
        padding: &Padding,
        options: AttentionOptions,
    ) -> Result<Tensor<4>> {
        self.layer(layer)?;
        let rows = self.rows(&options)?;
        self.check_tensors(&rows, &query, &key, &value)?;
        self.scale(&options)?;
        let mut output = query.zeros_like();
        for (group, [key, value]) in self.parts(layer, &rows, [key, value], padding)? {
            let options = self.options_of(&group, &rows, &options);
            let own = self.attend(layer, group.take(&query), key, value, options)?;
            output = group.put(output, own);
        }
        Ok(output)
    }

    /// [`extend`](Self::extend) without the padding.
    pub(super) fn extend_padded(
        &mut self,
        layer: usize,
        [key, value]: [Tensor<4>; 2],
        padding: &Padding,
        options: AttentionOptions,
    ) -> Result<()> {
        self.layer(layer)?;
        #[cfg(feature = "calibrate")]
        self.check_not_observing("extend")?;
        let rows = self.rows(&options)?;
        self.check_stored(&rows, key.dims()[2], &key, &value)?;
        for (group, [key, value]) in self.parts(layer, &rows, [key, value], padding)? {
            let options = self.options_of(&group, &rows, &options);
            self.extend(layer, key, value, options)?;
        }
        Ok(())
    }

    /// The rows' keys and values by length. Whatever a later part would be refused for is refused
    /// here, before the first is stored.
    fn parts(
        &self,
        layer: usize,
        rows: &[usize],
        sides: [Tensor<4>; 2],
        padding: &Padding,
    ) -> Result<Vec<(Group, [Tensor<4>; 2])>> {
        padding.check(rows.len(), sides[0].dims()[2])?;
        let parts: Vec<_> = padding
            .groups()
            .into_iter()
            .map(|group| {
                let taken = [&sides[0], &sides[1]].map(|side| group.take(side));
                (group, taken)
            })
            .collect();
        if parts.len() < 2 {
            return Ok(parts);
        }
        let transform = &self.transforms[layer];
        let mut needed = 0;
        for (group, [key, value]) in &parts {
            if self.config.check_inputs {
                let key = transform.key(key.clone());
                let value = transform.value(value.clone());
                self.check_numbers(layer, &key, &value)?;
            }
            for &(row, _) in &group.rows {
                needed += self.pages_needed(layer, rows[row], group.tokens);
            }
        }
        self.check_pages(layer, needed)?;
        Ok(parts)
    }

    fn options_of(
        &self,
        group: &Group,
        rows: &[usize],
        options: &AttentionOptions,
    ) -> AttentionOptions {
        let ids = group.rows.iter().map(|&(i, _)| self.sequences[rows[i]].id);
        options.clone().rows(&ids.collect::<Vec<_>>())
    }
}
