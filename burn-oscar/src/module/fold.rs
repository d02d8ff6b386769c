//! The value transform, moved from every step into the weights.

use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{DType, Tensor};

use crate::cache::{KvCacheConfig, check_foldable};
use crate::error::{Error, Result};
use crate::rotation::LayerTransform;

/// Folds the value transform of a layer into its value and output projections, `x W + b`.
///
/// A value is stored as `(v - mean) A`, and an output comes back as `o C + mean` with `A C = 1`.
/// Both are linear, and attention between them only takes means of values with weights that add up
/// to 1; so with `V`, `O` the projections of a KV head and of a query head that reads it,
///
/// ```text
/// V' = V A    b_v' = (b_v - mean) A        O' = C O    b_o' = b_o + mean O, over the query heads
/// ```
///
/// give the same outputs without a product at run time. The means of a calibration are exact to
/// fold; a projection without a bias gets one where there is a mean. The means of *pages* belong to
/// the stored data and need no folding. Keys and queries cannot be folded in the same way: their
/// position encoding stands between the weights and the transform.
///
/// - `config`: of the cache that will serve the model, with
///   [`with_folded_values`](KvCacheConfig::with_folded_values)
/// - `value`: weight `[d_in, kv_heads * head_dim]`; KV heads lie side by side
/// - `output`: weight `[heads * head_dim, d_out]`; query head h reads KV head
///   `h / (heads / kv_heads)`
///
/// Returns the two folded projections, computed in f32 and kept in the dtype of the weights: those
/// of 16 bits are rounded once more. A layer that `config` keeps exact is returned as it is, since
/// its values are not transformed.
///
/// # Errors
/// - [`Error::Option`] where `config` does not say that values are folded: the cache would transform
///   them again
/// - [`Error::Method`] where the method stores values as they are
/// - [`Error::Fold`] for quantised weights
/// - [`Error::Shape`], [`Error::Layer`], [`Error::Artifact`] where `config` does not fit the
///   projections or its calibration
pub fn fold_values(
    config: &KvCacheConfig,
    layer: usize,
    value: Linear,
    output: Linear,
) -> Result<(Linear, Linear)> {
    if !config.folded_values() {
        return Err(Error::Option {
            option: "folded_values",
            value: "false".into(),
            reason: "the cache would transform folded values again: set \
                     KvCacheConfig::with_folded_values(true)",
        });
    }
    check_foldable(config.method())?;
    config.validate()?;
    config.check_layer(layer)?;
    let heads = check_shapes(config, &value, &output)?;
    for (tensor, dtype) in [
        ("value weight", value.weight.val().dtype()),
        ("output weight", output.weight.val().dtype()),
    ] {
        if !matches!(
            dtype,
            DType::F64 | DType::F32 | DType::Flex32 | DType::F16 | DType::BF16
        ) {
            return Err(Error::Fold {
                layer,
                tensor,
                reason: format!(
                    "its weights are {dtype:?}, and rotated codes are no codes: fold the model \
                     first and quantise it then, or leave the values unfolded"
                ),
            });
        }
    }
    if config.is_exact_layer(layer) {
        return Ok((value, output));
    }
    let transform = config.layer_transform(layer, &value.weight.val().device());
    Ok((
        fold_value(config, &transform, value),
        fold_output(config, &transform, output, heads),
    ))
}

