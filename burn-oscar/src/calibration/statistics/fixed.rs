//! Sums that do not depend on their order.
//!
//! Every contribution is rounded once, to a whole number of 2⁻⁵⁶, and whole numbers add up the same
//! in any order and any grouping. That is what makes shards merge to the bits of one run.

use crate::error::{Error, Result};

/// One unit is `2^-FRACTION_BITS`.
const FRACTION_BITS: i32 = 56;
/// The largest magnitude of one contribution, 2⁴⁴.
const MAX_CONTRIBUTION: f64 = (1u64 << 44) as f64;
/// The most contributions of one sum: with [`MAX_CONTRIBUTION`] it stays below 2¹²⁶ units.
pub(super) const MAX_CONTRIBUTIONS: u64 = 1 << 26;

/// A number in units of 2⁻⁵⁶.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fixed(i128);

impl Fixed {
    /// The nearest number of units.
    ///
    /// # Errors
    /// [`Error::Calibration`] past 2⁴⁴, and for NaN.
    pub fn of(x: f64) -> Result<Self> {
        if x.is_nan() || x.abs() > MAX_CONTRIBUTION {
            return Err(Error::Calibration {
                reason: format!(
                    "one call contributes {x:e} to a sum, and at most {MAX_CONTRIBUTION:e} can be \
                     added exactly: observe fewer tokens a call, or look for what makes the \
                     activations so large"
                ),
            });
        }
        let unit = f64::from(FRACTION_BITS).exp2();
        Ok(Self((x * unit).round() as i128))
    }

    /// The numbers of [`Fixed::of`].
    pub fn all(numbers: impl IntoIterator<Item = f64>) -> Result<Vec<Self>> {
        numbers.into_iter().map(Self::of).collect()
    }

    /// The nearest f64.
    pub fn value(self) -> f64 {
        self.0 as f64 * f64::from(-FRACTION_BITS).exp2()
    }

    /// Adds. The caller counts contributions, so the sum of [`MAX_CONTRIBUTIONS`] fits.
    pub fn add(&mut self, other: Self) {
        self.0 += other.0;
    }

    /// Whether `contributions` contributions can add up to this.
    pub fn fits(self, contributions: u64) -> bool {
        let limit = u128::from(contributions.min(MAX_CONTRIBUTIONS)) << (44 + FRACTION_BITS);
        self.0.unsigned_abs() <= limit
    }

    /// Two's complement, lower half first.
    pub fn to_words(self) -> [u64; 2] {
        [self.0 as u64, (self.0 >> 64) as u64]
    }

    /// The inverse of [`Fixed::to_words`].
    pub fn from_words([low, high]: [u64; 2]) -> Self {
        Self((i128::from(high as i64) << 64) | i128::from(low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_large_ones_are_refused() {
        for x in [0.0, 1.0, -1.5, 3.25e-9, 1.7e13, -1.7e13] {
            let fixed = Fixed::of(x).unwrap();
            assert!((fixed.value() - x).abs() <= 2f64.powi(-57).max(x.abs() * 1e-15));
            assert_eq!(Fixed::from_words(fixed.to_words()), fixed);
        }
        for x in [f64::NAN, f64::INFINITY, -1.8e13] {
            assert!(matches!(Fixed::of(x), Err(Error::Calibration { .. })));
        }
        assert!(Fixed::of(1.7e13).unwrap().fits(1));
        assert!(!Fixed::of(1.0).unwrap().fits(0));
    }
}
