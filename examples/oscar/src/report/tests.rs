use std::fs;

use super::*;
use crate::{
    grid::Setting,
    testing::{artifact, preset, row},
};

/// Three methods, two windows, one of them with settings and artifacts of two sizes.
fn rows() -> Vec<Row> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rows = Vec::new();
    let mut add = |setting: Setting, kl: [f64; 2], bytes| {
        for (start, kl) in [(0, kl[0]), (500, kl[1])] {
            rows.push(row(setting.clone(), start, kl, bytes));
        }
    };
    add(preset("kivi"), [0.1, 0.3], 200.0);
    add(preset("exact"), [0.0, 0.0], 1024.0);
    add(
        Setting {
            windows: Some([0, 128]),
            ..preset("kivi")
        },
        [0.2, 0.6],
        120.0,
    );
    for tokens in [512, 2048] {
        let setting = Setting {
            calibration: Some(artifact(folder.path(), tokens)),
            ..preset("oscar")
        };
        let kl = 10.0 / tokens as f64;
        add(setting, [kl, kl], 150.0);
    }
    rows
}

#[test]
fn windows_are_pooled_and_their_spread_is_kept() {
    let summary = Summary::new(&rows());
    assert_eq!(summary.groups.len(), 1);
    let group = &summary.groups[0];
    let names: Vec<_> = group.methods.iter().map(|m| m.note.name.as_str()).collect();
    assert_eq!(names, ["exact", "kivi", "kivi", "oscar", "oscar"]);
    let titles: Vec<_> = group.methods.iter().map(|m| m.title.as_str()).collect();
    assert_eq!(
        titles[2..],
        [
            "kivi (windows 0/128)",
            "oscar, 512 tokens",
            "oscar, 2048 tokens"
        ]
    );
    let kivi = group.headline(&group.methods[1]).expect("a mean");
    assert_eq!(kivi.spans, 2);
    assert!((kivi.kl.mean - 0.2).abs() < 1e-12);
    assert!((kivi.kl.spread.expect("two windows") - 0.2 / 2f64.sqrt()).abs() < 1e-12);
    // Two equal errors of 0.001 over twice the positions.
    assert!((kivi.kl.error.expect("errors") - 0.001 / 2f64.sqrt()).abs() < 1e-12);
    assert_eq!(kivi.kl.cell(), "0.2000 ± 0.0007 (0.1414)");
    assert_eq!(group.parts(), ["1-512", "512-1024", "1024-2048"]);
}

#[test]
fn missing_samples_are_said() {
    let mut rows = rows();
    rows.remove(0);
    let tables = task_tables(&Summary::new(&rows));
    assert!(tables.contains("1 (1 of 2 samples)"), "{tables}");
}

#[test]
fn settings_are_compared_with_the_preset() {
    let summary = Summary::new(&rows());
    let table = tables::ablations(&summary.groups[0]).expect("a table");
    let settings: Vec<_> = table.rows.iter().map(|row| row[1].as_str()).collect();
    assert_eq!(settings[..2], ["as it is", "windows 0/128"]);
    assert_eq!(
        (table.rows[0][6].as_str(), table.rows[1][6].as_str()),
        ("-", "+100 %")
    );
    assert!(settings[2].contains("512 tokens"), "{settings:?}");
}

#[test]
fn a_page_is_complete() {
    let folder = tempfile::tempdir().expect("a folder");
    let [markdown, html] = document(&rows())
        .expect("a page")
        .write(folder.path())
        .expect("written");
    let markdown = fs::read_to_string(markdown).expect("reads");
    let html = fs::read_to_string(html).expect("reads");
    for kind in [
        "error-by-bytes",
        "error-by-position",
        "error-by-calibration",
    ] {
        let svg = fs::read_to_string(folder.path().join(format!("{kind}-1.svg"))).expect("drawn");
        assert!(svg.starts_with("<svg") && svg.contains("oscar"), "{svg}");
        assert!(markdown.contains(&format!("({kind}-1.svg)")), "{markdown}");
        assert!(html.contains(svg.trim()), "{kind} is not in the page");
    }
    assert!(html.contains("tiny &amp; small") && html.contains("<table>"));
    assert!(markdown.contains("KL by position") && markdown.contains("What settings do"));
    assert!(html.contains("Pareto front"));
    // Nothing is fetched from elsewhere.
    assert!(!html.contains("src=") && !html.contains("<link"));
}

#[test]
fn one_method_needs_no_figures() {
    let rows = [row(preset("exact"), 0, 0.0, 1024.0)];
    let page = document(&rows).expect("a page");
    let figures = page
        .blocks
        .iter()
        .filter(|block| matches!(block, Block::Figure { .. }));
    assert_eq!(figures.count(), 0);
}
