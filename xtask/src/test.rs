//! `cargo xtask test`: what continuous integration runs.
//!
//! The kernels are tested on CubeCL's CPU runtime, which needs no GPU but LLVM; where that cannot be
//! had, everything else is still tested.

use crate::{
    error::{Error, Result},
    features, llvm, model, process, text,
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
    let llvm = llvm::prepare();
    if let Err(error) = &llvm {
        eprintln!("\n{}", without_kernels(error));
    }
    let backends = match &llvm {
        Ok(()) => CPU_RUNTIME,
        Err(_) => &[],
    };

    let mut times = vec![];
    for (name, mut command) in checks(args.fast, backends) {
        times.push((name, timed(&mut command)?));
    }

    let mut tests = tests(has_nextest(), backends);
    match model {
        Some((model, texts)) => tests
            .env("BURN_OSCAR_MODEL", model)
            .env("BURN_OSCAR_TEXT", texts.corpus),
        None => tests
            .env_remove("BURN_OSCAR_MODEL")
            .env_remove("BURN_OSCAR_TEXT"),
    };
    eprintln!("\nChecks passed: {}. Now the tests.", summary(&times));
    timed(&mut tests).map(drop)?;
    if let Err(error) = &llvm {
        eprintln!("\n{}", without_kernels(error));
    }
    Ok(())
}

/// CubeCL's CPU runtime wherever a crate has a use for it. Every step gets the same features:
/// others would compile Burn again.
const CPU_RUNTIME: &[&str] = &["--features", "capabilities/cpu,benches/cpu"];

fn without_kernels(error: &Error) -> String {
    format!(
        "The tests of the CubeCL kernels are left out, for LLVM could not be prepared: {error}.\n\
         Everything else is tested. Where CubeCL can download its LLVM, the tests left out are\n    \
         cargo test --release --package capabilities --features cpu kernels::"
    )
}

/// The checks before the tests, by name. All of them build with the release profile, so that they
/// share build scripts and procedural macros with the tests.
fn checks(fast: bool, backends: &[&str]) -> Vec<(&'static str, Command)> {
    let mut lints = build(&["clippy", "--all-targets"], backends);
    lints.args(["--", "-D", "warnings"]);
    let mut checks = vec![
        ("format", cargo(&["fmt", "--all", "--check"])),
        ("lints", lints),
    ];
    if !fast {
        let mut doc = build(&["doc", "--no-deps"], backends);
        doc.env("RUSTDOCFLAGS", "-D warnings");
        checks.push(("documentation", doc));
        checks.push((
            "examples in the documentation",
            build(&["test", "--doc"], backends),
        ));
    }
    checks
}

/// The tests, by nextest where it is installed: it runs the tests of all binaries in parallel.
fn tests(nextest: bool, backends: &[&str]) -> Command {
    match nextest {
        true => build(&["nextest", "run"], backends),
        false => build(&["test", "--lib", "--bins", "--tests"], backends),
    }
}

/// A Cargo command for the whole workspace, from the one build that all of them share.
fn build(arguments: &[&str], backends: &[&str]) -> Command {
    let mut cargo = cargo(arguments);
    cargo.args(["--release", "--workspace"]).args(backends);
    cargo
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

    fn arguments(command: &Command) -> Vec<String> {
        let arguments = command.get_args();
        arguments
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn fast_leaves_out_documentation_only() {
        let names = |fast| {
            checks(fast, &[])
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
        let arguments = |nextest| arguments(&tests(nextest, &[]));
        assert_eq!(arguments(true)[0], "nextest");
        assert_eq!(arguments(false)[0], "test");
        // Documentation tests have their own step.
        assert!(!arguments(false).contains(&"--doc".to_owned()));
    }

    #[test]
    fn every_step_builds_with_the_same_features() {
        for backends in [CPU_RUNTIME, &[]] {
            let mut steps = checks(false, backends);
            steps.extend([true, false].map(|nextest| ("tests", tests(nextest, backends))));
            for (name, command) in steps.iter().filter(|(name, _)| *name != "format") {
                let arguments = arguments(command);
                let build = arguments.split(|argument| argument == "--").next();
                let build = build.unwrap_or_default().join(" ");
                let end = ["--release", "--workspace"].iter().chain(backends);
                let end = end.copied().collect::<Vec<_>>().join(" ");
                assert!(build.ends_with(&end), "{name}: {build}");
            }
        }
    }

    #[test]
    fn a_missing_llvm_is_said_with_its_reason() {
        let text = without_kernels(&Error::Refused("no apt-get here".into()));
        assert!(text.contains("kernels are left out") && text.contains("no apt-get here"));
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
