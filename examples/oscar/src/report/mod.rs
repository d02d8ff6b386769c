//! From rows to a page: tables, figures, and where everything comes from.

mod axis;
mod document;
mod plots;
mod summary;
mod tables;

use std::collections::BTreeSet;

pub use document::{Block, Document};
pub use summary::{Group, MethodSummary, Summary};
pub use tables::{Table, task_tables};

use crate::{error::Result, rows::Row};

/// The page of some rows.
///
/// # Errors
/// [`crate::error::Error::Plot`].
pub fn document(rows: &[Row]) -> Result<Document> {
    let summary = Summary::new(rows);
    let mut blocks = vec![Block::Text(provenance(rows))];
    for (number, group) in summary.groups.iter().enumerate() {
        let heading = tables::title(group);
        blocks.push(Block::Heading(heading.clone()));
        blocks.push(Block::Table(Table {
            title: "All methods".to_string(),
            ..tables::headline(group)
        }));
        let mut figure = |kind: &str, caption: &str, svg: Option<String>| {
            blocks.extend(svg.map(|svg| Block::Figure {
                name: format!("{kind}-{}", number + 1),
                caption: format!("{caption}. {heading}"),
                svg,
            }));
        };
        figure(
            "error-by-bytes",
            "KL to the exact cache against bytes a token; what lies right of and above the front is \
             beaten by something smaller and closer",
            plots::pareto(group)?,
        );
        if group.task.kind == crate::tasks::Kind::Perplexity {
            figure(
                "error-by-position",
                "KL to the exact cache by position in the window",
                plots::by_position(group)?,
            );
        }
        figure(
            "error-by-calibration",
            "KL to the exact cache by the tokens of the calibration",
            plots::by_calibration(group)?,
        );
        blocks.extend(tables::by_part(group).map(Block::Table));
        blocks.extend(tables::ablations(group).map(Block::Table));
    }
    Ok(Document {
        title: "What 2-bit caches cost".to_string(),
        blocks,
    })
}

/// Models, machines, commits and time.
fn provenance(rows: &[Row]) -> String {
    let list = |value: &dyn Fn(&Row) -> String| {
        let distinct: BTreeSet<String> = rows.iter().map(value).collect();
        distinct.into_iter().collect::<Vec<_>>().join("; ")
    };
    let seconds: f64 = rows.iter().map(|row| row.seconds).sum();
    format!(
        "{} measurements of {}, {:.0} minutes of passes through the model, on {}; commit {}. Every \
         token saw what it would have seen had they come one by one, through the packed cache. The \
         exact cache in the same precision is what everything is compared with.",
        rows.len(),
        list(&|row| row.model.name.clone()),
        seconds / 60.0,
        list(&|row| {
            let machine = &row.machine;
            let cores = machine.cores;
            format!("{} ({}, {cores} cores)", machine.device, machine.cpu)
        }),
        list(&|row| row.commit.clone()),
    )
}

#[cfg(test)]
mod tests;
