//! The command line as clap sees it, and as it runs on the tiny checkpoint.

use std::{fs, path::Path};

use burn_oscar::Method;
use clap::{CommandFactory, Parser};

use super::Cli;
use crate::{
    grid::{Grid, Sweep},
    rows::{Row, read},
    testing::{artifact, oscar, text, tiny},
};

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_option_is_explained() {
    for command in Cli::command().get_subcommands_mut() {
        let name = command.get_name().to_string();
        assert!(
            command.get_long_about().is_some(),
            "{name} has no long help"
        );
        assert!(
            command.get_after_long_help().is_some(),
            "{name} has no examples"
        );
        for argument in command.get_arguments() {
            let id = argument.get_id();
            assert!(
                argument.get_help().is_some(),
                "{name}: {id} is not explained"
            );
        }
        assert!(!command.render_long_help().to_string().is_empty());
    }
}

#[test]
fn wrong_values_are_refused() {
    for line in [
        "oscar",
        "oscar report",
        "oscar report rows.jsonl",
        "oscar inspect",
        "oscar report --text t --out x",
        "oscar merge a",
        "oscar calibrate --model m --out o",
        "oscar calibrate --model m --text t --shard 0/2 --out o",
        "oscar calibrate --model m --text t --shard 3/2 --out o",
        "oscar calibrate --model m --text t --statistics s --out o",
        "oscar calibrate --model m --text t --method kivi --out o",
        "oscar calibrate --model m --text t --across-layers --out o",
        "oscar calibrate --model m --text t --clips 0.9 --out o",
        "oscar evaluate --text t",
        "oscar evaluate --model m --methods kivy",
        "oscar evaluate --model m --cache-windows 64",
        "oscar evaluate --model m --calibration oscar",
        "oscar evaluate --model m --calibration kivi=f",
        "oscar evaluate --model m --grid g --bits 4",
        "oscar evaluate --model m --grid g --methods kivi",
    ] {
        assert!(
            Cli::try_parse_from(line.split_whitespace()).is_err(),
            "{line}"
        );
    }
}

#[test]
fn the_grids_of_this_folder_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("grids");
    let files = fs::read_dir(folder).expect("a folder");
    let mut count = 0;
    for file in files {
        let path = file.expect("a file").path();
        let grid = Grid::read(&path).unwrap_or_else(|error| panic!("{error}"));
        for setting in grid.methods.iter().flat_map(Sweep::settings) {
            if !Method::needs_calibration(&setting.name) {
                let variant = setting.variant();
                variant.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            }
        }
        count += 1;
    }
    assert!(count > 0);
}

/// A run of all tasks on two methods that pack most of their tokens.
fn evaluate(folder: &Path, more: &str) -> Vec<Row> {
    let (text, out) = (text(folder, 900), folder.join("rows.jsonl"));
    let questions = folder.join("q.jsonl");
    let line = "{\"question\": \"what is the time\", \"answer\": \"the time is more\"}\n";
    fs::write(&questions, line.repeat(30)).expect("writes");
    oscar(&format!(
        "oscar evaluate --quiet --device flex --model {} --tasks perplexity,questions,retrieval,recall \
         --text {} --question-file {} --window 180 --windows 2 --past 40 --questions 3 --shots 8 \
         --lengths 150 --depths 0,1 --passage 40 --context 150 --methods kivi \
         --cache-windows 4/16 --out {} {more}",
        tiny().display(),
        text.display(),
        questions.display(),
        out.display()
    ))
    .expect("runs");
    read(&[out]).expect("rows")
}

