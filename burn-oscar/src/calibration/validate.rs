//! Whether a calibration fits its method and itself.

use super::artifact::tensor_names;
use super::{Calibration, Matrices, SideCalibration};
use crate::error::{Error, Result};
use crate::method::{Method, Side, TransformKind};
use crate::quantizer::{Role, Segment};

/// Largest entry of `|AᵀA - I|` of a matrix without a separate inverse.
const ORTHOGONAL: f32 = 1e-3;
/// Largest entry of `|A A⁻¹ - I|` of a matrix with one.
const INVERSE: f32 = 1e-2;

/// Checks sizes, method, layers and numbers.
pub(super) fn validate(calibration: &Calibration) -> Result<()> {
    let fail = |reason: String| Err(calibration.error(reason));
    for (what, count) in [
        ("layers", calibration.n_layers()),
        ("kv_heads", calibration.n_kv_heads()),
        ("served_length", calibration.served_length()),
        ("tokens", calibration.tokens()),
    ] {
        if count == 0 {
            return fail(format!(
                "{what} is 0, it must be at least 1: calibrate again"
            ));
        }
    }
    let head_dim = calibration.head_dim();
    if head_dim == 0 || !head_dim.is_multiple_of(16) {
        return fail(format!(
            "head_dim is {head_dim}, it must be a multiple of 16: calibrate a model that has one"
        ));
    }
    if calibration.fingerprint().is_empty() {
        return fail("the model's fingerprint is empty: calibrate again".into());
    }
    let name = calibration.method();
    if !Method::needs_calibration(name) {
        let calibrated: Vec<_> = Method::PRESETS
            .iter()
            .copied()
            .filter(|preset| Method::needs_calibration(preset))
            .collect();
        return fail(format!(
            "method `{name}` is not a calibrated one (those are {}): calibrate again for one of \
             them",
            calibrated.join(", ")
        ));
    }
    let method = Method::calibrated(name, calibration)?;
    for index in 0..calibration.n_layers() {
        for (role, side) in [
            (Role::Key, method.key_side()),
            (Role::Value, method.value_side()),
        ] {
            check_side(calibration, side, index, role).map_err(|reason| {
                calibration.error(format!("layer {index}: {reason}: calibrate again"))
            })?;
        }
    }
    Ok(())
}

type Check = std::result::Result<(), String>;

fn check_side(calibration: &Calibration, method: &Side, layer: usize, role: Role) -> Check {
    let side = calibration.layer(layer).side(role);
    let names = tensor_names(layer, role);
    let name = calibration.method();
    let (kv_heads, head_dim) = (calibration.n_kv_heads(), calibration.head_dim());

    match (&side.transform, method.transform) {
        (None, TransformKind::Calibrated) => {
            return Err(format!("`{}` is missing", names.transform));
        }
        (Some(_), TransformKind::Identity | TransformKind::Hadamard) => {
            return Err(format!(
                "`{}` is there, but `{name}` has no calibrated transform on that side",
                names.transform
            ));
        }
        _ => {}
    }
    if method.quantizer.is_none() && *side != SideCalibration::default() {
        return Err(format!(
            "`{}` and its like are there, but `{name}` keeps that side exact",
            names.mean
        ));
    }
    if let Some(transform) = &side.transform {
        check_matrices(&names.transform, transform, kv_heads, head_dim)?;
    }
    if let Some(inverse) = &side.inverse {
        check_matrices(&names.inverse, inverse, kv_heads, head_dim)?;
    }
    match (&side.transform, &side.inverse) {
        (Some(transform), None) => check_orthogonal(&names.transform, &names.inverse, transform)?,
        (Some(transform), Some(inverse)) => {
            check_inverse(&names.transform, &names.inverse, transform, inverse, role)?;
        }
        (None, Some(_)) => {
            return Err(format!(
                "`{}` is there without `{}`",
                names.inverse, names.transform
            ));
        }
        (None, None) => {}
    }
    if let Some(mean) = &side.mean {
        if Some(mean.len()) != kv_heads.checked_mul(head_dim) {
            return Err(format!(
                "`{}` has {} numbers, not {kv_heads} x {head_dim}",
                names.mean,
                mean.len()
            ));
        }
        check_finite(&names.mean, mean)?;
    }
    if let Some(clip) = side.clip.filter(|clip| !(*clip > 0.0 && *clip < 1.0)) {
        return Err(format!(
            "`{}` is {clip}, a quantile lies between 0 and 1",
            names.clip
        ));
    }
    if let Some(segments) = &side.segments {
        check_segments(&names.segments, segments)?;
    }
    if let Some(quantizer) = &method.quantizer {
        calibration
            .adjust_quantizer(layer, role, quantizer)
            .validate(name)
            .map_err(|error| match error {
                Error::Method { reason, .. } => {
                    format!(
                        "`{}`, `{}` with `{name}`: {reason}",
                        names.clip, names.segments
                    )
                }
                other => other.to_string(),
            })?;
    }
    Ok(())
}

