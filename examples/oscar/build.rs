//! Notes the commit that this binary is built from: every measurement carries it.

use std::process::Command;

fn main() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_string())
    };
    let given = std::env::var("BURN_OSCAR_COMMIT").ok();
    let commit = given
        .filter(|given| !given.is_empty())
        .or_else(|| git(&["describe", "--always", "--dirty", "--abbrev=12"]))
        .unwrap_or_else(|| "unknown".to_string());
    println!("cargo::rustc-env=BURN_OSCAR_COMMIT={commit}");
    println!("cargo::rerun-if-env-changed=BURN_OSCAR_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src");
    // Written at every commit; a source package has no such file and needs none.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
}