#[test]
fn all_tasks_run_and_are_resumed() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = evaluate(folder.path(), "");
    // Two windows, a group of questions, two depths, two passages; exact and one more.
    assert_eq!(rows.len(), 2 * (2 + 1 + 2 + 2));
    for row in &rows {
        let exact = row.method.name == "exact";
        for score in &row.scores {
            assert!(score.positions > 0, "{row:?}");
            // The first positions see nothing packed.
            let same = exact || ["1-40", "40-80"].contains(&score.span.as_str());
            assert_eq!(same, score.kl == 0.0, "{score:?}");
            assert!((score.nll - score.exact_nll - score.delta_nll).abs() < 1e-9);
        }
        assert_eq!(exact, row.bytes.page_bits.is_none());
        assert!(row.bytes.bits_per_value <= 16.0 && (exact || row.bytes.pages > 0));
    }

    // What is there is not measured again, whatever the chunk: the file stays as it is.
    let path = folder.path().join("rows.jsonl");
    let before = fs::read_to_string(&path).expect("reads");
    evaluate(folder.path(), "--chunk 7");
    assert_eq!(fs::read_to_string(&path).expect("reads"), before);

    // A run that was stopped, here in the middle of a row, goes on; its figures are the same.
    let cut = before.len() - before.lines().last().map_or(0, str::len) / 2;
    fs::write(&path, &before[..cut]).expect("writes");
    let again = evaluate(folder.path(), "--chunk 50");
    assert_eq!(again.len(), rows.len());
    let (old, new) = (&rows[rows.len() - 1], &again[rows.len() - 1]);
    assert_eq!(old.key(), new.key());
    for (old, new) in old.scores.iter().zip(&new.scores) {
        assert!((old.kl - new.kl).abs() < 1e-4 && old.hits == new.hits);
    }

    // More of the same adds to what is there.
    let more = evaluate(folder.path(), "--bits 2,4");
    assert_eq!(more.len(), 4 * (2 + 1 + 2 + 2));

    let report = folder.path().join("report");
    oscar(&format!(
        "oscar report {} --out {}",
        path.display(),
        report.display()
    ))
    .expect("written");
    let page = fs::read_to_string(report.join("report.md")).expect("reads");
    for title in [
        "Perplexity of",
        "Answers of",
        "Retrieval from",
        "Recall from",
        "By depth",
    ] {
        assert!(page.contains(title), "{page}");
    }
}

#[test]
fn parts_merge_to_the_whole_and_make_artifacts() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = text(folder.path(), 1200);
    let at = |name: &str| folder.path().join(name).display().to_string();
    let calibrate = |more: &str| {
        let model = tiny().display().to_string();
        oscar(&format!(
            "oscar calibrate --quiet --device flex --model {model} {more}"
        ))
    };
    let reading = format!("--text {} --windows 3 --window 350", text.display());
    calibrate(&format!("{reading} --out {} --json", at("tc.safetensors"))).expect("calibrates");
    for part in ["1/2", "2/2"] {
        let out = at(&part.replace('/', "-"));
        calibrate(&format!("{reading} --shard {part} --chunk 77 --out {out}")).expect("reads");
    }
    // The order does not matter, to the bit. Another chunk would: it is other products of f32.
    oscar(&format!(
        "oscar merge {} {} --out {}",
        at("1-2"),
        at("2-2"),
        at("a")
    ))
    .expect("merges");
    oscar(&format!(
        "oscar merge {} {} --out {}",
        at("2-2"),
        at("1-2"),
        at("b")
    ))
    .expect("merges");
    calibrate(&format!(
        "{reading} --chunk 77 --out {}",
        at("whole.safetensors")
    ))
    .expect("reads");
    let read = |name: &str| fs::read(at(name)).expect("reads");
    assert!(read("a") == read("b"));
    assert!(read("a") == read("whole.statistics.safetensors"));

    let published = format!("--statistics {} --method oscar --clips searched", at("a"));
    calibrate(&format!(
        "{published} --serve-length 1000 --out {}",
        at("oscar.safetensors")
    ))
    .expect("solves");
    for name in [
        "tc.safetensors",
        "oscar.safetensors",
        "a",
        "tc.statistics.safetensors",
    ] {
        for json in ["", "--json"] {
            oscar(&format!("oscar inspect {} {json}", at(name))).expect("printed");
        }
    }
    let artifact = burn_oscar::Calibration::load(at("oscar.safetensors")).expect("an artifact");
    assert_eq!((artifact.served_length(), artifact.tokens()), (1000, 1050));
    let longest = burn_oscar::Calibration::load(at("tc.safetensors")).expect("an artifact");
    assert_eq!(longest.served_length(), 512);

    for (line, expected) in [
        (
            format!("{reading} --shard 4/4 --out x"),
            "part 4 of 4 of 3 windows is empty",
        ),
        (
            format!("--text {} --windows 9 --window 350 --out x", text.display()),
            "needs 3150",
        ),
        (
            format!(
                "--text {} --windows 1 --window 1000 --out x",
                text.display()
            ),
            "trained for 512",
        ),
        (
            format!("--statistics {} --out x", at("tc.safetensors")),
            "burn-oscar-statistics",
        ),
        (
            format!(
                "--statistics {} --centring page --method oscar --out x",
                at("a")
            ),
            "centring",
        ),
    ] {
        let error = calibrate(&line).expect_err(&line).to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn one_command_makes_the_whole_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let (text, out) = (text(folder.path(), 1200), folder.path().join("report"));
    let run = || {
        oscar(&format!(
            "oscar report --quiet --model {} --text {text} --calibration-text {text} --window 400 \
             --windows 1 --calibration-windows 2 --past 200 --out {}",
            tiny().display(),
            out.display(),
            text = text.display()
        ))
    };
    run().expect("runs");
    let before = fs::read_to_string(out.join("rows.jsonl")).expect("rows");
    let page = fs::read_to_string(out.join("report.md")).expect("a page");
    for title in [
        "oscar as published",
        "400 tokens",
        "error-by-calibration",
        "What settings do",
    ] {
        assert!(page.contains(title), "{title}: {page}");
    }
    run().expect("runs again");
    assert_eq!(
        fs::read_to_string(out.join("rows.jsonl")).expect("rows"),
        before
    );
}

