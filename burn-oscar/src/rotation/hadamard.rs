//! Hadamard matrices and the bit-reversal permutation.

/// The block of the Hadamard transform for a head dimension: the largest power of two that
/// divides it (the whole head for 64, 128 and 256; 16 for 80, 32 for 96, 64 for 192).
pub fn hadamard_block(head_dim: usize) -> usize {
    1 << head_dim.trailing_zeros()
}

/// The normalised Hadamard matrix `[head_dim, head_dim]`, row-major: Sylvester's order for powers
/// of two, equal blocks of [`hadamard_block`] along the diagonal otherwise. Symmetric and its own
/// inverse.
pub fn hadamard(head_dim: usize) -> Vec<f32> {
    let block = hadamard_block(head_dim);
    let scale = (1.0 / (block as f64).sqrt()) as f32;
    let mut matrix = vec![0.0; head_dim * head_dim];
    for row in 0..head_dim {
        let first = row / block * block;
        for column in first..first + block {
            let sign = ((row % block) & (column % block)).count_ones() % 2;
            matrix[row * head_dim + column] = if sign == 0 { scale } else { -scale };
        }
    }
    matrix
}

/// OSCAR's column order (its Section on bit reversal, and released code): column `j` of `U H P` is
/// column `d - 1 - reverse(j)` of `U H`, for eigenvalues in ascending order. `None` unless
/// `head_dim` is a power of two.
pub fn bit_reversal(head_dim: usize) -> Option<Vec<usize>> {
    if !head_dim.is_power_of_two() || head_dim < 2 {
        return None;
    }
    let bits = head_dim.trailing_zeros();
    let reverse = |i: usize| i.reverse_bits() >> (usize::BITS - bits);
    Some((0..head_dim).map(|j| head_dim - 1 - reverse(j)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_are_symmetric_and_orthogonal() {
        for d in [16, 48, 64, 80, 96, 112, 128, 192, 256] {
            let h = hadamard(d);
            for i in 0..d {
                for j in 0..d {
                    assert_eq!(h[i * d + j], h[j * d + i]);
                    let dot: f64 = (0..d)
                        .map(|k| f64::from(h[i * d + k]) * f64::from(h[j * d + k]))
                        .sum();
                    assert!((dot - f64::from(u8::from(i == j))).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn golden_vectors() {
        assert_eq!(bit_reversal(8).unwrap(), [7, 3, 5, 1, 6, 2, 4, 0]);
        let start = bit_reversal(128).unwrap();
        assert_eq!(start[..8], [127, 63, 95, 31, 111, 47, 79, 15]);
        assert_eq!(bit_reversal(96), None);
        let h = hadamard(16);
        assert_eq!(h[..4], [0.25; 4]);
        assert_eq!(h[16..20], [0.25, -0.25, 0.25, -0.25]);
        assert_eq!(h[32..36], [0.25, 0.25, -0.25, -0.25]);
        assert_eq!(
            [hadamard_block(80), hadamard_block(96), hadamard_block(192)],
            [16, 32, 64]
        );
    }
}
