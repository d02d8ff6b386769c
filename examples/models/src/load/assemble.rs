//! Puts the tensors of a checkpoint where they belong in the model.

use burn::module::Param;
use burn::nn::{Linear, RmsNorm};
use burn::tensor::{Device, Tensor, TensorData};
use indicatif::{ProgressBar, ProgressStyle};

use super::fingerprint::Fingerprint;
use super::{LoadError, Weights};
use crate::config::ModelConfig;
use crate::model::Model;

/// Builds the model of a checked configuration from a checkpoint's weights. Also returns the
/// fingerprint.
pub(super) fn assemble(
    config: &ModelConfig,
    weights: &mut dyn Weights,
    device: &Device,
) -> Result<(Model, String), LoadError> {
    let mut model = Model::new(config, device);
    let progress = progress(config.num_layers as u64);
    let mut assembly = Assembly {
        weights,
        fingerprint: Fingerprint::new(config),
        device,
    };

    let hidden = config.hidden_size;
    let embedding = [config.vocab_size, hidden];
    model.embedding.weight = assembly.parameter("model.embed_tokens.weight", embedding)?;
    for (index, layer) in model.layers.iter_mut().enumerate() {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let attention = &mut layer.attention;
        assembly.norm(&name("input_layernorm"), &mut layer.attention_norm)?;
        assembly.linear(&name("self_attn.q_proj"), &mut attention.query)?;
        assembly.linear(&name("self_attn.k_proj"), &mut attention.key)?;
        assembly.linear(&name("self_attn.v_proj"), &mut attention.value)?;
        assembly.linear(&name("self_attn.o_proj"), &mut attention.output)?;
        if let Some(norm) = &mut attention.query_norm {
            assembly.norm(&name("self_attn.q_norm"), norm)?;
        }
        if let Some(norm) = &mut attention.key_norm {
            assembly.norm(&name("self_attn.k_norm"), norm)?;
        }
        assembly.norm(
            &name("post_attention_layernorm"),
            &mut layer.feed_forward_norm,
        )?;
        assembly.linear(&name("mlp.gate_proj"), &mut layer.feed_forward.gate)?;
        assembly.linear(&name("mlp.up_proj"), &mut layer.feed_forward.up)?;
        assembly.linear(&name("mlp.down_proj"), &mut layer.feed_forward.down)?;
        progress.inc(1);
    }
    assembly.norm("model.norm", &mut model.norm)?;
    if let Some(head) = &mut model.head {
        assembly.linear("lm_head", head)?;
    }
    progress.finish_and_clear();
    Ok((model, assembly.fingerprint.finish()))
}

struct Assembly<'a> {
    weights: &'a mut dyn Weights,
    fingerprint: Fingerprint,
    device: &'a Device,
}

impl Assembly<'_> {
    /// Reads `name.weight`, and `name.bias` where the layer has one.
    fn linear(&mut self, name: &str, layer: &mut Linear) -> Result<(), LoadError> {
        let [inputs, outputs] = layer.weight.shape().dims();
        let values = self.values(&format!("{name}.weight"), &[outputs, inputs])?;
        // Burn multiplies by `[inputs, outputs]`. A transposed view would do, but `linear` copies
        // a weight that does not lie in order, once for every token.
        let values = transposed(&values, outputs, inputs);
        layer.weight = self.place(values, [inputs, outputs]);
        if let Some(bias) = &mut layer.bias {
            *bias = self.parameter(&format!("{name}.bias"), [outputs])?;
        }
        Ok(())
    }

    /// Reads `name.weight`.
    fn norm(&mut self, name: &str, layer: &mut RmsNorm) -> Result<(), LoadError> {
        let width = layer.gamma.shape().dims::<1>();
        layer.gamma = self.parameter(&format!("{name}.weight"), width)?;
        Ok(())
    }

    fn parameter<const D: usize>(
        &mut self,
        name: &str,
        shape: [usize; D],
    ) -> Result<Param<Tensor<D>>, LoadError> {
        let values = self.values(name, &shape)?;
        Ok(self.place(values, shape))
    }

    /// Reads a tensor, checks that it is finite and adds it to the fingerprint.
    fn values(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let tensor = self.weights.read(name, shape)?;
        if let Some(index) = tensor.values.iter().position(|value| !value.is_finite()) {
            return Err(LoadError::NotFinite {
                name: tensor.name,
                index,
                value: tensor.values[index],
            });
        }
        self.fingerprint
            .add(name, shape, &tensor.dtype, &tensor.values);
        Ok(tensor.values)
    }

    fn place<const D: usize>(&self, values: Vec<f32>, shape: [usize; D]) -> Param<Tensor<D>> {
        Param::from_tensor(Tensor::from_data(
            TensorData::new(values, shape),
            self.device,
        ))
    }
}

/// `[rows, columns]` to `[columns, rows]`, tile by tile: a column walks through memory in large
/// steps, which the cache forgives for a few lines at a time only.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    const TILE: usize = 32;
    let mut result = vec![0.0; values.len()];
    for first_row in (0..rows).step_by(TILE) {
        for first_column in (0..columns).step_by(TILE) {
            for row in first_row..(first_row + TILE).min(rows) {
                for column in first_column..(first_column + TILE).min(columns) {
                    result[column * rows + row] = values[row * columns + column];
                }
            }
        }
    }
    result
}

/// A bar over the layers, on standard error; hidden where that is no terminal.
fn progress(layers: u64) -> ProgressBar {
    let bar = ProgressBar::new(layers);
    if let Ok(style) = ProgressStyle::with_template("loading {wide_bar} {pos}/{len} layers") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::transposed;

    #[test]
    fn tiles_cover_a_matrix_of_any_size() {
        for (rows, columns) in [(1, 1), (3, 70), (64, 32), (33, 100)] {
            let values: Vec<f32> = (0..rows * columns).map(|index| index as f32).collect();
            let result = transposed(&values, rows, columns);
            for row in 0..rows {
                for column in 0..columns {
                    let expected = values[row * columns + column];
                    assert_eq!(result[column * rows + row], expected);
                }
            }
        }
    }
}
