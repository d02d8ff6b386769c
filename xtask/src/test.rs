//! `cargo xtask test`: what continuous integration runs.

use crate::{
    error::Result,
    features, model, process, text,
    workspace::{self, CARGO_REMEDY},
};
use std::{
    process::Command,
    time::{Duration, Instant},
};

/// Options of the test run.
#[derive(clap::Args)]
pub struct Args {
    /// Leave out the documentation and the tests that need the fetched model.
    #[arg(long)]
    fast: bool,
}

/// Runs every check, and the tests last, so that the output closes with their summary.
pub fn run(args: &Args) -> Result<()> {
    let model = match args.fast {
        true => None,
        false => Some((model::fetch()?, text::fetch()?)),
    };
    features::check_forwarding()?;

    let mut times = vec![];
    for (name, mut command) in checks(args.fast) {
        times.push((name, timed(&mut command)?));
    }

    let mut tests = tests(has_nextest());
    match model {
        Some((model, texts)) => tests
            .env("BURN_OSCAR_MODEL", model)
            .env("BURN_OSCAR_TEXT", texts.corpus),
        None => tests
            .env_remove("BURN_OSCAR_MODEL")
            .env_remove("BURN_OSCAR_TEXT"),
    };
    eprintln!("\nChecks passed: {}. Now the tests.", summary(&times));
    timed(&mut tests).map(drop)
}

/// The checks before the tests, by name. All of them build with the release profile, so that they
/// share build scripts and procedural macros with the tests.
fn checks(fast: bool) -> Vec<(&'static str, Command)> {
    let mut checks = vec![
        ("format", cargo(&["fmt", "--all", "--check"])),
        (
            "lints",
            cargo(&[
                "clippy",
                "--release",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ]),
        ),
    ];
    if !fast {
        let mut doc = cargo(&["doc", "--release", "--workspace", "--no-deps"]);
        doc.env("RUSTDOCFLAGS", "-D warnings");
        checks.push(("documentation", doc));
        checks.push((
            "examples in the documentation",
            cargo(&["test", "--release", "--workspace", "--doc"]),
        ));
    }
    checks
}

/// The tests, by nextest where it is installed: it runs the tests of all binaries in parallel.
fn tests(nextest: bool) -> Command {
    match nextest {
        true => cargo(&["nextest", "run", "--release", "--workspace"]),
        false => cargo(&[
            "test",
            "--release",
            "--workspace",
            "--lib",
            "--bins",
            "--tests",
        ]),
    }
}

fn has_nextest() -> bool {
    process::succeeds(&mut cargo(&["nextest", "--version"]))
}

fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = workspace::cargo();
    cargo.args(arguments);
    cargo
}

fn timed(command: &mut Command) -> Result<Duration> {
    let start = Instant::now();
    process::run(command, CARGO_REMEDY)?;
    Ok(start.elapsed())
}

fn summary(times: &[(&str, Duration)]) -> String {
    let entry = |(name, time): &(&str, Duration)| format!("{name} {}", process::human_time(*time));
    times.iter().map(entry).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_leaves_out_documentation_only() {
        let names = |fast| {
            checks(fast)
                .into_iter()
                .map(|(name, _)| name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(true), ["format", "lints"]);
        assert!(names(false).starts_with(&names(true)));
        assert_eq!(names(false).len(), 4);
    }

    #[test]
    fn nextest_is_optional() {
        let arguments = |nextest| {
            let command = tests(nextest);
            command
                .get_args()
                .map(|a| a.to_string_lossy().into_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(arguments(true)[0], "nextest");
        assert_eq!(arguments(false)[0], "test");
        // Documentation tests have their own step.
        assert!(!arguments(false).contains(&"--doc".to_owned()));
    }

    #[test]
    fn times_are_listed() {
        let times = [
            ("format", Duration::from_secs(1)),
            ("lints", Duration::from_secs(61)),
        ];
        assert_eq!(summary(&times), "format 1 s, lints 1 min 01 s");
    }
}
