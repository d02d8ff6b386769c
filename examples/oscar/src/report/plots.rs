//! The figures, as SVG.

use plotters::prelude::*;

use super::{
    Group, MethodSummary,
    axis::{Axis, decimal_marks, marks, range},
};
use crate::error::{Error, Result};

const SIZE: (u32, u32) = (1060, 480);
/// Width of the chart; the legend has the rest.
const CHART: u32 = 720;

/// Colours that stay apart for colour-blind readers (Okabe and Ito), for the first methods; then
/// they repeat with other marks.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// A line or a point of a figure.
#[derive(Clone, Debug, PartialEq)]
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

/// What a figure's axes are called. Divergences are drawn by their logarithms.
struct Axes {
    figure: &'static str,
    title: &'static str,
    x: &'static str,
    /// Whether x doubles with every step.
    doubling: bool,
}

/// Divergences below are rounding: nothing was packed.
const LEAST_KL: f64 = 1e-5;

/// The divergence against the bytes of a token, with the Pareto front. `None` with fewer than two
/// points.
///
/// # Errors
/// [`Error::Plot`].
pub fn pareto(group: &Group) -> Result<Option<String>> {
    let series: Vec<_> = packed(group)
        .filter_map(|method| {
            let kl = group.headline(method)?.kl.mean;
            (kl > LEAST_KL).then(|| Series {
                name: method.title.clone(),
                points: vec![(method.bytes_per_token, kl)],
            })
        })
        .collect();
    if series.len() < 2 {
        return Ok(None);
    }
    let points = series.iter().flat_map(|s| s.points.iter().copied());
    let front = front(points.collect());
    let axes = Axes {
        figure: "error against bytes",
        title: "Divergence against memory",
        x: "bytes a token, exact tokens in 16 bits",
        doubling: false,
    };
    draw(&axes, &series, &front).map(Some)
}

/// The divergence by position, a line a method. `None` with fewer than two positions.
///
/// # Errors
/// [`Error::Plot`].
pub fn by_position(group: &Group) -> Result<Option<String>> {
    let parts = group.parts();
    let middle = |part: &str| {
        let (start, end) = part.split_once('-')?;
        let (start, end): (f64, f64) = (start.parse().ok()?, end.parse().ok()?);
        Some((start + end) / 2.0)
    };
    let series: Vec<_> = packed(group)
        .map(|method| Series {
            name: method.title.clone(),
            points: parts
                .iter()
                .filter_map(|part| Some((middle(part)?, method.span(part)?.kl.mean)))
                .filter(|(_, kl)| *kl > LEAST_KL)
                .collect(),
        })
        .filter(|series| !series.points.is_empty())
        .collect();
    if parts.len() < 2 || series.is_empty() {
        return Ok(None);
    }
    let axes = Axes {
        figure: "error by position",
        title: "Divergence by position",
        x: "position in the window (middle of a stretch)",
        doubling: true,
    };
    draw(&axes, &series, &[]).map(Some)
}

/// The divergence by the tokens that an artifact was made from, a line a method. `None` where no
/// method has artifacts of several sizes.
///
/// # Errors
/// [`Error::Plot`].
pub fn by_calibration(group: &Group) -> Result<Option<String>> {
    let mut series: Vec<Series> = Vec::new();
    for method in packed(group) {
        let (Some(calibration), Some(mean)) = (&method.note.calibration, group.headline(method))
        else {
            continue;
        };
        let point = (calibration.tokens as f64, mean.kl.mean);
        // Without what tells artifacts apart.
        let name = method.note.title();
        match series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => series.push(Series {
                name,
                points: vec![point],
            }),
        }
    }
    for series in &mut series {
        series.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Artifacts of the same texts differ in how they were solved, which is no size.
        series.points.dedup_by(|a, b| a.0 == b.0);
    }
    series.retain(|series| {
        let points = &series.points;
        points.first().map(|p| p.0) != points.last().map(|p| p.0)
    });
    if series.is_empty() {
        return Ok(None);
    }
    let axes = Axes {
        figure: "error by calibration",
        title: "Divergence by calibration",
        x: "tokens that the artifact was made from",
        doubling: true,
    };
    draw(&axes, &series, &[]).map(Some)
}

