//! What the adapters refuse before Burn would panic, and the reshaping they share.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::Linear;
use burn::nn::attention::MultiHeadAttention;
use burn::tensor::{Bool, DType, Tensor};

use crate::cache::{KvCache, flags};
use crate::error::{Error, Result};

/// Checks that an attention mask `[batch, tokens, tokens]`, true where attention is masked, is the
/// causal one of `generate_autoregressive_mask`: the adapters mask later tokens themselves, and
/// take no other mask. Reads the mask to the host.
///
/// # Errors
/// [`Error::Shape`] unless it is square; [`Error::Mask`] for the first row that differs;
/// [`Error::Execution`].
pub fn check_causal_mask(mask_attn: Tensor<3, Bool>) -> Result<()> {
    let [batch, tokens, seen] = mask_attn.dims();
    if tokens != seen {
        return Err(Error::Shape {
            tensor: "mask_attn",
            found: vec![batch, tokens, seen],
            expected: "[batch, tokens, tokens], a square for each row".into(),
        });
    }
    if batch * tokens == 0 {
        return Ok(());
    }
    let mask = flags(mask_attn)?;
    for (row, mask) in mask.chunks(tokens * tokens).enumerate() {
        let differs = |at: &usize| mask[*at] != (at % tokens > at / tokens);
        if let Some(at) = (0..mask.len()).find(differs) {
            let (query, key) = (at / tokens, at % tokens);
            let state = if mask[at] { "masks" } else { "shows" };
            return Err(Error::Mask {
                mask: "mask_attn",
                row,
                reason: format!(
                    "it {state} token {key} for token {query}, and only the causal mask is \
                     served: give padding as mask_pad, and drop other masks or attend densely"
                ),
            });
        }
    }
    Ok(())
}

/// Refuses what a cache cannot compute.
pub(super) fn check_quiet_softmax(module: &'static str, quiet_softmax: bool) -> Result<()> {
    if !quiet_softmax {
        return Ok(());
    }
    Err(Error::Module {
        module,
        setting: "quiet_softmax",
        value: "true".into(),
        remedy: "the cache's attention weights add up to 1: train with the plain softmax, or \
                 attend densely",
    })
}

/// Checks the settings and the weights of a `MultiHeadAttention`.
pub(super) fn check_multi_head(mha: &MultiHeadAttention) -> Result<()> {
    check_quiet_softmax("MultiHeadAttention", mha.quiet_softmax)?;
    let (outside, inside) = (mha.d_model, mha.n_heads * mha.d_k);
    check_linear("query weight", &mha.query, [outside, inside])?;
    check_linear("key weight", &mha.key, [outside, inside])?;
    check_linear("value weight", &mha.value, [outside, inside])?;
    check_linear("output weight", &mha.output, [inside, outside])
}

/// Checks a weight `[inputs, outputs]`.
pub(super) fn check_linear(
    name: &'static str,
    linear: &Linear,
    [inputs, outputs]: [usize; 2],
) -> Result<()> {
    let found = linear.weight.lazy_shape().dims::<2>();
    let bias = linear.bias.as_ref().map(|bias| bias.lazy_shape().dims());
    if found == [inputs, outputs] && bias.is_none_or(|bias| bias == [outputs]) {
        return Ok(());
    }
    Err(Error::Shape {
        tensor: name,
        found: found.to_vec(),
        expected: format!("[{inputs}, {outputs}], and a bias of [{outputs}] or none"),
    })
}

/// Checks an input `[batch, tokens, width]` in the cache's dtype and on its device.
pub(super) fn check_input(
    cache: &KvCache,
    name: &'static str,
    x: &Tensor<3>,
    width: usize,
) -> Result<()> {
    let [batch, tokens, found] = x.dims();
    if batch == 0 || tokens == 0 || found != width {
        return Err(Error::Shape {
            tensor: name,
            found: x.dims().to_vec(),
            expected: format!("[at least 1 row, at least 1 token, {width}]"),
        });
    }
    check_kind(cache, name, x)
}

/// Checks that a module's parameters have the cache's dtype, or are quantised, and lie on its
/// device.
pub(super) fn check_parameters(cache: &KvCache, module: &impl Module) -> Result<()> {
    let mut check = ParameterCheck {
        cache,
        found: Ok(()),
    };
    module.visit(&mut check);
    check.found
}

struct ParameterCheck<'a> {
    cache: &'a KvCache,
    found: Result<()>,
}

impl ModuleVisitor for ParameterCheck<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.found.is_ok() {
            self.found = check_kind(self.cache, "module's parameter", &param.val());
        }
    }
}

fn check_kind<const D: usize>(
    cache: &KvCache,
    name: &'static str,
    tensor: &Tensor<D>,
) -> Result<()> {
    let (found, expected) = (tensor.dtype(), cache.config().dtype());
    if found != expected && !matches!(found, DType::QFloat(_)) {
        return Err(Error::Dtype {
            tensor: name,
            found: format!("{found:?}"),
            expected: format!("{expected:?}"),
        });
    }
    let device = tensor.device();
    if device != *cache.device() {
        return Err(Error::Device {
            tensor: name,
            found: format!("{device:?}"),
            expected: format!("{:?}", cache.device()),
        });
    }
    Ok(())
}

/// `[batch, tokens, heads * head_dim]` as `[batch, heads, tokens, head_dim]`.
pub(super) fn split_heads(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, tokens, width] = x.dims();
    x.reshape([batch, tokens, heads, width / heads])
        .swap_dims(1, 2)
}

/// `[batch, heads, tokens, head_dim]` as `[batch, tokens, heads * head_dim]`.
pub(super) fn join_heads(x: Tensor<4>) -> Tensor<3> {
    let [batch, heads, tokens, head_dim] = x.dims();
    x.swap_dims(1, 2).reshape([batch, tokens, heads * head_dim])
}
