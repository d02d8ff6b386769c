use super::*;
use crate::results::Results;

/// Made-up files, as the benchmarks write them.
const ATTENTION: &str = include_str!("fixtures/attention.json");
const BASELINE: &str = include_str!("fixtures/baseline.json");
const AIMS: &[Target] = &[
    Target {
        method: "oscar",
        shape: Shape::new(1, 8192),
        ratio: 2.5,
    },
    Target {
        method: "oscar",
        shape: Shape::new(8, 32768),
        ratio: 5.6,
    },
    Target {
        method: "oscar",
        shape: Shape::new(16, 65536),
        ratio: 6.5,
    },
    Target {
        method: "kivi",
        shape: Shape::new(2, 4096),
        ratio: 1.0,
    },
];

fn report() -> Report {
    let attention = serde_json::from_str(ATTENTION).unwrap();
    let baseline = serde_json::from_str(BASELINE).unwrap();
    join(&attention, &baseline, AIMS).unwrap()
}

fn row<'a>(report: &'a Report, method: &str, shape: &str) -> &'a Row {
    let shape = shape.parse().unwrap();
    let found = |row: &&Row| row.method == method && row.shape == shape;
    report.rows.iter().find(found).unwrap()
}

#[test]
fn the_ratio_is_to_the_best_backend() {
    let report = report();
    // cuDNN takes 20 us where flash takes 25 and the kernel 8.
    let short = row(&report, "oscar", "1x8K");
    assert_eq!(short.best, Some(("cudnn".into(), 20.0)));
    assert_eq!(short.ratio, Some(2.5));
    let long = row(&report, "oscar", "8x32K");
    assert_eq!(long.best, Some(("flash".into(), 240.0)));
    assert_eq!(long.ratio, Some(4.8));
}

#[test]
fn targets_are_met_from_the_ratio_on() {
    let report = report();
    assert_eq!(row(&report, "oscar", "1x8K").verdict(), Verdict::Met);
    assert_eq!(row(&report, "oscar", "8x32K").verdict(), Verdict::Missed);
    assert_eq!(row(&report, "kivi", "1x8K").verdict(), Verdict::Untargeted);
    assert_eq!(row(&report, "kivi", "2x4K").verdict(), Verdict::Unknown);
    let text = table(&report);
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
    assert!(line("| 1x8K | oscar |").contains("| cudnn 20.0 | 2.50x | 2.5x | met |"));
    assert!(line("| 8x32K | oscar |").contains("| flash 240.0 | 4.80x | 5.6x | missed |"));
    assert!(line("| 2x4K | kivi |").contains("| missing | - | 1.0x | unknown |"));
}

#[test]
fn what_is_missing_is_said() {
    let report = report();
    let text = table(&report);
    for expected in [
        "kivi 2x4K: there is no BF16 baseline of this shape",
        "oscar 16x64K: a target of 6.5x, not measured",
        "exact 1x8K: the portable body ran",
        "efficient 8x32K: out of memory",
    ] {
        assert!(report.missing.contains(&expected.to_string()), "{expected}");
        assert!(text.contains(&format!("- {expected}\n")), "{text}");
    }
    assert_eq!(report.missing.len(), 4);
    // A baseline without a row of ours stays in the drawing.
    assert_eq!(report.best.len(), 3);
}

#[test]
fn no_measurement_passes_for_a_better_one() {
    let report = report();
    assert_eq!(
        row(&report, "kivi", "2x4K").remarks,
        ["portable", "no graph"]
    );
    assert!(row(&report, "oscar", "1x8K").remarks.is_empty());
}

#[test]
fn other_devices_are_refused() {
    let attention = serde_json::from_str(ATTENTION).unwrap();
    let mut baseline: Results<BaselineRow> = serde_json::from_str(BASELINE).unwrap();
    baseline.device = "another".into();
    let error = join(&attention, &baseline, AIMS).unwrap_err();
    assert!(matches!(error, Error::Devices { .. }));
}

#[test]
fn the_drawing_names_every_shape_and_series() {
    let svg = plot(&report()).unwrap();
    for text in [
        "1x8K",
        "8x32K",
        "32x8K",
        "best BF16",
        "oscar",
        "transform_coded",
        "made-up",
    ] {
        assert!(svg.contains(text), "{text}");
    }
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    let mut empty = report();
    empty.rows.clear();
    empty.best.clear();
    assert!(plot(&empty).is_err());
}

#[test]
fn targets_are_of_shapes_that_are_measured() {
    for target in TARGETS {
        assert!(Shape::ALL.contains(&target.shape));
        assert!(burn_oscar::Method::PRESETS.contains(&target.method));
        assert!(target.ratio >= 1.0);
    }
}
