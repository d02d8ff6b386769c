//! Decorated modules against the undecorated ones of burn-nn, which always compute on flex.

pub mod attend_only;
pub mod attention;
pub mod cross;
pub mod decoder;

use burn::tensor::{Bool, DType, Device, Tensor, TensorData};
use burn_oscar::Method;

/// Windows so small that most of a test's tokens are packed.
pub fn packing(method: Method) -> Method {
    method.with_sink(4).with_recent(16)
}

/// Numbers between -1 and 1 that depend on the seed only.
pub fn input<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let numbers: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    Tensor::from_data(TensorData::new(numbers, shape), device)
}

/// The same numbers on another device.
pub fn on<const D: usize>(tensor: &Tensor<D>, device: &Device) -> Tensor<D> {
    Tensor::from_data(tensor.to_data(), device)
}

pub fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    let numbers: Vec<f32> = tensor.cast(DType::F32).try_into_vec_as().unwrap();
    numbers.into_iter().map(f64::from).collect()
}

/// A mask that is true outside the rows' `(start, tokens)`.
pub fn mask(rows: &[(usize, usize)], width: usize, device: &Device) -> Tensor<2, Bool> {
    let mask: Vec<bool> = rows
        .iter()
        .flat_map(|&(start, tokens)| (0..width).map(move |t| t < start || t >= start + tokens))
        .collect();
    Tensor::from_data(TensorData::new(mask, [rows.len(), width]), device)
}

/// The error's norm over the norm of what was expected. With `rows`, at their `(start, tokens)`
/// only, and what was found elsewhere is zero.
pub fn error(found: Tensor<3>, expected: Tensor<3>, rows: Option<&[(usize, usize)]>) -> f64 {
    assert_eq!(found.dims(), expected.dims());
    let [_, width, channels] = found.dims();
    let (found, expected) = (numbers(found), numbers(expected));
    let (mut noise, mut size) = (0.0, 0.0);
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let (row, t) = (at / (width * channels), at / channels % width);
        if let Some(rows) = rows {
            let (start, tokens) = rows[row];
            if t < start || t >= start + tokens {
                assert_eq!(*found, 0.0, "row {row}, padding {t}");
                continue;
            }
        }
        noise += (found - expected).powi(2);
        size += expected * expected;
    }
    (noise / size).sqrt()
}
