//! Where the workspace and its cache are, and how Cargo is called inside it.

use crate::error::{Error, Result};
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// The folder that holds the workspace's Cargo.toml.
pub fn root() -> PathBuf {
    // Cargo sets the variable for `cargo run`; asking at run time keeps a binary right that was
    // built for another checkout with the same target folder.
    let manifest = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let manifest = manifest.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    manifest.parent().map(Path::to_path_buf).unwrap_or(manifest)
}

/// The folder for what is fetched: `BURN_OSCAR_CACHE`, or `.cache` in the workspace.
pub fn cache() -> PathBuf {
    match env::var_os("BURN_OSCAR_CACHE") {
        Some(folder) if !folder.is_empty() => root().join(folder),
        _ => root().join(".cache"),
    }
}

/// Cargo in the workspace, as if it had been called from the shell.
///
/// `cargo run` sets variables that describe the xtask package. Some build scripts watch them, so
/// handing them on would rebuild their crates at every change between `cargo` and `cargo xtask`.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        if let Some(text) = name.to_str()
            && is_package_variable(text)
        {
            cargo.env_remove(name);
        }
    }
    cargo.current_dir(root());
    cargo
}

/// What to do when [`cargo`] cannot be started.
pub const CARGO_REMEDY: &str = "run this through `cargo xtask`";

/// Creates a folder and its parents.
pub fn create_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(Error::file("create", folder))
}

fn is_package_variable(name: &str) -> bool {
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_holds_the_lock_file() {
        assert!(root().join("Cargo.lock").is_file());
    }

    #[test]
    fn only_variables_of_the_package_are_dropped() {
        assert!(is_package_variable("CARGO_PKG_NAME"));
        assert!(is_package_variable("CARGO_MANIFEST_DIR"));
        assert!(!is_package_variable("CARGO_TARGET_DIR"));
        assert!(!is_package_variable("CARGO_HOME"));
    }
}
