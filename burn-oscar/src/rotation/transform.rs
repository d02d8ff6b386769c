//! The transforms of one layer, on the device.
//!
//! Row vectors: a key is stored as `(k - mean) A`, a query becomes `q M` with `A Mᵀ = 1`; a value
//! is stored as `(v - mean) A`, an output comes back as `o C + mean` with `A C = 1`. Centring the
//! keys shifts all scores of a query alike, which the softmax ignores, as long as every tier is
//! centred; the weights of the values add up to 1, so their mean is added once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::{Device, Tensor, TensorData};

use super::hadamard::hadamard;
use crate::calibration::{Calibration, Matrices, SideCalibration};
use crate::method::{Side, TransformKind};

/// Rows that a product has at least. Matrix products of very few rows may sum in another order;
/// with this many, a vector's transform does not depend on how many arrive with it.
const MIN_ROWS: usize = 16;

/// A matrix `[1, 1 or kv_heads, head_dim, head_dim]`, or nothing for the identity.
type Matrix = Option<Tensor<4>>;

/// The transforms of keys, queries, values and outputs of one layer.
#[derive(Clone, Debug)]
pub struct LayerTransform {
    key: Matrix,
    key_mean: Option<Tensor<4>>,
    query: Matrix,
    value: Matrix,
    value_mean: Option<Tensor<4>>,
    output: Matrix,
    /// Shared by clones, which calls work on.
    products: Arc<AtomicU64>,
}

/// One side's matrix, mean and way back.
struct Parts {
    forward: Matrix,
    mean: Option<Tensor<4>>,
    inverse: Matrix,
}

impl LayerTransform {
    /// The transforms of `layer` for a method's sides.
    pub(crate) fn new(
        key: &Side,
        value: &Side,
        calibration: Option<&Calibration>,
        layer: usize,
        head_dim: usize,
        device: &Device,
    ) -> Self {
        let layer = calibration.map(|calibration| calibration.layer(layer));
        let key = Parts::new(key.transform, layer.map(|l| &l.key), true, head_dim, device);
        let value = Parts::new(
            value.transform,
            layer.map(|l| &l.value),
            false,
            head_dim,
            device,
        );
        Self {
            key: key.forward,
            key_mean: key.mean,
            query: key.inverse,
            value: value.forward,
            value_mean: value.mean,
            output: value.inverse,
            products: Arc::default(),
        }
    }

    /// The same for values that arrive transformed, and outputs that stay so.
    pub(crate) fn without_values(self) -> Self {
        Self {
            value: None,
            value_mean: None,
            output: None,
            ..self
        }
    }

    /// Matrix products that vectors of this layer have been through so far: one for each call and
    /// each of keys, queries, values and outputs that are transformed. What
    /// [folding](crate::module::fold_values) removes, counted.
    pub fn products(&self) -> u64 {
        self.products.load(Ordering::Relaxed)
    }

    /// Keys `[batch, kv_heads, tokens, head_dim]` as they are stored.
    pub fn key(&self, key: Tensor<4>) -> Tensor<4> {
        self.forward(key, &self.key_mean, &self.key)
    }

    /// Values `[batch, kv_heads, tokens, head_dim]` as they are stored.
    pub fn value(&self, value: Tensor<4>) -> Tensor<4> {
        self.forward(value, &self.value_mean, &self.value)
    }

    /// Queries `[batch, heads, tokens, head_dim]` as they meet stored keys.
    pub fn query(&self, query: Tensor<4>, kv_heads: usize) -> Tensor<4> {
        self.per_kv_head(query, &self.query, kv_heads)
    }

    /// Outputs `[batch, heads, tokens, head_dim]` of attention over stored values, brought back.
    pub fn output(&self, output: Tensor<4>, kv_heads: usize) -> Tensor<4> {
        let output = self.per_kv_head(output, &self.output, kv_heads);
        let Some(mean) = &self.value_mean else {
            return output;
        };
        let ([batch, heads, tokens, head_dim], dtype) = (output.dims(), output.dtype());
        let group = heads / kv_heads;
        output
            .reshape([batch, kv_heads, group * tokens, head_dim])
            .add(mean.clone().cast(dtype))
            .reshape([batch, heads, tokens, head_dim])
    }

    /// Stored keys `[n, kv_heads, tokens, head_dim]` brought back.
    pub fn key_back(&self, stored: Tensor<4>) -> Tensor<4> {
        // k = y A⁻¹ + mean, and A⁻¹ = Mᵀ.
        let inverse = self.query.clone().map(|m| m.swap_dims(2, 3));
        self.back(stored, &inverse, &self.key_mean)
    }

    /// Stored values `[n, kv_heads, tokens, head_dim]` brought back.
    pub fn value_back(&self, stored: Tensor<4>) -> Tensor<4> {
        self.back(stored, &self.output, &self.value_mean)
    }

    /// Bytes of the matrices and means.
    pub(crate) fn bytes(&self) -> usize {
        [
            &self.key,
            &self.key_mean,
            &self.query,
            &self.value,
            &self.value_mean,
            &self.output,
        ]
        .into_iter()
        .flatten()
        .map(|tensor| tensor.shape().num_elements() * tensor.dtype().size())
        .sum()
    }

