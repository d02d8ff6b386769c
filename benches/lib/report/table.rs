//! A report as Markdown.

use std::fmt::Write;

use super::{Report, Row, Verdict};

/// The whole report: what it was measured with, the table, and what is missing.
pub fn table(report: &Report) -> String {
    let mut text = format!("Decode attention on {}.\n", report.device);
    // Writing to a string cannot fail.
    for source in &report.sources {
        let _ = writeln!(text, "- {source}");
    }
    if let Some(rate) = report.stream_tb_s {
        let _ = writeln!(text, "- streaming read {rate:.3} TB/s");
    }
    text.push_str(
        "\n| shape | method | bits per value | us (min, max) | best BF16, us | ratio | target | \
         | TB/s | of stream | remarks |\n\
         |---|---|--:|--:|--:|--:|--:|---|--:|--:|---|\n",
    );
    for row in &report.rows {
        text.push_str(&line(row));
    }
    if !report.missing.is_empty() {
        text.push_str("\nMissing:\n");
        for missing in &report.missing {
            let _ = writeln!(text, "- {missing}");
        }
    }
    text
}

fn line(row: &Row) -> String {
    let time = row.time;
    let or = |text: Option<String>, none: &str| text.unwrap_or_else(|| none.into());
    let best = row
        .best
        .as_ref()
        .map(|(name, us)| format!("{name} {us:.1}"));
    format!(
        "| {} | {} | {:.3} | {:.1} ({:.1}, {:.1}) | {} | {} | {} | {} | {:.2} | {} | {} |\n",
        row.shape,
        row.method,
        row.bits_per_value,
        time.median_us,
        time.min_us,
        time.max_us,
        or(best, "missing"),
        or(row.ratio.map(|ratio| format!("{ratio:.2}x")), "-"),
        or(row.target.map(|target| format!("{target:.1}x")), "-"),
        match row.verdict() {
            Verdict::Met => "met",
            Verdict::Missed => "missed",
            Verdict::Unknown => "unknown",
            Verdict::Untargeted => "",
        },
        row.tb_s,
        or(
            row.share_of_stream
                .map(|share| format!("{:.0} %", 100.0 * share)),
            "-"
        ),
        row.remarks.join(", "),
    )
}
