//! The methods that are measured.

use burn_oscar::calibration::{
    Calibration, CalibrationBuilder, LayerCalibration, Matrices, SideCalibration,
};
use burn_oscar::method::Side;
use burn_oscar::quantizer::{GroupAxis, PageSpec, Role};
use burn_oscar::rotation::hadamard;
use burn_oscar::{Method, Result};

use crate::shape::{HEAD_DIM, KV_HEADS, Shape};

/// Those measured unless others are named.
pub const DEFAULT: [&str; 5] = [
    "oscar",
    "transform_coded",
    "oscar_scaled",
    "hadamard_centred",
    "kivi",
];

/// The method called `name` for a cache of `layers` layers. Calibrated methods get Hadamard
/// matrices for their transforms: what a step costs does not depend on the numbers in them.
/// `oscar_scaled` has keys per channel over 64 tokens, one group for each chunk.
///
/// # Errors
/// As [`Method::preset`].
pub fn method(name: &str, layers: usize) -> Result<Method> {
    if Method::needs_calibration(name) {
        return Method::calibrated(name, &artifact(name, layers)?);
    }
    let method = Method::preset(name)?;
    if name != "oscar_scaled" {
        return Ok(method);
    }
    let mut key = method.key_side().clone();
    if let Some(quantizer) = &mut key.quantizer {
        quantizer.axis = GroupAxis::Channel;
        quantizer.group_size = Some(64);
    }
    Ok(method.with_key_side(key))
}

/// An artifact whose transforms are Hadamard matrices, wherever the method has calibrated ones.
fn artifact(name: &str, layers: usize) -> Result<Calibration> {
    // `transform_coded` calibrates its keys only.
    let side = |calibrated: bool| SideCalibration {
        transform: calibrated.then(|| Matrices::shared(HEAD_DIM, hadamard(HEAD_DIM))),
        ..SideCalibration::default()
    };
    let layer = LayerCalibration {
        key: side(true),
        value: side(name == "oscar"),
    };
    let builder = CalibrationBuilder::new(name, layers, KV_HEADS, HEAD_DIM)
        .fingerprint("benchmark")
        .served_length(1 << 20)
        .tokens(1);
    (0..layers)
        .fold(builder, |builder, index| {
            builder.layer(index, layer.clone())
        })
        .build()
}

/// Bytes of one page, keys and values, over all KV heads.
pub fn page_bytes(method: &Method) -> usize {
    let side = |side: &Side, role| match &side.quantizer {
        None => 2 * KV_HEADS * method.page_tokens() * HEAD_DIM,
        Some(quantizer) => {
            PageSpec::new(quantizer, role, HEAD_DIM, method.page_tokens()).page_bytes(KV_HEADS)
        }
    };
    side(method.key_side(), Role::Key) + side(method.value_side(), Role::Value)
}

/// Bytes of one layer's tokens: pages with their parameters, sinks and recent tokens.
pub fn layer_bytes(method: &Method, shape: Shape) -> usize {
    let later = shape.context.saturating_sub(method.sink());
    let pages = later.saturating_sub(method.recent()) / method.page_tokens();
    let exact = shape.context - pages * method.page_tokens();
    shape.batch * (pages * page_bytes(method) + exact * 4 * KV_HEADS * HEAD_DIM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_has_a_method() {
        for name in Method::PRESETS {
            let method = method(name, 2).unwrap();
            assert_eq!(method.name(), *name);
            assert_eq!((method.sink(), method.recent()), (64, 256));
        }
    }

    #[test]
    fn bytes_are_those_of_the_formats() {
        // 64 tokens of one KV head take 4608 bytes, 72 a token.
        let oscar = method("oscar", 1).unwrap();
        assert_eq!(page_bytes(&oscar), 8 * 4608);
        let shape = Shape::new(2, 64 + 256 + 640);
        assert_eq!(layer_bytes(&oscar, shape), 2 * 8 * (10 * 4608 + 320 * 512));
        let exact = method("exact", 1).unwrap();
        assert_eq!(
            layer_bytes(&exact, shape) + shape.step_bytes(),
            shape.exact_bytes()
        );
    }
}
