//! What the tests of the kernels have in common: the device, every recipe, and numbers.

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_oscar::Method;
use burn_oscar::method::{Side, TransformKind};

use crate::golden::golden_calibration;

/// The CubeCL device under test: `BURN_OSCAR_DEVICE`, or CubeCL's CPU runtime.
pub fn kernel_device() -> Device {
    match std::env::var("BURN_OSCAR_DEVICE").as_deref() {
        #[cfg(feature = "cuda")]
        Ok("cuda") => Device::cuda(0),
        Ok(other) => {
            panic!("BURN_OSCAR_DEVICE={other}: this build knows cpu, and cuda with the feature")
        }
        Err(_) => Device::cpu(),
    }
}

/// The presets that pack, calibrated ones with the quantisers of an artifact: the operations
/// take transformed vectors, so the matrices do not matter and any head size will do.
pub fn methods() -> Vec<(String, Method)> {
    let mut methods: Vec<_> = [
        "round_to_nearest",
        "kivi",
        "hadamard",
        "hadamard_centred",
        "oscar_scaled",
    ]
    .map(|name| (name.to_string(), Method::preset(name).unwrap()))
    .into();
    for name in ["oscar", "transform_coded"] {
        let calibrated = Method::calibrated(name, &golden_calibration(name, 1)).unwrap();
        let [key, value] = [calibrated.key_side(), calibrated.value_side()].map(|side| Side {
            transform: TransformKind::Hadamard,
            quantizer: side.quantizer.clone(),
        });
        let method = Method::hadamard().with_key_side(key).with_value_side(value);
        methods.push((name.to_string(), method));
    }
    for name in ["kivi", "hadamard", "hadamard_centred", "oscar_scaled"] {
        let method = Method::preset(name).unwrap().with_bits(4).unwrap();
        methods.push((format!("{name} at 4 bits"), method));
    }
    // One side exact, the other in small groups of tokens.
    let mut side = Method::kivi().key_side().clone();
    if let Some(quantizer) = &mut side.quantizer {
        quantizer.group_size = Some(16);
    }
    methods.push(("exact values".into(), Method::exact().with_key_side(side)));
    methods
}

/// Numbers that look random, bell-shaped, with outliers.
pub struct Noise(pub u64);

impl Noise {
    /// 31 random bits.
    pub fn bits(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as u32
    }

    /// About normal; one in 200 is ten times as large.
    pub fn number(&mut self) -> f32 {
        let normal = self.normal();
        match self.bits() % 200 {
            0 => 10.0 * normal,
            _ => normal,
        }
    }

    /// About normal, without outliers: what rotated queries look like.
    pub fn normal(&mut self) -> f32 {
        let uniform = |noise: &mut Self| noise.bits() as f32 / (1u32 << 31) as f32 - 0.5;
        (0..6).map(|_| uniform(self)).sum::<f32>() * 1.414
    }

    /// A tensor of [`normal`](Self::normal) numbers.
    pub fn query(&mut self, shape: [usize; 4], dtype: DType, device: &Device) -> Tensor<4> {
        let numbers: Vec<f32> = (0..shape.iter().product::<usize>())
            .map(|_| self.normal())
            .collect();
        Tensor::<4>::from_data(TensorData::new(numbers, shape), device).cast(dtype)
    }

    /// A tensor of [`number`](Self::number)s.
    pub fn tensor<const D: usize>(
        &mut self,
        shape: [usize; D],
        dtype: DType,
        device: &Device,
    ) -> Tensor<D> {
        let numbers: Vec<f32> = (0..shape.iter().product::<usize>())
            .map(|_| self.number())
            .collect();
        Tensor::<D>::from_data(TensorData::new(numbers, shape), device).cast(dtype)
    }
}
