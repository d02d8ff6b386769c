//! `cargo xtask features`: every feature reaches Burn, and every combination type-checks.
//!
//! Burn generates an extension's dispatch from the features of the extension's own crate. A feature
//! that is on here and off in Burn, or the other way round, compiles and panics at run time; so the
//! forwarding itself is checked.

use crate::{
    error::{Error, Result},
    process,
    workspace::{self, CARGO_REMEDY},
};
use std::{collections::BTreeMap, path::PathBuf, time::Instant};

/// Options of the feature check.
#[derive(clap::Args)]
pub struct Args {
    /// Check the forwarding only, without compiling.
    #[arg(long)]
    forwarding: bool,
    /// Type-check only these combinations, such as `cuda` or `wgpu,fusion`.
    combinations: Vec<String>,
}

/// Features that must be forwarded under the same name: burn-oscar to Burn, the examples' models to
/// burn-oscar, the examples to the models.
const FORWARDED: [&str; 9] = [
    "flex", "cpu", "cuda", "wgpu", "vulkan", "metal", "rocm", "fusion", "autotune",
];

/// What is type-checked without a choice.
const COMBINATIONS: [&str; 12] = [
    "flex",
    "flex,calibrate,tui",
    "cpu",
    "cuda",
    "wgpu",
    "vulkan",
    "metal",
    "rocm",
    "wgpu,autotune",
    "cpu,fusion",
    "cuda,fusion,autotune",
    "flex,vulkan,fusion,autotune,calibrate",
];

/// Checks the forwarding, then the combinations.
pub fn run(args: &Args) -> Result<()> {
    let metadata = check_forwarding()?;
    println!("forwarded to Burn: {}", FORWARDED.join(", "));
    if args.forwarding {
        return Ok(());
    }
    // Build scripts that ran under DOCS_RS left no libraries to link, so these builds are kept
    // away from those that link.
    let target = metadata.target_directory.join("features");
    let chosen: Vec<&str> = match args.combinations.is_empty() {
        true => COMBINATIONS.to_vec(),
        false => args.combinations.iter().map(String::as_str).collect(),
    };
    let mut failed = vec![];
    for &combination in &chosen {
        let start = Instant::now();
        let mut check = workspace::cargo();
        check
            .args(["check", "--release", "--package", "burn-oscar"])
            .args(["--no-default-features", "--features", combination])
            .arg("--target-dir")
            .arg(&target)
            // Build scripts of LLVM and CUDA bindings then ask for neither; nothing is linked.
            .env("DOCS_RS", "1");
        match process::run(&mut check, CARGO_REMEDY) {
            Ok(()) => println!(
                "{combination}: ok, {}",
                process::human_time(start.elapsed())
            ),
            Err(error) => {
                println!("{combination}: {error}");
                failed.push(combination);
            }
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Error::Refused(format!(
            "{} of {} combinations do not compile: {}",
            failed.len(),
            chosen.len(),
            failed.join("; ")
        ))),
    }
}

/// What `cargo metadata` says of the workspace.
#[derive(serde::Deserialize)]
pub struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
}

#[derive(serde::Deserialize)]
struct Package {
    name: String,
    features: BTreeMap<String, Vec<String>>,
}

/// Reads the workspace's metadata, and fails when a feature of burn-oscar does not set Burn's of the same name, or one of the examples
/// not that of what it builds on.
pub fn check_forwarding() -> Result<Metadata> {
    let mut command = workspace::cargo();
    command.args(["metadata", "--no-deps", "--format-version", "1"]);
    let json = process::capture(&mut command, CARGO_REMEDY)?;
    let metadata: Metadata = serde_json::from_str(&json)
        .map_err(|e| Error::Refused(format!("`cargo metadata` answered in another form: {e}")))?;
    let missing: Vec<_> = [
        ("burn-oscar", "burn"),
        ("models", "burn-oscar"),
        ("qwen3", "models"),
        ("oscar", "models"),
        ("calibrate", "models"),
    ]
    .into_iter()
    .flat_map(|(package, target)| not_forwarded(&metadata, package, target))
    .collect();
    match missing.is_empty() {
        true => Ok(metadata),
        false => Err(Error::Refused(format!(
            "features are not forwarded, which would panic at run time: {}",
            missing.join(", ")
        ))),
    }
}

fn not_forwarded(metadata: &Metadata, package: &str, target: &str) -> Vec<String> {
    let found = metadata.packages.iter().find(|found| found.name == package);
    FORWARDED
        .into_iter()
        .filter(|feature| {
            let forwarded = format!("{target}/{feature}");
            let enabled = found.and_then(|found| found.features.get(*feature));
            !enabled.is_some_and(|enabled| enabled.contains(&forwarded))
        })
        .map(|feature| format!("{package}/{feature} to {target}/{feature}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_forwards_its_features() {
        check_forwarding().unwrap();
    }

    #[test]
    fn a_feature_that_is_not_forwarded_is_named() {
        let forward = |feature: &&str| (feature.to_string(), vec![format!("burn/{feature}")]);
        let mut features: BTreeMap<_, _> = FORWARDED.iter().map(forward).collect();
        features.insert("cuda".into(), vec!["burn/cpu".into()]);
        features.remove("rocm");
        let metadata = Metadata {
            packages: vec![Package {
                name: "burn-oscar".into(),
                features,
            }],
            target_directory: PathBuf::new(),
        };
        assert_eq!(
            not_forwarded(&metadata, "burn-oscar", "burn"),
            [
                "burn-oscar/cuda to burn/cuda",
                "burn-oscar/rocm to burn/rocm"
            ]
        );
    }
}
