//! burn-nn's transformer decoder on two caches: its own tokens, and the encoder's memory.

use burn::module::Module;
use burn::nn::LayerNorm;
use burn::nn::transformer::{PositionWiseFeedForward, TransformerDecoder, TransformerDecoderLayer};
use burn::tensor::{Device, Tensor};

use super::check::{check_input, check_linear, check_parameters};
use super::{CachedAttention, CachedCrossAttention};
use crate::cache::{AttentionOptions, KvCache, KvCacheConfig, Padding, SequenceId};
use crate::error::{Error, Result};

/// A trained [`TransformerDecoder`] over a [`DecoderCache`].
///
/// [`encode`](Self::encode) stores the memory once; [`forward`](Self::forward) takes the new tokens
/// of each sequence, a prompt or a single one, and returns what `TransformerDecoder::forward` has
/// for them with a causal target mask: equal with the method `exact`, and within the method's
/// error otherwise.
#[derive(Module, Debug)]
pub struct CachedTransformerDecoder {
    layers: Vec<DecoderLayer>,
    d_model: usize,
}

/// A layer, with the names of burn-nn's.
#[derive(Module, Debug)]
struct DecoderLayer {
    cross_attn: CachedCrossAttention,
    self_attn: CachedAttention,
    pwff: PositionWiseFeedForward,
    norm_1: LayerNorm,
    norm_2: LayerNorm,
    norm_3: LayerNorm,
    norm_first: bool,
}

/// The two caches of a decoder. Row i of the one goes with row i of the other: what is done to the
/// sequences of `target` (fork, free, reorder) is to be done to those of `memory`.
#[derive(Debug)]
pub struct DecoderCache {
    /// The decoder's own tokens.
    pub target: KvCache,
    /// The encoder's side, read at every step.
    pub memory: KvCache,
}

impl DecoderCache {
    /// Two caches with room for `batch` empty sequences each.
    ///
    /// # Errors
    /// Those of [`KvCacheConfig::init`], and [`Error::Zero`] for a batch of 0.
    pub fn new(
        target: KvCacheConfig,
        memory: KvCacheConfig,
        batch: usize,
        device: &Device,
    ) -> Result<Self> {
        Ok(Self {
            target: target.init_rows(batch, device)?,
            memory: memory.init_rows(batch, device)?,
        })
    }
}

impl CachedTransformerDecoder {
    /// Takes the weights of a trained decoder, which shares them.
    ///
    /// # Errors
    /// [`Error::Module`] for `quiet_softmax`; [`Error::Zero`] without layers; [`Error::Shape`]
    /// where weights do not fit the decoder's own sizes.
    pub fn new(decoder: &TransformerDecoder) -> Result<Self> {
        if decoder.layers.is_empty() {
            return Err(Error::Zero { what: "n_layers" });
        }
        let layers = decoder.layers.iter();
        Ok(Self {
            layers: layers
                .map(|layer| DecoderLayer::new(layer, decoder.d_model))
                .collect::<Result<_>>()?,
            d_model: decoder.d_model,
        })
    }

    /// A cache for the decoder's own tokens, or for the encoder's side: both have the same sizes.
    /// Choose method and lengths, and make a [`DecoderCache`] of two.
    pub fn cache_config(&self) -> KvCacheConfig {
        // There is a first layer, see `new`.
        self.layers[0].self_attn.cache_config(self.layers.len())
    }

    /// Stores the keys and values of `memory` (`[batch, tokens, d_model]`) for all layers, without
    /// its padding: once, before the first [`forward`](Self::forward).
    ///
    /// # Errors
    /// Those of [`CachedCrossAttention::encode`]. The sequences then hold what they held before;
    /// tokens packed meanwhile in earlier layers stay packed.
    pub fn encode(
        &self,
        cache: &mut DecoderCache,
        memory: Tensor<3>,
        padding: Option<&Padding>,
    ) -> Result<()> {
        let cache = &mut cache.memory;
        cache.layer(self.layers.len() - 1)?;
        let before = lens(cache);
        let encoded = self.layers.iter().enumerate().try_for_each(|(i, layer)| {
            let options = options(padding);
            layer.cross_attn.encode(cache, i, memory.clone(), options)
        });
        undo_on_error(cache, &before, encoded)
    }

    /// Appends the tokens of `target` and decodes them.
    ///
    /// - `target`: `[batch, tokens, d_model]`, the new tokens of each sequence only
    /// - `padding`: of `target`, as in a batch of prompts
    /// - result: `[batch, tokens, d_model]`, zero at padding
    ///
    /// # Errors
    /// Those of [`CachedAttention::forward`] and [`CachedCrossAttention::forward`]. The sequences
    /// then hold what they held before; tokens packed meanwhile in earlier layers stay packed.
    pub fn forward(
        &self,
        cache: &mut DecoderCache,
        target: Tensor<3>,
        padding: Option<&Padding>,
    ) -> Result<Tensor<3>> {
        let [batch, tokens, _] = target.dims();
        check_input(&cache.target, "target", &target, self.d_model)?;
        check_parameters(&cache.target, self)?;
        if let Some(padding) = padding {
            padding.check(batch, tokens)?;
        }
        for cache in [&cache.target, &cache.memory] {
            cache.layer(self.layers.len() - 1)?;
        }
        check_encoded(&cache.memory, batch)?;
        let before = lens(&cache.target);
        let mut x = Ok(target);
        for (i, layer) in self.layers.iter().enumerate() {
            x = x.and_then(|x| layer.forward(cache, i, x, padding));
        }
        let x = undo_on_error(&mut cache.target, &before, x)?;
        Ok(match padding {
            Some(padding) => padding.clear(x),
            None => x,
        })
    }
}