#[test]
fn artifacts_take_part() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = artifact(folder.path(), 512);
    let grid = folder.path().join("grid.json");
    let text = text(folder.path(), 400);
    let json = format!(
        r#"{{"tasks": [{{"kind": "perplexity", "window": 150, "windows": 1, "past": 40}}],
            "methods": [{{"name": "oscar", "calibration": "{}", "windows": [4, 16]}},
                        {{"name": "oscar", "windows": [4, 32]}}]}}"#,
        file.file_name().expect("a name").to_string_lossy()
    );
    fs::write(&grid, json).expect("writes");
    let out = folder.path().join("rows.jsonl");
    oscar(&format!(
        "oscar evaluate --quiet --model {} --grid {} --text {} --calibration oscar={} --out {}",
        tiny().display(),
        grid.display(),
        text.display(),
        file.display(),
        out.display()
    ))
    .expect("runs");
    let rows = read(&[out]).expect("rows");
    assert_eq!(rows.len(), 3);
    let note = rows[1].method.calibration.as_ref().expect("an artifact");
    assert_eq!(
        (note.tokens, note.file.as_str()),
        (512, "oscar-512.safetensors")
    );
    for json in ["", "--json"] {
        oscar(&format!("oscar inspect {} {json}", file.display())).expect("printed");
    }
}

#[test]
fn errors_say_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("empty.jsonl");
    fs::write(&path, "").expect("writes");
    let (path, model) = (path.display().to_string(), tiny().display().to_string());
    for (line, expected) in [
        (
            format!("oscar report {path} --out x"),
            "oscar evaluate --out",
        ),
        (format!("oscar report {path}.no --out x"), "empty.jsonl.no"),
        (format!("oscar inspect {path}"), "empty.jsonl"),
        (
            format!("oscar evaluate --model {model} --methods kivi"),
            "give --text",
        ),
        (
            format!("oscar evaluate --model {model} --methods kivi --tasks questions"),
            "--question-file",
        ),
        (
            format!("oscar evaluate --model {model} --methods oscar --text {path}"),
            "--calibration oscar=FILE",
        ),
        (
            format!("oscar evaluate --model {model} --methods kivi --text {path}"),
            "0 tokens",
        ),
        (
            format!(
                "oscar evaluate --model {model} --methods kivi --text {path} --calibration \
                 oscar=o.safetensors"
            ),
            "add it to --methods",
        ),
    ] {
        let error = oscar(&line).expect_err(&line).to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
}
