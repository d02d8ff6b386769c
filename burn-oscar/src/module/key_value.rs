//! A drop-in for models that keep their own attention.

use burn::tensor::{Device, Tensor};

use crate::cache::{AttentionOptions, KvCache, KvCacheConfig, MemoryReport};
use crate::error::Result;

/// The cache of one layer in the shape that many models expect: new keys and values in, all keys
/// and values out, and attention stays with the model. This is how burn-lm's `KeyValueCache` is
/// used.
///
/// Tokens are stored as by [`KvCache`]: sinks and recent tokens exact, the others packed. What
/// comes back is what [`KvCache::attend`] would have attended to: the tokens of earlier calls as
/// they are stored, those of this call exactly.
///
/// # Cost
/// The memory at rest is that of the method, but every call unpacks the whole history. For each
/// layer and call it writes the two results, `2 · batch · kv_heads · tokens · head_dim` numbers in
/// the activation dtype, and on the way about three times as many f32 numbers: the pages read, the
/// tiers put together, the transform taken back. At 8,192 tokens, 8 KV heads and 128 channels that
/// is 64 MiB of f32 results a layer and step, and some 200 MiB in between, freed before the next
/// layer. [`KvCache::attend`] reads 4 MiB of bits in their place and writes one vector a head: use
/// this type only where the model cannot call it.
#[derive(Debug)]
pub struct KeyValueCache {
    cache: KvCache,
}

impl KeyValueCache {
    /// A cache for each layer that `config` describes, each for `batch` rows.
    /// [`KvCacheConfig::with_max_sequences`] is of no account here.
    ///
    /// # Errors
    /// [`Error::Zero`](crate::Error::Zero) for no rows, and those of [`KvCacheConfig::init`].
    pub fn for_layers(config: &KvCacheConfig, batch: usize, device: &Device) -> Result<Vec<Self>> {
        (0..config.n_layers())
            .map(|layer| {
                let cache = config.single_layer(layer)?.init_rows(batch, device)?;
                Ok(Self { cache })
            })
            .collect()
    }

    /// Stores `key` and `value`, `[batch, kv_heads, tokens, head_dim]` after any position encoding,
    /// and returns all keys and values so far, `[batch, kv_heads, all tokens, head_dim]`, oldest
    /// first, in the activation dtype. The newest `tokens` of them are the arguments.
    ///
    /// # Errors
    /// Those of [`KvCache::extend`]; nothing is stored then.
    pub fn forward(&mut self, key: Tensor<4>, value: Tensor<4>) -> Result<(Tensor<4>, Tensor<4>)> {
        let held = self.held()?;
        let (own_key, own_value) = (key.clone(), value.clone());
        self.cache
            .extend(0, key, value, AttentionOptions::causal())?;
        Ok(match held {
            None => (own_key, own_value),
            Some([key, value]) => (
                Tensor::cat(vec![key, own_key], 2),
                Tensor::cat(vec![value, own_value], 2),
            ),
        })
    }

    /// What is stored, as it is stored, in the activation dtype; `None` before the first token.
    fn held(&self) -> Result<Option<[Tensor<4>; 2]>> {
        if self.cache.is_empty() {
            return Ok(None);
        }
        let dtype = self.cache.config().dtype();
        let mut sides = [Vec::new(), Vec::new()];
        for id in self.cache.sequences() {
            for (rows, side) in sides.iter_mut().zip(self.cache.dequantize(id, 0)?) {
                rows.push(side.unsqueeze_dim::<4>(0).cast(dtype));
            }
        }
        Ok(Some(sides.map(|rows| Tensor::cat(rows, 0))))
    }

    /// Tokens of a row: the position of the next one.
    pub fn len(&self) -> usize {
        self.cache.lens().first().copied().unwrap_or(0)
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.cache.is_empty()
    }

    /// Drops the newest tokens of all rows.
    ///
    /// # Errors
    /// [`Error::TruncateBeyond`](crate::Error::TruncateBeyond); nothing is dropped then.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        // All rows have the same length, so the first one refuses for all.
        for id in self.cache.sequences() {
            self.cache.truncate(id, len)?;
        }
        Ok(())
    }

    /// Drops all tokens.
    pub fn reset(&mut self) {
        // Every length is at least 0, which is all that truncation asks.
        let _ = self.truncate(0);
    }

    /// What the layer occupies.
    pub fn memory(&self) -> MemoryReport {
        self.cache.memory()
    }
}