fn check_segments(name: &str, segments: &[Segment]) -> Check {
    // Each length is bounded before they are added up.
    let lengths_fit = segments.iter().all(|s| (1..=16).contains(&s.sixteenths));
    if !lengths_fit || segments.iter().map(|s| s.sixteenths).sum::<usize>() != 16 {
        return Err(format!(
            "`{name}` has lengths {:?}, they must be positive and add up to 16",
            segments.iter().map(|s| s.sixteenths).collect::<Vec<_>>()
        ));
    }
    let bits: Vec<_> = segments.iter().map(|s| s.bits).collect();
    if bits.iter().any(|b| *b > 4) || bits.iter().all(|b| *b == 0) {
        return Err(format!(
            "`{name}` has bits {bits:?}, they must be 0 to 4 and not all 0"
        ));
    }
    Ok(())
}

fn check_matrices(name: &str, matrices: &Matrices, kv_heads: usize, head_dim: usize) -> Check {
    let Matrices { heads, data, .. } = matrices;
    let numbers = head_dim
        .checked_mul(head_dim)
        .and_then(|square| square.checked_mul(*heads));
    if (*heads != 1 && *heads != kv_heads)
        || matrices.head_dim != head_dim
        || Some(data.len()) != numbers
    {
        return Err(format!(
            "`{name}` has {} numbers for {heads} heads of {}, expected 1 or {kv_heads} matrices of \
             {head_dim} x {head_dim}",
            data.len(),
            matrices.head_dim
        ));
    }
    check_finite(name, data)
}

fn check_finite(name: &str, data: &[f32]) -> Check {
    match data.iter().position(|x| !x.is_finite()) {
        Some(at) => Err(format!("`{name}` holds {} at index {at}", data[at])),
        None => Ok(()),
    }
}

fn check_orthogonal(name: &str, inverse_name: &str, matrices: &Matrices) -> Check {
    let d = matrices.head_dim;
    for (head, a) in matrices.data.chunks_exact(d * d).enumerate() {
        let deviation = deviation_from_identity(&transposed(a, d), a, d);
        if deviation > ORTHOGONAL {
            return Err(format!(
                "`{name}` of head {head} is not orthogonal (max |AᵀA - I| is {deviation:.2e}, at \
                 most {ORTHOGONAL:.0e}) and there is no `{inverse_name}`"
            ));
        }
    }
    Ok(())
}

fn check_inverse(
    name: &str,
    inverse_name: &str,
    transform: &Matrices,
    inverse: &Matrices,
    role: Role,
) -> Check {
    if transform.heads != inverse.heads {
        return Err(format!(
            "`{name}` has {} matrices and `{inverse_name}` {}, they must agree",
            transform.heads, inverse.heads
        ));
    }
    let d = transform.head_dim;
    let pairs = transform
        .data
        .chunks_exact(d * d)
        .zip(inverse.data.chunks_exact(d * d));
    for (head, (a, b)) in pairs.enumerate() {
        let deviation = match role {
            Role::Key => deviation_from_identity(a, &transposed(b, d), d),
            Role::Value => deviation_from_identity(a, b, d),
        };
        if deviation > INVERSE {
            return Err(format!(
                "`{inverse_name}` of head {head} does not undo `{name}` (their product differs \
                 from the identity by {deviation:.2e}, at most {INVERSE:.0e})"
            ));
        }
    }
    Ok(())
}

fn transposed(matrix: &[f32], d: usize) -> Vec<f32> {
    (0..d * d).map(|i| matrix[i % d * d + i / d]).collect()
}

/// The largest entry of `|left right - I|`; infinite where the product overflows.
fn deviation_from_identity(left: &[f32], right: &[f32], d: usize) -> f32 {
    let mut worst = 0f32;
    let mut row = vec![0f32; d];
    for (i, left_row) in left.chunks_exact(d).enumerate() {
        row.fill(0.0);
        for (factor, right_row) in left_row.iter().zip(right.chunks_exact(d)) {
            for (sum, x) in row.iter_mut().zip(right_row) {
                *sum += factor * x;
            }
        }
        row[i] -= 1.0;
        for x in &row {
            let x = if x.is_nan() { f32::INFINITY } else { x.abs() };
            worst = worst.max(x);
        }
    }
    worst
}
