//! Square matrices of one head, f64, row-major `[d, d]`.

use faer::{Mat, Side};

use crate::error::{Error, Result};

/// `left right`.
pub(super) fn product(left: &[f64], right: &[f64], d: usize) -> Vec<f64> {
    let mut out = vec![0.0; d * d];
    for (out, left) in out.chunks_exact_mut(d).zip(left.chunks_exact(d)) {
        for (factor, right) in left.iter().zip(right.chunks_exact(d)) {
            for (out, x) in out.iter_mut().zip(right) {
                *out += factor * x;
            }
        }
    }
    out
}

/// Rows and columns exchanged.
pub(super) fn transposed(matrix: &[f64], d: usize) -> Vec<f64> {
    (0..d * d).map(|i| matrix[i % d * d + i / d]).collect()
}

/// `x M xᵀ`.
pub(super) fn quadratic(x: &[f64], matrix: &[f64]) -> f64 {
    let rows = matrix.chunks_exact(x.len()).zip(x);
    rows.map(|(row, x_i)| x_i * row.iter().zip(x).map(|(m, x)| m * x).sum::<f64>())
        .sum()
}

/// `uᵀ M u` of every column `u`.
pub(super) fn diagonal_in(basis: &[f64], matrix: &[f64], d: usize) -> Vec<f64> {
    let columns = transposed(basis, d);
    columns
        .chunks_exact(d)
        .map(|u| quadratic(u, matrix))
        .collect()
}

/// `M` with the columns in another order: column `j` is column `order[j]` of it.
pub(super) fn reordered(matrix: &[f64], order: &[usize], d: usize) -> Vec<f64> {
    let rows = matrix.chunks_exact(d);
    rows.flat_map(|row| order.iter().map(|&j| row[j])).collect()
}

/// The identity.
pub(super) fn identity(d: usize) -> Vec<f64> {
    (0..d * d)
        .map(|i| f64::from(u8::from(i / d == i % d)))
        .collect()
}

/// The trace.
pub(super) fn trace(matrix: &[f64], d: usize) -> f64 {
    (0..d).map(|i| matrix[i * d + i]).sum()
}

/// The element-wise mean of several matrices.
pub(super) fn mean<'a>(matrices: impl ExactSizeIterator<Item = &'a Vec<f64>>) -> Vec<f64> {
    let count = matrices.len() as f64;
    let mut sum: Vec<f64> = Vec::new();
    for matrix in matrices {
        sum.resize(matrix.len(), 0.0);
        sum.iter_mut()
            .zip(matrix)
            .for_each(|(s, x)| *s += x / count);
    }
    sum
}

/// The largest entry of `|MᵀM - 1|`.
pub(super) fn orthogonality_defect(matrix: &[f64], d: usize) -> f64 {
    let gram = product(&transposed(matrix, d), matrix, d);
    let defects = gram.iter().zip(identity(d));
    defects.map(|(x, one)| (x - one).abs()).fold(0.0, f64::max)
}

/// Eigenvectors in columns, and their eigenvalues, ascending.
#[derive(Clone, Debug)]
pub(super) struct Eigen {
    pub vectors: Vec<f64>,
    pub values: Vec<f64>,
}

/// The eigendecomposition of a symmetric matrix. An eigenvector is known but for its sign; here
/// its largest component is positive, so that the same matrix always gives the same basis.
///
/// # Errors
/// [`Error::Calibration`] for numbers that are not finite, and where the iteration does not end.
pub(super) fn eigen(matrix: &[f64], d: usize) -> Result<Eigen> {
    if let Some(x) = matrix.iter().find(|x| !x.is_finite()) {
        return Err(Error::Calibration {
            reason: format!("a covariance holds {x}: observe again"),
        });
    }
    let symmetric = Mat::from_fn(d, d, |i, j| (matrix[i * d + j] + matrix[j * d + i]) / 2.0);
    let found = symmetric
        .self_adjoint_eigen(Side::Lower)
        .map_err(|error| Error::Calibration {
            reason: format!("no eigenvectors were found ({error:?}): observe more tokens"),
        })?;
    let (u, s) = (found.U(), found.S());
    let mut vectors = vec![0.0; d * d];
    for j in 0..d {
        let mut largest = 0.0f64;
        for i in 0..d {
            if u[(i, j)].abs() > largest.abs() {
                largest = u[(i, j)];
            }
        }
        let sign = if largest < 0.0 { -1.0 } else { 1.0 };
        (0..d).for_each(|i| vectors[i * d + j] = sign * u[(i, j)]);
    }
    Ok(Eigen {
        vectors,
        values: (0..d).map(|j| s[j]).collect(),
    })
}

/// How far apart the spaces are that the first `k` columns of two orthogonal bases span:
/// `‖P_a - P_b‖_F / sqrt(2 k)`, 0 for the same space and 1 for spaces at right angles.
pub(super) fn subspace_distance(a: &[f64], b: &[f64], k: usize, d: usize) -> f64 {
    let mut overlap = 0.0;
    for i in 0..k {
        for j in 0..k {
            let dot: f64 = (0..d).map(|row| a[row * d + i] * b[row * d + j]).sum();
            overlap += dot * dot;
        }
    }
    (1.0 - overlap / k as f64).max(0.0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eigenvectors_are_orthogonal_ordered_and_signed() {
        let d = 12;
        let x: Vec<f64> = (0..d * d).map(|i| ((i * 31 % 17) as f64).sin()).collect();
        let matrix = product(&transposed(&x, d), &x, d);
        let found = eigen(&matrix, d).unwrap();
        assert!(orthogonality_defect(&found.vectors, d) < 1e-12);
        assert!(found.values.is_sorted());
        for (value, diagonal) in found
            .values
            .iter()
            .zip(diagonal_in(&found.vectors, &matrix, d))
        {
            assert!((value - diagonal).abs() < 1e-9);
        }
        for u in transposed(&found.vectors, d).chunks_exact(d) {
            let largest = u
                .iter()
                .fold(0.0f64, |a, x| if x.abs() > a.abs() { *x } else { a });
            assert!(largest > 0.0);
        }
        assert!(eigen(&[f64::NAN; 4], 2).is_err());
    }

    #[test]
    fn distances_of_subspaces() {
        let one = identity(4);
        assert_eq!(subspace_distance(&one, &one, 2, 4), 0.0);
        let turned = reordered(&one, &[2, 3, 0, 1], 4);
        assert_eq!(subspace_distance(&one, &turned, 2, 4), 1.0);
        // The same space in another basis.
        let swapped = reordered(&one, &[1, 0, 3, 2], 4);
        assert_eq!(subspace_distance(&one, &swapped, 2, 4), 0.0);
    }
}
