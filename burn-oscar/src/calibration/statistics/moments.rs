//! Weighted first and second moments of the vectors of one head.

use super::fixed::Fixed;
use crate::error::Result;

/// `Σ w`, `Σ w x` and `Σ w xᵀx` of row vectors `x [head_dim]`, as exact sums of what each call
/// contributed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moments {
    head_dim: usize,
    pub(super) weight: Fixed,
    /// `[head_dim]`.
    pub(super) sum: Vec<Fixed>,
    /// The upper triangle, row by row.
    pub(super) second: Vec<Fixed>,
}

impl Moments {
    /// Nothing yet.
    pub(super) fn empty(head_dim: usize) -> Self {
        Self {
            head_dim,
            weight: Fixed::default(),
            sum: vec![Fixed::default(); head_dim],
            second: vec![Fixed::default(); triangle(head_dim)],
        }
    }

    /// Of parts read from a file.
    pub(super) fn from_parts(weight: Fixed, sum: Vec<Fixed>, second: Vec<Fixed>) -> Self {
        Self {
            head_dim: sum.len(),
            weight,
            sum,
            second,
        }
    }

    /// Adds up what another run has seen.
    pub(super) fn add(&mut self, other: &Self) {
        self.weight.add(other.weight);
        let numbers = self.sum.iter_mut().zip(&other.sum);
        for (mine, theirs) in numbers.chain(self.second.iter_mut().zip(&other.second)) {
            mine.add(*theirs);
        }
    }

    /// All numbers, to be checked.
    pub(super) fn numbers(&self) -> impl Iterator<Item = Fixed> + '_ {
        let numbers = self.sum.iter().chain(&self.second).copied();
        std::iter::once(self.weight).chain(numbers)
    }

    /// `Σ w`: the number of vectors where they are not weighted.
    pub fn weight(&self) -> f64 {
        self.weight.value()
    }

    /// `Σ w x / Σ w`, `[head_dim]`; zeros before anything was seen.
    pub fn mean(&self) -> Vec<f64> {
        let weight = self.weight();
        let divisor = if weight > 0.0 { weight } else { 1.0 };
        self.sum.iter().map(|x| x.value() / divisor).collect()
    }

    /// `Σ w xᵀx / Σ w`, symmetric `[head_dim, head_dim]`; zeros before anything was seen.
    pub fn second(&self) -> Vec<f64> {
        let (d, weight) = (self.head_dim, self.weight());
        let divisor = if weight > 0.0 { weight } else { 1.0 };
        let mut full = vec![0.0; d * d];
        let mut numbers = self.second.iter();
        for i in 0..d {
            for (j, x) in (i..d).zip(numbers.by_ref()) {
                let x = x.value() / divisor;
                full[i * d + j] = x;
                full[j * d + i] = x;
            }
        }
        full
    }

    /// The second moment about the mean, `[head_dim, head_dim]`.
    pub fn covariance(&self) -> Vec<f64> {
        let (mean, mut second) = (self.mean(), self.second());
        for (row, a) in second.chunks_exact_mut(self.head_dim).zip(&mean) {
            for (x, b) in row.iter_mut().zip(&mean) {
                *x -= a * b;
            }
        }
        second
    }
}

/// Numbers of an upper triangle.
pub(super) fn triangle(d: usize) -> usize {
    d * (d + 1) / 2
}

/// The moments of one call, in f64. Plain loops in a fixed order: the same on every machine.
pub(super) struct Accumulator {
    head_dim: usize,
    weight: f64,
    sum: Vec<f64>,
    second: Vec<f64>,
}

impl Accumulator {
    pub fn new(head_dim: usize) -> Self {
        Self {
            head_dim,
            weight: 0.0,
            sum: vec![0.0; head_dim],
            second: vec![0.0; head_dim * head_dim],
        }
    }

    /// Adds vectors `[n, head_dim]`, each as often as `weight` of its index says.
    pub fn add(&mut self, vectors: &[f64], weight: impl Fn(usize) -> f64) {
        let d = self.head_dim;
        for (i, x) in vectors.chunks_exact(d).enumerate() {
            let w = weight(i);
            self.weight += w;
            for (sum, x) in self.sum.iter_mut().zip(x) {
                *sum += w * x;
            }
        }
        // Four vectors at a time: the matrix goes through memory a quarter as often.
        let mut fours = vectors.chunks_exact(4 * d);
        for (i, four) in fours.by_ref().enumerate() {
            let w = [0, 1, 2, 3].map(|k| weight(4 * i + k));
            let (a, rest) = four.split_at(d);
            let (b, rest) = rest.split_at(d);
            let (c, e) = rest.split_at(d);
            for row in 0..d {
                let [fa, fb, fc, fe] = [w[0] * a[row], w[1] * b[row], w[2] * c[row], w[3] * e[row]];
                let out = &mut self.second[row * d + row..(row + 1) * d];
                let right = a[row..].iter().zip(&b[row..]).zip(&c[row..]).zip(&e[row..]);
                for (out, (((a, b), c), e)) in out.iter_mut().zip(right) {
                    *out += (fa * a + fb * b) + (fc * c + fe * e);
                }
            }
        }
        let first = vectors.len() / d / 4 * 4;
        for (i, x) in fours.remainder().chunks_exact(d).enumerate() {
            let w = weight(first + i);
            for row in 0..d {
                let factor = w * x[row];
                let out = &mut self.second[row * d + row..(row + 1) * d];
                for (out, x) in out.iter_mut().zip(&x[row..]) {
                    *out += factor * x;
                }
            }
        }
    }

    /// The upper triangle of the second moments, not divided by anything.
    pub fn second(&self) -> &[f64] {
        &self.second
    }

    /// Rounded to the exact sums.
    pub fn finish(self) -> Result<Moments> {
        let d = self.head_dim;
        let upper = (0..d).flat_map(|i| self.second[i * d + i..(i + 1) * d].iter().copied());
        Ok(Moments {
            head_dim: d,
            weight: Fixed::of(self.weight)?,
            sum: Fixed::all(self.sum.iter().copied())?,
            second: Fixed::all(upper)?,
        })
    }
}
