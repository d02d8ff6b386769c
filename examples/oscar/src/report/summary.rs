//! Rows brought together: one entry for every task and method.

use models::evaluate::deviation;

use crate::{
    grid::{CalibrationNote, MethodNote},
    rows::{ModelNote, Row, SpanScore},
    tasks::{Kind, TaskNote},
};

/// All rows, by task, then by method, in the order in which they came.
#[derive(Debug)]
pub struct Summary {
    /// One entry a model and task.
    pub groups: Vec<Group>,
}

/// A model and a task, with everything that was measured of them.
#[derive(Debug)]
pub struct Group {
    pub model: ModelNote,
    pub task: TaskNote,
    /// Most samples of a method. A method with fewer is not quite comparable.
    pub samples: usize,
    pub methods: Vec<MethodSummary>,
}

/// A method on a task.
#[derive(Debug)]
pub struct MethodSummary {
    /// What tables call it; no two methods of a task have the same.
    pub title: String,
    pub note: MethodNote,
    /// Rows.
    pub samples: usize,
    /// Means over the rows.
    pub bits_per_value: f64,
    pub page_bits: Option<f64>,
    pub bytes_per_token: f64,
    /// Of all rows.
    pub seconds: f64,
    /// Every span of every row.
    scores: Vec<SpanScore>,
}

/// Means over spans, weighted by their positions.
#[derive(Clone, Debug)]
pub struct Mean {
    /// Spans: windows, answers, copies.
    pub spans: usize,
    pub nll: f64,
    pub delta_nll: Estimate,
    pub kl: Estimate,
    pub top1: f64,
    pub top1_spread: Option<f64>,
    /// Share of the spans that greedy decoding writes word for word.
    pub complete: f64,
}

/// A mean and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub mean: f64,
    /// Standard error within the spans, as if positions were independent.
    pub error: Option<f64>,
    /// Standard deviation over the spans; absent where there is one only.
    pub spread: Option<f64>,
}

impl Summary {
    /// Brings rows together.
    pub fn new(rows: &[Row]) -> Self {
        let mut groups: Vec<Group> = Vec::new();
        for row in rows {
            let place = groups.iter().position(|group| {
                group.model.fingerprint == row.model.fingerprint && group.task.same_as(&row.task)
            });
            let place = place.unwrap_or_else(|| {
                groups.push(Group {
                    model: row.model.clone(),
                    task: row.task.clone(),
                    samples: 0,
                    methods: Vec::new(),
                });
                groups.len() - 1
            });
            groups[place].add(row);
        }
        for group in &mut groups {
            group.finish();
        }
        groups.sort_by_key(|group| group.task.kind);
        Self { groups }
    }
}

impl TaskNote {
    /// Whether the samples are of one kind; the name of the file does not matter.
    fn same_as(&self, other: &Self) -> bool {
        (self.kind, &self.sha256, &self.settings) == (other.kind, &other.sha256, &other.settings)
    }
}

impl Group {
    fn add(&mut self, row: &Row) {
        let key = row.method.key();
        let place = self.methods.iter().position(|m| m.note.key() == key);
        let place = place.unwrap_or_else(|| {
            self.methods.push(MethodSummary {
                title: String::new(),
                note: row.method.clone(),
                samples: 0,
                bits_per_value: 0.0,
                page_bits: row.bytes.page_bits,
                bytes_per_token: 0.0,
                seconds: 0.0,
                scores: Vec::new(),
            });
            self.methods.len() - 1
        });
        let method = &mut self.methods[place];
        method.samples += 1;
        method.bits_per_value += row.bytes.bits_per_value;
        method.bytes_per_token += row.bytes.per_token();
        method.seconds += row.seconds;
        method.scores.extend(row.scores.iter().cloned());
    }

    fn finish(&mut self) {
        for method in &mut self.methods {
            let samples = method.samples as f64;
            method.bits_per_value /= samples;
            method.bytes_per_token /= samples;
            self.samples = self.samples.max(method.samples);
        }
        self.name_methods();
        // The exact cache comes first whenever it was measured.
        self.methods
            .sort_by_key(|method| method.note.name != "exact");
    }

