//! Progress in lines of text, where there is no dashboard.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use burn::train::LearnerSummary;
use burn::train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn::train::metric::{MetricDefinition, MetricId};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining,
};

/// Between two lines.
const EVERY: Duration = Duration::from_secs(5);

/// Shows a Burn training as a line on standard error every few seconds: items done, the time that is
/// left, the metrics. What a [`CalibrationJob`](super::CalibrationJob) uses where it has no dashboard,
/// and any other training can.
///
/// ```text
/// calibration, train: 12 of 64, 41 s left; Subspace distance 0.0312, Tokens per window 2048
/// ```
pub struct ProgressLines {
    label: String,
    split: String,
    total: usize,
    /// Items done at the first sight of this split, and when: a resumed job begins in the middle.
    first: Option<(usize, Instant)>,
    shown: Option<Instant>,
    names: Vec<(MetricId, String)>,
    values: BTreeMap<String, f64>,
}

impl Default for ProgressLines {
    fn default() -> Self {
        Self::new()
    }
}

impl ProgressLines {
    /// A line every five seconds, and one for the last item of a split.
    pub fn new() -> Self {
        Self {
            label: "training".into(),
            split: String::new(),
            total: 0,
            first: None,
            shown: None,
            names: Vec::new(),
            values: BTreeMap::new(),
        }
    }

    fn begin(&mut self, split: &str, total: usize) {
        self.split = split.to_string();
        self.total = total;
        self.first = None;
        self.values.clear();
    }

    fn update(&mut self, state: MetricState) {
        if let MetricState::Numeric(entry, Some(number)) = state
            && let Some((_, name)) = self.names.iter().find(|(id, _)| *id == entry.metric_id)
        {
            self.values.insert(name.clone(), number.current());
        }
    }

    fn done(&mut self, items: usize) {
        let now = Instant::now();
        let (first, begin) = *self.first.get_or_insert((items, now));
        let quiet = self.shown.is_some_and(|shown| now - shown < EVERY);
        if quiet && items < self.total {
            return;
        }
        self.shown = Some(now);
        let left = time_left(
            items.saturating_sub(first),
            self.total.saturating_sub(items),
            now - begin,
        );
        write(&self.line(items, left));
    }

    fn line(&self, items: usize, left: Option<Duration>) -> String {
        let mut line = format!("{}, {}: {items} of {}", self.label, self.split, self.total);
        if let Some(left) = left {
            let seconds = left.as_secs();
            line += &match seconds {
                0..120 => format!(", {seconds} s left"),
                _ => format!(", {} min left", seconds.div_ceil(60)),
            };
        }
        for (index, (name, value)) in self.values.iter().enumerate() {
            let before = if index == 0 { ";" } else { "," };
            line += &match value.fract() == 0.0 {
                true => format!("{before} {name} {value}"),
                false => format!("{before} {name} {value:.4}"),
            };
        }
        line
    }
}

/// The time for `left` items, where `done` took so long; `None` without items to go by or to wait for.
fn time_left(done: usize, left: usize, elapsed: Duration) -> Option<Duration> {
    (done > 0 && left > 0).then(|| elapsed.mul_f64(left as f64 / done as f64))
}

/// A closed standard error is no reason to stop.
fn write(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

impl MetricsRendererTraining for ProgressLines {
    fn update_train(&mut self, state: MetricState) {
        self.update(state);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.update(state);
    }

    fn on_train_end(
        &mut self,
        summary: Option<LearnerSummary>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        if let Some(summary) = summary {
            write(&summary.to_string());
        }
        Ok(())
    }
}

impl TrainingProgressLogger for ProgressLines {
    fn start(&mut self, _epochs: usize, _first: usize, total: Option<usize>, label: Option<&str>) {
        if let Some(label) = label {
            self.label = label.to_string();
        }
        self.total = total.unwrap_or(0);
    }

    fn update_epoch(&mut self, _epoch: usize) {}

    fn start_split(&mut self, split: &str, total_items: usize) {
        self.begin(split, total_items);
    }

    fn update_split(&mut self, items_processed: usize) {
        self.done(items_processed);
    }

    fn end_split(&mut self) {}

    fn end(&mut self) {}

    // Events are `Iteration`, for every item.
    fn log_event_training(&mut self, _event: String) {}
}

impl EvaluationProgressLogger for ProgressLines {
    fn start_global_progress(&mut self, _total_tests: usize) {}

    fn start_test(&mut self, name: &str, total_items: usize) {
        self.begin(name, total_items);
    }

    fn update_test_progress(&mut self, items_processed: usize) {
        self.done(items_processed);
    }

    fn end_test(&mut self) {}

    fn end_global_progress(&mut self) {}

    fn log_event_evaluation(&mut self, _event: String) {}
}

impl MetricsRendererEvaluation for ProgressLines {
    fn update_test(&mut self, _name: EvaluationName, state: MetricState) {
        self.update(state);
    }
}

impl MetricsRenderer for ProgressLines {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        let name = definition.name.to_string();
        self.names.push((definition.metric_id, name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_done_and_what_is_left() {
        let mut lines = ProgressLines::new();
        lines.start(1, 1, None, Some("calibration"));
        lines.start_split("train", 64);
        lines.values.insert("KL".into(), 0.03125);
        lines.values.insert("Tokens".into(), 2048.0);
        let left = time_left(4, 8, Duration::from_secs(10));
        assert_eq!(
            lines.line(56, left),
            "calibration, train: 56 of 64, 20 s left; KL 0.0312, Tokens 2048"
        );
        let left = time_left(1, 63, Duration::from_secs(10));
        assert!(lines.line(1, left).contains("1 of 64, 11 min left;"));
        lines.start_split("valid", 2);
        assert_eq!(
            lines.line(2, time_left(2, 0, Duration::from_secs(1))),
            "calibration, valid: 2 of 2"
        );
    }
}
