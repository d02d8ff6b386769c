//! Calibrations made of the golden tensors in `fixtures/golden.safetensors`.

use std::path::Path;

use burn_oscar::calibration::{
    Calibration, CalibrationBuilder, LayerCalibration, Matrices, SideCalibration,
};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;

/// Channels of a head in the golden tensors.
pub const HEAD_DIM: usize = 64;
/// KV heads in the golden tensors.
pub const KV_HEADS: usize = 3;
/// Layers of the model that the golden tensors are of.
pub const LAYERS: [usize; 2] = [3, 20];
/// The fingerprint that the golden calibrations carry.
pub const FINGERPRINT: &str = "SmolLM2-135M-Instruct golden";

/// A valid `oscar` or `transform_coded` calibration of `layers` layers and [`KV_HEADS`] KV heads
/// of [`HEAD_DIM`]: even layers are the golden layer 3, odd ones 20.
///
/// # Panics
/// If the fixture cannot be read, or for another method.
pub fn golden_calibration(method: &str, layers: usize) -> Calibration {
    golden_calibration_for(method, layers, KV_HEADS)
}

/// [`golden_calibration`] for another number of KV heads, which repeat the golden three.
///
/// # Panics
/// As [`golden_calibration`].
pub fn golden_calibration_for(method: &str, layers: usize, kv_heads: usize) -> Calibration {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden.safetensors");
    let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let golden = SafeTensors::deserialize(&file).expect("the golden file is a safetensors file");
    let distinct = LAYERS.map(|layer| match method {
        "oscar" => oscar(&golden, layer),
        "transform_coded" => transform_coded(&golden, layer, kv_heads),
        other => panic!("there are no golden tensors for `{other}`"),
    });
    let builder = CalibrationBuilder::new(method, layers, kv_heads, HEAD_DIM)
        .fingerprint(FINGERPRINT)
        .served_length(8192)
        .tokens(8192);
    (0..layers)
        .fold(builder, |builder, layer| {
            builder.layer(layer, distinct[layer % distinct.len()].clone())
        })
        .build()
        .expect("the golden tensors make a valid calibration")
}

/// Orthogonal rotations for all heads, no means.
fn oscar(golden: &SafeTensors, layer: usize) -> LayerCalibration {
    let side = |name: &str, clip| SideCalibration {
        transform: Some(Matrices::shared(
            HEAD_DIM,
            numbers(golden, &format!("oscar.layer{layer}.{name}")),
        )),
        clip: Some(clip),
        ..Default::default()
    };
    LayerCalibration {
        key: side("R_K", 0.96),
        value: side("R_V", 0.92),
    }
}

/// `y = (k - mean) A` with `B = A⁻¹`, so queries take `M = Bᵀ`. Values have a mean and the
/// method's own Hadamard matrix.
fn transform_coded(golden: &SafeTensors, layer: usize, kv_heads: usize) -> LayerCalibration {
    let per_head = |name: &str| {
        let data = numbers(golden, &format!("tc.layer{layer}.{name}"));
        let size = data.len() / KV_HEADS;
        (0..kv_heads * size)
            .map(|i| data[i % data.len()])
            .collect::<Vec<_>>()
    };
    let matrices = |data| Some(Matrices::per_head(kv_heads, HEAD_DIM, data));
    LayerCalibration {
        key: SideCalibration {
            transform: matrices(per_head("k.A")),
            inverse: matrices(transposed(&per_head("k.B"))),
            mean: Some(per_head("k.mean")),
            ..Default::default()
        },
        value: SideCalibration {
            mean: Some(per_head("v.mean")),
            ..Default::default()
        },
    }
}

fn numbers(golden: &SafeTensors, name: &str) -> Vec<f32> {
    let tensor = golden.tensor(name).expect("the golden tensor exists");
    assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
    let (words, _) = tensor.data().as_chunks::<4>();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// Each of the matrices, transposed.
fn transposed(matrices: &[f32]) -> Vec<f32> {
    matrices
        .chunks_exact(HEAD_DIM * HEAD_DIM)
        .flat_map(|m| (0..m.len()).map(|i| m[i % HEAD_DIM * HEAD_DIM + i / HEAD_DIM]))
        .collect()
}