    /// Methods that differ in their artifacts only are told apart by the tokens of these, or by
    /// their files.
    fn name_methods(&mut self) {
        let plain: Vec<String> = self.methods.iter().map(|m| m.note.title()).collect();
        let with = |words: &dyn Fn(&CalibrationNote) -> String| -> Vec<String> {
            let notes = self.methods.iter().map(|method| &method.note.calibration);
            let both = notes.zip(&plain);
            both.map(|(note, plain)| match note {
                Some(note) => format!("{plain}, {}", words(note)),
                None => plain.clone(),
            })
            .collect()
        };
        let tokens = with(&|note| format!("{} tokens", note.tokens));
        let files = with(&|note| note.file.clone());
        let choices = [plain.clone(), tokens, files];
        for (index, method) in self.methods.iter_mut().enumerate() {
            let unique = |titles: &&Vec<String>| {
                let same = titles.iter().filter(|title| **title == titles[index]);
                same.count() == 1
            };
            let titles = choices.iter().find(unique).unwrap_or(&choices[2]);
            method.title = titles[index].clone();
        }
    }

    /// The spans that the task is judged by.
    pub fn is_headline(&self, span: &str) -> bool {
        match self.task.kind {
            Kind::Perplexity => span.starts_with("from "),
            Kind::Questions | Kind::Retrieval => true,
            Kind::Recall => span == "copy",
        }
    }

    /// A method's means over the spans that the task is judged by.
    pub fn headline(&self, method: &MethodSummary) -> Option<Mean> {
        method.mean(|span| self.is_headline(span))
    }

    /// The spans beside the headline, in their order: positions, depths.
    pub fn parts(&self) -> Vec<String> {
        let mut parts: Vec<String> = Vec::new();
        for score in self.methods.iter().flat_map(|method| &method.scores) {
            let wanted = match self.task.kind {
                Kind::Perplexity => score.span.contains('-'),
                Kind::Retrieval => true,
                Kind::Questions | Kind::Recall => false,
            };
            if wanted && !parts.contains(&score.span) {
                parts.push(score.span.clone());
            }
        }
        parts
    }
}

impl MethodSummary {
    /// The means over the spans that are wanted; `None` where there are none.
    pub fn mean(&self, wanted: impl Fn(&str) -> bool) -> Option<Mean> {
        let scores: Vec<&SpanScore> = self.scores.iter().filter(|s| wanted(&s.span)).collect();
        let positions: usize = scores.iter().map(|score| score.positions).sum();
        if positions == 0 {
            return None;
        }
        let mean = |value: fn(&SpanScore) -> f64| {
            let sum = scores.iter().map(|s| s.positions as f64 * value(s));
            sum.sum::<f64>() / positions as f64
        };
        let spread = |value: fn(&SpanScore) -> f64| {
            deviation(&scores.iter().map(|s| value(s)).collect::<Vec<_>>())
        };
        let error = |value: fn(&SpanScore) -> Option<f64>| {
            let parts = scores
                .iter()
                .map(|s| Some((s.positions as f64 * value(s)?).powi(2)));
            let sum = parts.sum::<Option<f64>>()?;
            Some(sum.sqrt() / positions as f64)
        };
        let complete = scores.iter().filter(|s| s.hits == s.positions).count();
        Some(Mean {
            spans: scores.len(),
            nll: mean(|s| s.nll),
            delta_nll: Estimate {
                mean: mean(|s| s.delta_nll),
                error: error(|s| s.delta_nll_error),
                spread: spread(|s| s.delta_nll),
            },
            kl: Estimate {
                mean: mean(|s| s.kl),
                error: error(|s| s.kl_error),
                spread: spread(|s| s.kl),
            },
            top1: mean(|s| s.top1),
            top1_spread: spread(|s| s.top1),
            complete: complete as f64 / scores.len() as f64,
        })
    }

    /// One span's means.
    pub fn span(&self, label: &str) -> Option<Mean> {
        self.mean(|span| span == label)
    }
}

impl Estimate {
    /// `0.0226 ± 0.0031 (0.0152)`: the standard error within, the spread over spans in brackets.
    pub fn cell(&self) -> String {
        let error = self.error.map(|error| format!(" ± {error:.4}"));
        let spread = self.spread.map(|spread| format!(" ({spread:.4})"));
        format!(
            "{:.4}{}{}",
            self.mean,
            error.unwrap_or_default(),
            spread.unwrap_or_default()
        )
    }
}
