//! What the tests of the kernels have in common: the device, every recipe, and numbers.

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_oscar::Method;
use burn_oscar::method::{Side, TransformKind};

use crate::golden::golden_calibration;

/// The CubeCL device under test: the CPU runtime, or the first GPU where `BURN_OSCAR_DEVICE` is
/// `cuda`.
///
/// # Panics
/// For a device that this build does not have.
pub fn kernel_device() -> Device {
    match std::env::var("BURN_OSCAR_DEVICE").as_deref() {
        #[cfg(feature = "cuda")]
        Ok("cuda") => Device::cuda(0),
        #[cfg(feature = "cpu")]
        Err(_) | Ok("cpu") => Device::cpu(),
        other => panic!(
            "BURN_OSCAR_DEVICE is {other:?}: set it to cpu or cuda, and build with the feature of \
             that name"
        ),
    }
}

/// How far a result may be off where Burn multiplies matrices on the device: `limit`, but on CUDA
/// no less than what TF32 products cost.
pub fn product_limit(device: &Device, limit: f64) -> f64 {
    let cuda = std::env::var("BURN_OSCAR_DEVICE").is_ok_and(|name| name == "cuda");
    match cuda && *device != Device::flex() {
        true => limit.max(3e-3),
        false => limit,
    }
}

/// Every recipe, by name: the presets at two bits and, where they allow it, at four, one with an
/// exact side, and `exact`. The operations take transformed vectors, so nothing is transformed
/// here: matrix products on CubeCL's CPU runtime take longer than all kernels.
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
        let method = Method::hadamard()
            .with_key_side(calibrated.key_side().clone())
            .with_value_side(calibrated.value_side().clone());
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
    methods.push(("exact".into(), Method::exact()));
    let methods = methods.into_iter();
    methods
        .map(|(name, method)| (name, untransformed(method)))
        .collect()
}

/// The recipe of [`methods`] called `name`.
///
/// # Panics
/// If there is none.
pub fn method(name: &str) -> Method {
    let found = methods().into_iter().find(|(known, _)| known == name);
    found.unwrap_or_else(|| panic!("no recipe {name}")).1
}

fn untransformed(method: Method) -> Method {
    let [key, value] = [method.key_side(), method.value_side()].map(|side| Side {
        transform: TransformKind::Identity,
        quantizer: side.quantizer.clone(),
    });
    method.with_key_side(key).with_value_side(value)
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

    /// So many [`number`](Self::number)s.
    pub fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
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
        let numbers = self.numbers(shape.iter().product());
        Tensor::<D>::from_data(TensorData::new(numbers, shape), device).cast(dtype)
    }
}
