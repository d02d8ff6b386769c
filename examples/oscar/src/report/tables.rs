//! Tables of a summary: what every task says of every method.

use serde_json::Value;

use super::{Group, MethodSummary, Summary, summary::Mean};
use crate::tasks::Kind;

/// A table before it is printed.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    pub title: String,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// What the columns mean.
    pub caption: String,
}

impl Table {
    fn new(title: impl Into<String>, header: &[&str], caption: &str) -> Self {
        Self {
            title: title.into(),
            header: header.iter().map(ToString::to_string).collect(),
            rows: Vec::new(),
            caption: caption.to_string(),
        }
    }

    /// As Markdown, without title and caption.
    pub fn markdown(&self) -> String {
        let header = self.header.iter().map(String::as_str);
        let mut table = models::table::table(header);
        for row in &self.rows {
            table.add_row(row);
        }
        table.to_string()
    }
}

/// The headline tables, for a terminal.
pub fn task_tables(summary: &Summary) -> String {
    let tables = summary.groups.iter().map(|group| {
        let table = headline(group);
        format!(
            "{}\n\n{}\n\n{}\n",
            table.title,
            table.markdown(),
            table.caption
        )
    });
    tables.collect::<Vec<_>>().join("\n")
}

/// `perplexity of wiki.txt: past 512, window 2048`.
pub fn title(group: &Group) -> String {
    let settings = match &group.task.settings {
        Value::Object(settings) => settings
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect::<Vec<_>>()
            .join(", "),
        other => other.to_string(),
    };
    let of = match group.task.kind {
        Kind::Perplexity => "Perplexity of",
        Kind::Questions => "Answers of",
        Kind::Retrieval => "Retrieval from",
        Kind::Recall => "Recall from",
    };
    format!("{of} {}: {settings}", group.task.text)
}

const MEANS: &str = "Means in nats; ± is the standard error within, as if positions were \
    independent; in brackets the standard deviation over";

/// What the task is judged by.
pub fn headline(group: &Group) -> Table {
    let (columns, over): (&[&str], _) = match group.task.kind {
        Kind::Perplexity => (&["windows", "ppl", "delta nll", "KL", "top-1"], "windows"),
        Kind::Questions => (&["answers", "nll", "delta nll", "KL", "top-1"], "answers"),
        Kind::Retrieval => (&["numbers", "found", "nll", "delta nll", "KL"], "numbers"),
        Kind::Recall => (&["copies", "nll", "delta nll", "KL", "top-1"], "copies"),
    };
    let mut header = vec!["method", "bits/value", "in pages", "bytes/token"];
    header.extend(columns);
    header.push("seconds");
    let judged = match group.task.kind {
        Kind::Perplexity => " Positions from the threshold on.",
        Kind::Retrieval => {
            " `found` is the share of numbers that greedy decoding writes digit by digit."
        }
        Kind::Recall => " From the copy's 17th token on.",
        Kind::Questions => "",
    };
    let caption = format!(
        "{MEANS} {over}.{judged} Bits and bytes hold windows and parameters, exact tokens in 16 \
         bits; `in pages` is the bits of full pages."
    );
    let mut table = Table::new(title(group), &header, &caption);
    for method in &group.methods {
        let Some(mean) = group.headline(method) else {
            continue;
        };
        let mut cells = bytes(method);
        cells.push(count(group, method, &mean));
        let (nll, delta, kl) = (
            format!("{:.4}", mean.nll),
            mean.delta_nll.cell(),
            mean.kl.cell(),
        );
        let top1 = share(mean.top1, mean.top1_spread);
        cells.extend(match group.task.kind {
            Kind::Perplexity => vec![format!("{:.3}", mean.nll.exp()), delta, kl, top1],
            Kind::Retrieval => vec![format!("{:.1} %", 100.0 * mean.complete), nll, delta, kl],
            Kind::Questions | Kind::Recall => vec![nll, delta, kl, top1],
        });
        cells.push(format!("{:.1}", method.seconds));
        table.rows.push(cells);
    }
    table
}

