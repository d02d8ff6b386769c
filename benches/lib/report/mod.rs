//! Measurements of a device against its BF16 baseline and against what was aimed at.

mod plot;
mod table;
mod targets;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub use plot::plot;
pub use table::table;
pub use targets::{TARGETS, Target};

use crate::results::{AttentionRow, BaselineRow, Results, best};
use crate::shape::Shape;
use crate::timing::Spread;
use crate::{Error, Result};

/// One method and shape beside its baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The method.
    pub method: String,
    /// The problem.
    pub shape: Shape,
    /// Microseconds of one call.
    pub time: Spread,
    /// Bits for each stored number.
    pub bits_per_value: f64,
    /// Bytes that must move over the median.
    pub tb_s: f64,
    /// Of the device's streaming read.
    pub share_of_stream: Option<f64>,
    /// The best backend of the baseline, and its median in microseconds.
    pub best: Option<(String, f64)>,
    /// The baseline's best over this median.
    pub ratio: Option<f64>,
    /// The ratio that was aimed at.
    pub target: Option<f64>,
    /// What makes the time no proper measurement: no fused kernel, no graph, short samples.
    pub remarks: Vec<&'static str>,
}

/// What became of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The ratio reaches it.
    Met,
    /// The ratio falls short of it.
    Missed,
    /// There is no baseline, so there is no ratio.
    Unknown,
    /// There is no target.
    Untargeted,
}

impl Row {
    /// Whether the target was met.
    pub fn verdict(&self) -> Verdict {
        match (self.ratio, self.target) {
            (_, None) => Verdict::Untargeted,
            (None, Some(_)) => Verdict::Unknown,
            (Some(ratio), Some(target)) if ratio >= target => Verdict::Met,
            _ => Verdict::Missed,
        }
    }
}

/// Everything that a report says.
#[derive(Clone, Debug)]
pub struct Report {
    /// The device's own name.
    pub device: String,
    /// When and with what, of the measurements and of the baseline.
    pub sources: [String; 2],
    /// The streaming read of the measurements' run.
    pub stream_tb_s: Option<f64>,
    /// By shape, in the order of its tokens, then as measured.
    pub rows: Vec<Row>,
    /// The baseline's best of each shape, with and without rows.
    pub best: Vec<(Shape, String, f64)>,
    /// What should be there and is not.
    pub missing: Vec<String>,
}

/// Shapes in the order of their tokens.
fn order(shape: Shape) -> (usize, usize, usize) {
    (shape.batch * shape.context, shape.batch, shape.context)
}

/// Joins the rows of `attention` with the best of `baseline` for the same shape.
///
/// # Errors
/// [`Error::Devices`] where the two are of different devices.
pub fn join(
    attention: &Results<AttentionRow>,
    baseline: &Results<BaselineRow>,
    targets: &[Target],
) -> Result<Report> {
    if attention.device != baseline.device {
        return Err(Error::Devices {
            attention: attention.device.clone(),
            baseline: baseline.device.clone(),
        });
    }
    let target = |method: &str, shape| {
        let found = targets
            .iter()
            .find(|t| t.method == method && t.shape == shape);
        found.map(|target| target.ratio)
    };
    let mut rows: Vec<Row> = attention
        .rows
        .iter()
        .map(|row| {
            let best = best(baseline, row.shape);
            Row {
                method: row.method.clone(),
                shape: row.shape,
                time: row.time,
                bits_per_value: row.bits_per_value,
                tb_s: row.tb_s,
                share_of_stream: row.share_of_stream,
                ratio: best.map(|(_, us)| us / row.time.median_us),
                best: best.map(|(backend, us)| (backend.to_string(), us)),
                target: target(&row.method, row.shape),
                remarks: remarks(row, attention.quick),
            }
        })
        .collect();
    rows.sort_by_key(|row| order(row.shape));

    let shapes: BTreeSet<Shape> = baseline.rows.iter().map(|row| row.shape).collect();
    let mut best: Vec<_> = shapes
        .into_iter()
        .filter_map(|shape| best(baseline, shape).map(|(name, us)| (shape, name.to_string(), us)))
        .collect();
    best.sort_by_key(|(shape, ..)| order(*shape));
    Ok(Report {
        device: attention.device.clone(),
        sources: [source(attention), source(baseline)],
        stream_tb_s: attention.stream_tb_s,
        missing: missing(attention, baseline, &rows, targets),
        rows,
        best,
    })
}

fn remarks(row: &AttentionRow, quick: bool) -> Vec<&'static str> {
    [
        (!row.fused, "portable"),
        (!row.graph, "no graph"),
        (quick, "short samples"),
    ]
    .into_iter()
    .filter_map(|(holds, remark)| holds.then_some(remark))
    .collect()
}

/// Rows without a baseline, targets without a row, and what the benchmarks refused.
fn missing(
    attention: &Results<AttentionRow>,
    baseline: &Results<BaselineRow>,
    rows: &[Row],
    targets: &[Target],
) -> Vec<String> {
    let mut missing = Vec::new();
    for row in rows.iter().filter(|row| row.best.is_none()) {
        missing.push(format!(
            "{} {}: there is no BF16 baseline of this shape",
            row.method, row.shape
        ));
    }
    for target in targets {
        let measured = |row: &&Row| row.method == target.method && row.shape == target.shape;
        if !rows.iter().any(|row| measured(&row)) {
            missing.push(format!(
                "{} {}: a target of {:.1}x, not measured",
                target.method, target.shape, target.ratio
            ));
        }
    }
    let refused = attention.refused.iter().chain(&baseline.refused);
    missing.extend(
        refused.map(|refused| format!("{} {}: {}", refused.name, refused.shape, refused.reason)),
    );
    missing
}

fn source<R>(results: &Results<R>) -> String {
    let versions = results.versions.iter();
    let versions: Vec<_> = versions.map(|(name, v)| format!("{name} {v}")).collect();
    format!(
        "{} of {}, {}",
        results.bench,
        results.date,
        versions.join(", ")
    )
}