/// Query heads, where the weights and biases have the shapes of the cache's heads.
fn check_shapes(config: &KvCacheConfig, value: &Linear, output: &Linear) -> Result<usize> {
    let (kv_heads, head_dim) = (config.n_kv_heads(), config.head_dim());
    let width = kv_heads * head_dim;
    let refuse = |tensor, found: &[usize], expected: String| {
        Err(Error::Shape {
            tensor,
            found: found.to_vec(),
            expected,
        })
    };
    let value_weight = value.weight.val().dims();
    if value_weight[1] != width {
        let expected = format!("[d_in, {kv_heads} KV heads * {head_dim} channels = {width}]");
        return refuse("value weight", &value_weight, expected);
    }
    let output_weight = output.weight.val().dims();
    if output_weight[0] == 0 || !output_weight[0].is_multiple_of(width) {
        let expected = format!(
            "[heads * {head_dim} channels, d_out], heads a multiple of {kv_heads} KV heads"
        );
        return refuse("output weight", &output_weight, expected);
    }
    for (tensor, linear, width) in [
        ("value bias", value, width),
        ("output bias", output, output_weight[1]),
    ] {
        if let Some(bias) = &linear.bias
            && bias.val().dims() != [width]
        {
            return refuse(
                tensor,
                &bias.val().dims(),
                format!("[{width}], as the weight"),
            );
        }
    }
    Ok(output_weight[0] / head_dim)
}

/// `V A` for each KV head, and the bias.
fn fold_value(config: &KvCacheConfig, transform: &LayerTransform, value: Linear) -> Linear {
    let (kv_heads, head_dim) = (config.n_kv_heads(), config.head_dim());
    let weight = value.weight.val();
    let ([d_in, width], dtype) = (weight.dims(), weight.dtype());
    let heads = weight.cast(DType::F32).reshape([d_in, kv_heads, head_dim]);
    let heads = heads.swap_dims(0, 1).unsqueeze_dim::<4>(0);
    let folded = transform.folded_value(heads);
    let folded = folded.squeeze_dim::<3>(0).swap_dims(0, 1);
    let folded = folded.reshape([d_in, width]).cast(dtype);
    let bias = value.bias.as_ref().map(|bias| {
        let bias = bias.val().cast(DType::F32);
        bias.reshape([1, kv_heads, 1, head_dim])
    });
    let bias = transform
        .folded_bias(bias)
        .map(|bias| bias.reshape([width]).cast(dtype));
    replaced(value, folded, bias)
}

/// `C O` for each query head, and the bias.
fn fold_output(
    config: &KvCacheConfig,
    transform: &LayerTransform,
    output: Linear,
    heads: usize,
) -> Linear {
    let (kv_heads, head_dim) = (config.n_kv_heads(), config.head_dim());
    let weight = output.weight.val();
    let ([width, d_out], dtype) = (weight.dims(), weight.dtype());
    let weight = weight.cast(DType::F32);
    let group = heads / kv_heads;
    // Transposed, so that the product is one of rows: (C O)ᵀ = Oᵀ Cᵀ.
    let rows = weight.clone().reshape([heads, head_dim, d_out]);
    let rows = rows.swap_dims(1, 2);
    let rows = transform.folded_output(rows.reshape([1, kv_heads, group * d_out, head_dim]));
    let folded = rows.reshape([heads, d_out, head_dim]).swap_dims(1, 2);
    let folded = folded.reshape([width, d_out]).cast(dtype);

    let own = output.bias.as_ref().map(|bias| bias.val().cast(DType::F32));
    let mean = transform.value_mean().map(|mean| {
        let mean = mean.clone().expand([1, kv_heads, group, head_dim]);
        mean.reshape([1, width]).matmul(weight).reshape([d_out])
    });
    let bias = match (own, mean) {
        (Some(own), Some(mean)) => Some(own + mean),
        (own, mean) => own.or(mean),
    };
    replaced(output, folded, bias.map(|bias| bias.cast(dtype)))
}

/// The projection with other numbers. What a parameter is called and how it is saved stays; what was
/// attached to it, a low-rank adapter for one, is in the numbers now.
fn replaced(linear: Linear, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Linear {
    let own = linear.bias;
    Linear {
        weight: linear.weight.map(|_| weight.detach()),
        bias: bias.map(|bias| match own {
            Some(own) => own.map(|_| bias.detach()),
            None => Param::from_tensor(bias.detach()),
        }),
    }
}
