//! What a device offers that the choice of a kernel depends on.

use cubecl::features::{MmaConfig, Plane};
use cubecl::prelude::*;

use super::grid::DECODE_PLANES;

/// Planes of NVIDIA GPUs, which the kernels that use planes are written for.
pub const PLANE: u32 = 32;
/// Units of a cube where the device has that many.
pub const UNITS: u32 = 128;

/// What the device offers.
pub struct Offers {
    pub planes: bool,
    pub tensor_cores: bool,
    pub merge: bool,
    pub units: u32,
}

impl Offers {
    pub fn of(client: &Client, head_dim: usize) -> Self {
        let properties = client.properties();
        let (features, hardware) = (&properties.features, &properties.hardware);
        let plane = hardware.plane_size_min == PLANE && hardware.plane_size_max == PLANE;
        // With planes, a head's vectors are shared out over the 32 units of one.
        let planes = plane
            && features.plane.contains(Plane::Ops)
            && features.plane.contains(Plane::Sync)
            && hardware.max_units_per_cube >= UNITS
            && [64, 128].contains(&head_dim);
        let product = MmaConfig {
            a_type: u8::elem_type_native(),
            b_type: i8::elem_type_native(),
            cd_type: i32::elem_type_native(),
            m: 16,
            n: 8,
            k: 32,
        };
        let word = Type::atomic(u32::elem_type_native());
        let uses = properties.atomic_type_usage(word);
        let merge = planes
            && features.device_memory_scope
            && uses.contains(cubecl::features::AtomicUsage::LoadStore);
        Self {
            planes,
            tensor_cores: merge
                && features.matmul.mma.contains(&product)
                && hardware.max_units_per_cube >= PLANE * DECODE_PLANES,
            merge,
            units: hardware.max_units_per_cube.min(UNITS),
        }
    }
}

/// Whether tensor cores multiply activations of this type by sixteens.
pub fn multiplies(client: &Client, dtype: ElemType) -> bool {
    client
        .properties()
        .features
        .matmul
        .mma
        .contains(&MmaConfig {
            a_type: dtype,
            b_type: dtype,
            cd_type: f32::elem_type_native(),
            m: 16,
            n: 8,
            k: 16,
        })
}