fn packed(group: &Group) -> impl Iterator<Item = &MethodSummary> {
    group
        .methods
        .iter()
        .filter(|method| method.page_bits.is_some())
}

/// The points that no other beats in both, from left to right.
fn front(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut front: Vec<(f64, f64)> = Vec::new();
    for point in points {
        if front.last().is_none_or(|last| point.1 < last.1) {
            front.push(point);
        }
    }
    front
}

/// The steps of a front: what is reached with so many bytes or fewer.
fn steps(front: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut steps = Vec::new();
    for pair in front.windows(2) {
        steps.extend([pair[0], (pair[1].0, pair[0].1)]);
    }
    steps.extend(front.last());
    steps
}

fn draw(axes: &Axes, series: &[Series], front: &[(f64, f64)]) -> Result<String> {
    let mut svg = String::new();
    draw_to(&mut svg, axes, series, front).map_err(|error| Error::Plot {
        name: axes.figure,
        reason: error.to_string(),
    })?;
    Ok(svg)
}

fn draw_to(
    svg: &mut String,
    axes: &Axes,
    series: &[Series],
    front: &[(f64, f64)],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let place = |x: f64| if axes.doubling { x.log2() } else { x };
    let points = || series.iter().flat_map(|s| s.points.iter());
    let x = range(points().map(|point| place(point.0)));
    let y = range(points().map(|point| point.1.log10()));
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (plot, legend) = area.split_horizontally(CHART);
    let mut chart = ChartBuilder::on(&plot)
        .caption(axes.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(46)
        .y_label_area_size(64)
        .build_cartesian_2d(
            Axis::new(x, |x| marks(x, axes.doubling)),
            Axis::new(y, decimal_marks),
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| format!("{:.0}", if axes.doubling { x.exp2() } else { *x }))
        .y_label_formatter(&|y| format!("{}", (10f64.powf(*y) * 1e7).round() / 1e7))
        .x_desc(axes.x)
        .y_desc("KL, nats")
        .draw()?;
    let at = |point: &(f64, f64)| (place(point.0), point.1.log10());
    let font = ("sans-serif", 13).into_font();
    let entry = |index: usize| 48 + 20 * index as i32;
    if front.len() > 1 {
        let grey = BLACK.mix(0.5).stroke_width(1);
        chart.draw_series(LineSeries::new(steps(front).iter().map(at), grey))?;
        let y = entry(series.len());
        legend.draw(&PathElement::new([(0, y), (18, y)], grey))?;
        legend.draw(&Text::new("Pareto front", (26, y - 6), font.clone()))?;
    }
    for (index, series) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let filled = index < COLOURS.len();
        let style = if filled {
            colour.filled()
        } else {
            colour.stroke_width(2)
        };
        let line = LineSeries::new(series.points.iter().map(at), colour.stroke_width(2));
        chart.draw_series(line)?;
        let marks = series.points.iter();
        chart.draw_series(marks.map(|point| Circle::new(at(point), 4, style)))?;
        let y = entry(index);
        legend.draw(&Circle::new((9, y), 4, style))?;
        legend.draw(&Text::new(series.name.as_str(), (26, y - 6), font.clone()))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{front, steps};

    #[test]
    fn the_front_holds_what_nothing_beats() {
        let points = vec![(3.0, 1.0), (1.0, 4.0), (2.0, 5.0), (2.0, 2.0), (4.0, 1.0)];
        let front = front(points);
        assert_eq!(front, [(1.0, 4.0), (2.0, 2.0), (3.0, 1.0)]);
        assert_eq!(
            steps(&front),
            [(1.0, 4.0), (2.0, 4.0), (2.0, 2.0), (3.0, 2.0), (3.0, 1.0)]
        );
    }
}