fn bytes(method: &MethodSummary) -> Vec<String> {
    vec![
        method.title.clone(),
        format!("{:.3}", method.bits_per_value),
        method
            .page_bits
            .map_or("-".into(), |bits| format!("{bits:.3}")),
        format!("{:.0}", method.bytes_per_token),
    ]
}

/// How many spans, and whether samples are missing that other methods have.
fn count(group: &Group, method: &MethodSummary, mean: &Mean) -> String {
    match method.samples == group.samples {
        true => mean.spans.to_string(),
        false => format!(
            "{} ({} of {} samples)",
            mean.spans, method.samples, group.samples
        ),
    }
}

fn share(value: f64, spread: Option<f64>) -> String {
    match spread {
        Some(spread) => format!("{value:.4} ({spread:.4})"),
        None => format!("{value:.4}"),
    }
}

/// The divergence, or what was found, by position or depth.
pub fn by_part(group: &Group) -> Option<Table> {
    let parts = group.parts();
    if parts.len() < 2 {
        return None;
    }
    let (what, caption) = match group.task.kind {
        Kind::Retrieval => (
            "By depth",
            "Share of numbers found, and the nll of their digits with its standard deviation over \
             the numbers.",
        ),
        _ => (
            "KL by position",
            "Mean KL(exact || method) in nats; ± is the standard error within, in brackets the \
             standard deviation over windows.",
        ),
    };
    let mut table = Table::new(what, &["method"], caption);
    table.header.extend(parts.iter().cloned());
    for method in &group.methods {
        let cells = parts.iter().map(|part| match method.span(part) {
            None => "-".to_string(),
            Some(mean) if group.task.kind == Kind::Retrieval => format!(
                "{:.0} %, {:.3}{}",
                100.0 * mean.complete,
                mean.nll,
                mean.delta_nll
                    .spread
                    .map(|spread| format!(" ({spread:.3})"))
                    .unwrap_or_default()
            ),
            Some(mean) => mean.kl.cell(),
        });
        let row = std::iter::once(method.title.clone()).chain(cells);
        table.rows.push(row.collect());
    }
    Some(table)
}

/// Every preset that was measured in several ways: what changes, and what that does.
pub fn ablations(group: &Group) -> Option<Table> {
    let mut table = Table::new(
        "What settings do",
        &[
            "method",
            "setting",
            "bits/value",
            "bytes/token",
            "delta nll",
            "KL",
            "KL change",
        ],
        "The first line of a method is what the others are compared with: the preset as it is, if \
         it was measured.",
    );
    let mut names: Vec<&str> = Vec::new();
    for method in &group.methods {
        if !names.contains(&method.note.name.as_str()) {
            names.push(&method.note.name);
        }
    }
    for name in names {
        let mut variants: Vec<_> = group
            .methods
            .iter()
            .filter(|method| method.note.name == name)
            .filter_map(|method| Some((method, group.headline(method)?)))
            .collect();
        if variants.len() < 2 {
            continue;
        }
        variants.sort_by_key(|(method, _)| {
            let note = &method.note;
            (!note.differences().is_empty(), note.label.is_some())
        });
        let base = variants[0].1.kl.mean;
        for (index, (method, mean)) in variants.iter().enumerate() {
            let change = match index {
                0 => "-".to_string(),
                _ => format!("{:+.0} %", 100.0 * (mean.kl.mean / base - 1.0)),
            };
            table.rows.push(vec![
                name.to_string(),
                setting(method),
                format!("{:.3}", method.bits_per_value),
                format!("{:.0}", method.bytes_per_token),
                mean.delta_nll.cell(),
                mean.kl.cell(),
                change,
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

fn setting(method: &MethodSummary) -> String {
    let mut words = method.note.differences();
    if let Some(calibration) = &method.note.calibration {
        words.push(format!(
            "{} ({} tokens, serves {})",
            calibration.file, calibration.tokens, calibration.served_length
        ));
    }
    if let Some(label) = &method.note.label {
        words.insert(0, label.clone());
    }
    match words.is_empty() {
        true => "as it is".to_string(),
        false => words.join(", "),
    }
}
