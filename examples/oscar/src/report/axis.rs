//! An axis that is marked where it is told to be.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

/// A linear axis and its marks.
pub struct Axis {
    range: Range<f64>,
    marks: Vec<f64>,
}

impl Axis {
    /// Over a range, with marks chosen for it.
    pub fn new(range: Range<f64>, marks: impl Fn(&Range<f64>) -> Vec<f64>) -> Self {
        let marks = marks(&range);
        Self { range, marks }
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        start + (share * f64::from(end - start)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// A range around some values.
pub fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, greatest) = values.fold((f64::MAX, f64::MIN), |(least, greatest), value| {
        (least.min(value), greatest.max(value))
    });
    let margin = (0.08 * (greatest - least))
        .max(0.02 * greatest.abs())
        .max(1e-9);
    least - margin..greatest + margin
}

/// Where the x axis is marked: at powers of two, or at about eight round numbers.
pub fn marks(range: &Range<f64>, doubling: bool) -> Vec<f64> {
    let step = if doubling {
        1.0
    } else {
        let rough = (range.end - range.start) / 8.0;
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        steps
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough)
    };
    let first = (range.start / step).ceil() as i64;
    let last = (range.end / step).floor() as i64;
    (first..=last).map(|mark| mark as f64 * step).collect()
}

/// Where the y axis, of decimal logarithms, is marked: at 1, 2 and 5 of every power of ten.
pub fn decimal_marks(range: &Range<f64>) -> Vec<f64> {
    let powers = range.start.floor() as i32..=range.end.ceil() as i32;
    powers
        .flat_map(|power| [1.0, 2.0, 5.0].map(|digit: f64| digit.log10() + f64::from(power)))
        .filter(|mark| range.contains(mark))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{decimal_marks, marks};

    #[test]
    fn axes_are_marked_at_round_numbers() {
        assert_eq!(marks(&(8.5..12.1), true), [9.0, 10.0, 11.0, 12.0]);
        assert_eq!(
            marks(&(950.0..2040.0), false),
            [1000.0, 1200.0, 1400.0, 1600.0, 1800.0, 2000.0]
        );
        let found = decimal_marks(&(-2.0..-0.9))
            .into_iter()
            .map(|y| (10f64.powf(y) * 1e3).round());
        assert_eq!(found.collect::<Vec<_>>(), [10.0, 20.0, 50.0, 100.0]);
    }
}