impl DecoderLayer {
    fn new(layer: &TransformerDecoderLayer, d_model: usize) -> Result<Self> {
        let this = Self {
            cross_attn: CachedCrossAttention::from_multi_head(&layer.cross_attn)?,
            self_attn: CachedAttention::new(&layer.self_attn)?,
            pwff: layer.pwff.clone(),
            norm_1: layer.norm_1.clone(),
            norm_2: layer.norm_2.clone(),
            norm_3: layer.norm_3.clone(),
            norm_first: layer.norm_first,
        };
        for (tensor, found) in [
            ("d_model of self_attn", layer.self_attn.d_model),
            ("d_model of cross_attn", layer.cross_attn.d_model),
            ("norm_1 gamma", layer.norm_1.gamma.lazy_shape()[0]),
            ("norm_2 gamma", layer.norm_2.gamma.lazy_shape()[0]),
            ("norm_3 gamma", layer.norm_3.gamma.lazy_shape()[0]),
        ] {
            if found != d_model {
                return Err(Error::Shape {
                    tensor,
                    found: vec![found],
                    expected: format!("[{d_model}], the decoder's d_model"),
                });
            }
        }
        let [_, inner] = this.pwff.linear_inner.weight.lazy_shape().dims();
        let outer = this.pwff.linear_outer.weight.lazy_shape()[0];
        check_linear(
            "linear_inner weight",
            &this.pwff.linear_inner,
            [d_model, inner],
        )?;
        check_linear(
            "linear_outer weight",
            &this.pwff.linear_outer,
            [outer, d_model],
        )?;
        Ok(this)
    }

    /// The residual paths of `TransformerDecoderLayer::forward`, and its order of norms: the third
    /// comes first where norms do.
    fn forward(
        &self,
        cache: &mut DecoderCache,
        index: usize,
        x: Tensor<3>,
        padding: Option<&Padding>,
    ) -> Result<Tensor<3>> {
        let before = |x: &Tensor<3>, norm: &LayerNorm| match self.norm_first {
            true => norm.forward(x.clone()),
            false => x.clone(),
        };
        let after = |x: Tensor<3>, norm: &LayerNorm| match self.norm_first {
            true => x,
            false => norm.forward(x),
        };
        let own = before(&x, &self.norm_3);
        let own = self
            .self_attn
            .forward(&mut cache.target, index, own, options(padding))?;
        let x = after(x + own, &self.norm_1);

        let seen = before(&x, &self.norm_1);
        let seen = self
            .cross_attn
            .forward(&mut cache.memory, index, seen, options(padding))?;
        let x = after(x + seen, &self.norm_2);

        // Not `pwff.forward`, which has dropout on a device with autodiff.
        let inner = self.pwff.linear_inner.forward(before(&x, &self.norm_2));
        let inner = self.pwff.activation.forward(inner);
        let x = x + self.pwff.linear_outer.forward(inner);
        Ok(after(x, &self.norm_3))
    }
}

fn options(padding: Option<&Padding>) -> AttentionOptions {
    match padding {
        Some(padding) => AttentionOptions::causal().padding(padding),
        None => AttentionOptions::causal(),
    }
}

/// Refuses a batch that the memory has other rows than, or rows without tokens.
fn check_encoded(memory: &KvCache, batch: usize) -> Result<()> {
    let held = memory.lens();
    if held.len() != batch {
        return Err(Error::Shape {
            tensor: "target",
            found: vec![batch],
            expected: format!("[{}] rows, one for each sequence of the memory", held.len()),
        });
    }
    match memory
        .sequences()
        .iter()
        .zip(held)
        .find(|(_, len)| *len == 0)
    {
        Some((id, _)) => Err(Error::NoTokens {
            layer: 0,
            id: id.number(),
        }),
        None => Ok(()),
    }
}

fn lens(cache: &KvCache) -> Vec<(SequenceId, usize)> {
    cache.sequences().into_iter().zip(cache.lens()).collect()
}

/// Takes the tokens back that some layers of a failed step already hold.
fn undo_on_error<T>(
    cache: &mut KvCache,
    before: &[(SequenceId, usize)],
    result: Result<T>,
) -> Result<T> {
    if result.is_err() {
        for &(id, len) in before {
            cache.truncate(id, len)?;
        }
    }
    result
}
