//! The committed fixtures, see `fixtures/README.md`.

use std::path::PathBuf;

use burn::tensor::{Device, Tensor, TensorData};
use safetensors::{Dtype, SafeTensors};

/// The folder of the fixtures.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// Tensors of a safetensors file, as f32.
pub struct Fixture(Vec<u8>);

impl Fixture {
    /// Reads a file of the folder.
    pub fn open(name: &str) -> Self {
        let path = folder().join(name);
        Self(std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    /// The golden data of the quantisers.
    pub fn golden() -> Self {
        Self::open("golden.safetensors")
    }

    /// Shape and numbers of a tensor; integers and halves are widened.
    pub fn numbers(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        let file = SafeTensors::deserialize(&self.0).expect("a valid fixture");
        let view = file
            .tensor(name)
            .unwrap_or_else(|_| panic!("no tensor {name}"));
        let bytes = view.data();
        let words = |size: usize| bytes.chunks_exact(size);
        let numbers = match view.dtype() {
            Dtype::U8 => bytes.iter().map(|&b| f32::from(b)).collect(),
            Dtype::F16 => words(2)
                .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect(),
            Dtype::F32 => words(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            Dtype::I32 => words(4)
                .map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32)
                .collect(),
            other => panic!("{name}: {other:?} is not read"),
        };
        (view.shape().to_vec(), numbers)
    }

    /// A tensor on a device.
    pub fn tensor<const D: usize>(&self, name: &str, device: &Device) -> Tensor<D> {
        let (shape, numbers) = self.numbers(name);
        Tensor::from_data(TensorData::new(numbers, shape), device)
    }
}