    fn forward(&self, x: Tensor<4>, mean: &Option<Tensor<4>>, matrix: &Matrix) -> Tensor<4> {
        let x = match mean {
            Some(mean) => x.clone() - mean.clone().cast(x.dtype()),
            None => x,
        };
        self.multiply(x, matrix)
    }

    fn back(&self, y: Tensor<4>, matrix: &Matrix, mean: &Option<Tensor<4>>) -> Tensor<4> {
        let y = self.multiply(y, matrix);
        match mean {
            Some(mean) => y + mean.clone(),
            None => y,
        }
    }

    fn per_kv_head(&self, x: Tensor<4>, matrix: &Matrix, kv_heads: usize) -> Tensor<4> {
        if matrix.is_none() {
            return x;
        }
        let [batch, heads, tokens, head_dim] = x.dims();
        let group = heads / kv_heads;
        self.multiply(
            x.reshape([batch, kv_heads, group * tokens, head_dim]),
            matrix,
        )
        .reshape([batch, heads, tokens, head_dim])
    }

    fn multiply(&self, x: Tensor<4>, matrix: &Matrix) -> Tensor<4> {
        if matrix.is_some() {
            self.products.fetch_add(1, Ordering::Relaxed);
        }
        multiply(x, matrix)
    }

    /// Value projections `[1, kv_heads, d_in, head_dim]` that give transformed values.
    pub(crate) fn folded_value(&self, weight: Tensor<4>) -> Tensor<4> {
        multiply(weight, &self.value)
    }

    /// What a value projection's bias `[1, kv_heads, 1, head_dim]` becomes. Without a mean the
    /// transform is linear, and no bias stays none.
    pub(crate) fn folded_bias(&self, bias: Option<Tensor<4>>) -> Option<Tensor<4>> {
        let centred = match (bias, &self.value_mean) {
            (bias, None) => bias,
            (Some(bias), Some(mean)) => Some(bias - mean.clone()),
            (None, Some(mean)) => Some(-mean.clone()),
        };
        centred.map(|bias| multiply(bias, &self.value))
    }

    /// Output projections `[1, kv_heads, d_out * query heads, head_dim]`, transposed, that take
    /// outputs over transformed values.
    pub(crate) fn folded_output(&self, weight: Tensor<4>) -> Tensor<4> {
        let transposed = self.output.clone().map(|matrix| matrix.swap_dims(2, 3));
        multiply(weight, &transposed)
    }

    /// The mean of the values, `[1, kv_heads, 1, head_dim]`, where the method has one.
    pub(crate) fn value_mean(&self) -> Option<&Tensor<4>> {
        self.value_mean.as_ref()
    }
}

impl Parts {
    fn new(
        kind: TransformKind,
        calibrated: Option<&SideCalibration>,
        is_key: bool,
        head_dim: usize,
        device: &Device,
    ) -> Self {
        let mean = calibrated.and_then(|side| side.mean.as_ref()).map(|mean| {
            let heads = mean.len() / head_dim;
            let data = TensorData::new(mean.clone(), [1, heads, 1, head_dim]);
            Tensor::from_data(data, device)
        });
        let matrix = |data: Vec<f32>| {
            let heads = data.len() / (head_dim * head_dim);
            let data = TensorData::new(data, [1, heads, head_dim, head_dim]);
            Tensor::<4>::from_data(data, device)
        };
        let (forward, inverse) = match (kind, calibrated) {
            (TransformKind::Identity, _) | (TransformKind::Calibrated, None) => (None, None),
            (TransformKind::Hadamard, _) => {
                let hadamard = matrix(hadamard(head_dim));
                (Some(hadamard.clone()), Some(hadamard))
            }
            (TransformKind::Calibrated, Some(side)) => {
                let of = |matrices: &Matrices| matrix(matrices.data.clone());
                let forward = side.transform.as_ref().map(of);
                let inverse = match &side.inverse {
                    Some(inverse) => Some(of(inverse)),
                    // Orthogonal: the query side is the same, the way back the transpose.
                    None if is_key => forward.clone(),
                    None => forward.clone().map(|matrix| matrix.swap_dims(2, 3)),
                };
                (forward, inverse)
            }
        };
        Self {
            forward,
            mean,
            inverse,
        }
    }
}

/// `x [batch, kv_heads, rows, head_dim]` times the matrix, in x's dtype.
fn multiply(x: Tensor<4>, matrix: &Matrix) -> Tensor<4> {
    let Some(matrix) = matrix else {
        return x;
    };
    let [batch, kv_heads, rows, head_dim] = x.dims();
    let matrix = matrix.clone().cast(x.dtype());
    if rows >= MIN_ROWS {
        return x.matmul(matrix);
    }
    let padding = Tensor::zeros(
        [batch, kv_heads, MIN_ROWS - rows, head_dim],
        (&x.device(), x.dtype()),
    );
    Tensor::cat(vec![x, padding], 2)
        .matmul(matrix)
        .narrow(2, 0, rows)
}
