//! How often a norm of a size was seen: counts by quarter octaves, which add up exactly.

/// Bins: quarter octaves from 2⁻¹⁶ to 2¹⁶.
pub(super) const BINS: usize = 128;
const FIRST: f64 = -16.0;
const PER_OCTAVE: f64 = 4.0;

/// Counts of positive numbers by their logarithm. Quantiles are read to a quarter of an octave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram(pub(super) Vec<u64>);

impl Histogram {
    pub(super) fn empty() -> Self {
        Self(vec![0; BINS])
    }

    /// Counts a number; those outside the range count at its ends.
    pub(super) fn count(&mut self, x: f64) {
        let bin = ((x.log2() - FIRST) * PER_OCTAVE).floor();
        // Zero has the logarithm -infinity, which is the first bin.
        self.0[bin.clamp(0.0, (BINS - 1) as f64) as usize] += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }

    /// Numbers counted.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// A number that about a share `q` (0 to 1) of those counted does not pass; `None` before any
    /// was counted.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let wanted = (q.clamp(0.0, 1.0) * self.total() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.0.iter().enumerate().find_map(|(bin, count)| {
            seen += count;
            let edge = FIRST + (bin + 1) as f64 / PER_OCTAVE;
            (seen >= wanted).then(|| edge.exp2())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_bin() {
        let mut histogram = Histogram::empty();
        assert_eq!(histogram.quantile(0.5), None);
        (1..=1000).for_each(|x| histogram.count(f64::from(x)));
        histogram.count(0.0);
        for (q, x) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0)] {
            let found = histogram.quantile(q).unwrap();
            assert!(found >= x * 0.99 && found <= x * 1.2, "{q}: {found}");
        }
        assert!(histogram.quantile(0.0).unwrap() < 1e-4);
    }
}
