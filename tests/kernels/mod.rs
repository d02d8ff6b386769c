//! The CubeCL kernels on the device that `BURN_OSCAR_DEVICE` names, by default CubeCL's CPU runtime.

mod attend;
mod decode;
mod layers;
mod memory;
mod model;
mod module;
mod pack;
mod real;

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::{DType, Tensor};

/// Lets the tests of this folder take turns where they share a process: launches are counted for
/// all of it, and a graph is captured while the device is doing nothing else.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    let numbers: Vec<f32> = tensor.cast(DType::F32).try_into_vec_as().unwrap();
    numbers.into_iter().map(f64::from).collect()
}

/// The error's norm over the norm of what was expected.
fn error(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let noise: f64 = found
        .iter()
        .zip(expected)
        .map(|(f, e)| (f - e).powi(2))
        .sum();
    (noise / expected.iter().map(|e| e * e).sum::<f64>()).sqrt()
}
