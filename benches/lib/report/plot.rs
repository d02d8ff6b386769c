//! A report as a drawing.

use plotters::prelude::*;

use super::{Report, order};
use crate::shape::Shape;
use crate::{Error, Result};

/// The methods that are drawn, besides the baseline.
const DRAWN: [(&str, RGBColor); 2] = [
    ("oscar", RGBColor(0, 114, 178)),
    ("transform_coded", RGBColor(0, 158, 115)),
];
const BASELINE: RGBColor = RGBColor(213, 94, 0);
const SIZE: (u32, u32) = (860, 480);

/// Microseconds of a step for each shape, as SVG: the best BF16, `oscar`, `transform_coded`.
///
/// # Errors
/// [`Error::Plot`] where there is nothing to draw.
pub fn plot(report: &Report) -> Result<String> {
    let mut series = vec![("best BF16", BASELINE, Vec::new())];
    series[0].2 = report
        .best
        .iter()
        .map(|(shape, _, us)| (*shape, *us))
        .collect();
    for (method, colour) in DRAWN {
        let rows = report.rows.iter().filter(|row| row.method == method);
        let points = rows.map(|row| (row.shape, row.time.median_us)).collect();
        series.push((method, colour, points));
    }
    let mut shapes: Vec<Shape> = series
        .iter()
        .flat_map(|(_, _, points)| points.iter().map(|point| point.0))
        .collect();
    shapes.sort_by_key(|shape| order(*shape));
    shapes.dedup();
    let times = || series.iter().flat_map(|(_, _, points)| points.iter());
    let (least, greatest) = times()
        .fold((f64::MAX, 0.0), |(least, greatest): (f64, f64), point| {
            (least.min(point.1), greatest.max(point.1))
        });
    if shapes.is_empty() {
        return Err(Error::Plot("there are no rows".into()));
    }
    let mut svg = String::new();
    draw(
        report,
        &series,
        &shapes,
        (least * 0.7, greatest * 1.4),
        &mut svg,
    )
    .map_err(|error| Error::Plot(error.to_string()))?;
    Ok(svg)
}

type Series<'a> = (&'a str, RGBColor, Vec<(Shape, f64)>);

fn draw(
    report: &Report,
    series: &[Series],
    shapes: &[Shape],
    (least, greatest): (f64, f64),
    svg: &mut String,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!("Decode attention, {}", report.device);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(46)
        .y_label_area_size(64)
        .build_cartesian_2d(
            (0..shapes.len() as i32 - 1).into_segmented(),
            (least..greatest).log_scale(),
        )?;
    let name = |value: &SegmentValue<i32>| match value {
        SegmentValue::CenterOf(i) => shapes.get(*i as usize).map(Shape::to_string),
        _ => None,
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(shapes.len())
        .x_label_formatter(&|value| name(value).unwrap_or_default())
        .y_label_formatter(&|us| format!("{us:.0}"))
        .x_desc("sequences x tokens of each")
        .y_desc("microseconds a step")
        .draw()?;
    for (label, colour, points) in series {
        let points: Vec<_> = points
            .iter()
            .filter_map(|(shape, us)| {
                let place = shapes.iter().position(|other| other == shape)?;
                Some((SegmentValue::CenterOf(place as i32), *us))
            })
            .collect();
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
            .label(*label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(
            points
                .into_iter()
                .map(|at| Circle::new(at, 4, colour.filled())),
        )?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.4))
        .label_font(("sans-serif", 14))
        .draw()?;
    area.present()?;
    Ok(())
}
