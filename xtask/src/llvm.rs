//! `cargo xtask llvm`: Debian's LLVM 22 in the place of the prebuilt LLVM 23 that CubeCL's build
//! script downloads for its CUDA and CPU runtimes, for machines that reach package registries only.
//!
//! The build script takes a folder as installed when a marker file lies in it, and then asks
//! `bin/llvm-config` in that folder and nothing else. So a folder with the marker and a wrapper
//! around Debian's llvm-config is all it takes; LLVM's C interface did not lose a function that
//! CubeCL uses between 22 and 23.

use crate::{
    error::{Error, Result},
    process, workspace,
};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Options of the LLVM preparation.
#[derive(clap::Args)]
pub struct Args {
    /// Change nothing; only say whether the features `cpu` and `cuda` can be built.
    #[arg(long)]
    check: bool,
}

const PACKAGES: [&str; 6] = [
    "g++",
    "llvm-22-dev",
    "libz3-dev",
    "zlib1g-dev",
    "libzstd-dev",
    "libxml2-dev",
];
const DEBIAN_LLVM_CONFIG: &str = "/usr/lib/llvm-22/bin/llvm-config";
const INSTALLED: &str = ".tracel-llvm-installed";
/// Tells the wrapper from the llvm-config of a real download.
const SIGNATURE: &str = "# Written by `cargo xtask llvm` of burn-oscar.";

/// Installs the packages and writes the folder; does nothing where both are there.
pub fn run(args: &Args) -> Result<()> {
    if !cfg!(target_os = "linux") {
        return Err(Error::Refused(
            "only Linux needs and can use this: elsewhere the first build with `cpu` or `cuda` \
             downloads its LLVM"
                .into(),
        ));
    }
    let folder = folder()?;
    let state = State::of(&folder);
    match (state, args.check) {
        (State::Downloaded, _) => {
            println!(
                "{} holds a downloaded LLVM; left as it is",
                folder.display()
            );
            return Ok(());
        }
        (State::Foreign, _) => {
            return Err(Error::Refused(format!(
                "{} was not made by this command and holds no finished download: remove it and \
                 run again",
                folder.display()
            )));
        }
        (State::Missing, true) => {
            return Err(Error::Refused(format!(
                "{} is not there: run `cargo xtask llvm`",
                folder.display()
            )));
        }
        (State::Missing | State::Prepared, false) => {
            install_packages()?;
            write_folder(&folder)?;
        }
        (State::Prepared, true) => {}
    }
    verify(&folder)
}

/// Makes sure that the feature `cpu` can be built, as [`run`] does.
pub fn prepare() -> Result<()> {
    run(&Args { check: false })
}

/// What lies where CubeCL's build script looks for its LLVM.
#[derive(Debug, PartialEq, Eq)]
enum State {
    Missing,
    Prepared,
    Downloaded,
    Foreign,
}

impl State {
    fn of(folder: &Path) -> State {
        let wrapper = fs::read_to_string(folder.join("bin/llvm-config"));
        if wrapper.is_ok_and(|text| text.contains(SIGNATURE)) {
            State::Prepared
        } else if folder.join(INSTALLED).exists() {
            State::Downloaded
        } else if folder.exists() {
            State::Foreign
        } else {
            State::Missing
        }
    }
}

/// The folder in the user's data folder; the build script puts the version into its name.
fn folder() -> Result<PathBuf> {
    let lock = workspace::root().join("Cargo.lock");
    let text = fs::read_to_string(&lock).map_err(Error::file("read", &lock))?;
    let version = locked_version(&text, "tracel-llvm-bundler").ok_or_else(|| {
        Error::Refused(format!(
            "{} has no tracel-llvm-bundler: this CubeCL needs no LLVM",
            lock.display()
        ))
    })?;
    let data = env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let data = data.filter(|path| path.is_absolute());
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".local/share"));
    let data = data.or_else(home).ok_or_else(|| {
        Error::Refused("neither XDG_DATA_HOME nor HOME is set: set one of them".into())
    })?;
    Ok(data.join("tracel").join(format!("tracel-llvm-{version}")))
}

/// The version of a package in the text of a Cargo.lock.
fn locked_version<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name);
    lines
        .nth(1)?
        .strip_prefix("version = \"")?
        .strip_suffix('"')
}

fn install_packages() -> Result<()> {
    let missing: Vec<_> = PACKAGES
        .into_iter()
        .filter(|name| !is_installed(name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let by_hand = format!("apt-get update && apt-get install {}", missing.join(" "));
    let apt = || {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        apt
    };
    if !process::succeeds(apt().arg("--version")) {
        return Err(Error::Missing {
            program: "apt-get".into(),
            remedy: "this needs Debian 12 or newer, or a system derived from it".into(),
        });
    }
    let user = process::capture(Command::new("id").arg("-u"), "install coreutils")?;
    if user.trim() != "0" {
        return Err(Error::Refused(format!(
            "packages are missing and only root can install them: run `{by_hand}` as root, then \
             this command again as yourself"
        )));
    }
    process::run(apt().arg("update"), "")?;
    process::run(
        apt()
            .args(["install", "--yes", "--no-install-recommends"])
            .args(missing),
        "",
    )
}

fn is_installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat=${db:Status-Status}", package]);
    query
        .output()
        .is_ok_and(|output| output.stdout == b"installed")
}

fn write_folder(folder: &Path) -> Result<()> {
    let bin = folder.join("bin");
    workspace::create_folder(&bin)?;
    let wrapper = bin.join("llvm-config");
    write_executable(&wrapper, &wrapper_script())?;
    // Last, for it says that the folder is complete.
    let installed = folder.join(INSTALLED);
    fs::write(&installed, "").map_err(Error::file("write", &installed))
}

/// Passes everything on to Debian's llvm-config, with two changes: Polly is not linked, which the
/// Debian packages keep apart and CubeCL does not use; and the system's libraries are named in a
/// form that Cargo understands, where Debian's answer has the path of a shared object.
fn wrapper_script() -> String {
    format!(
        "#!/bin/sh\n\
         {SIGNATURE}\n\
         set -e\n\
         case \" $* \" in\n\
         *' --system-libs '*) echo '-lrt -ldl -lm -lz3 -lz -lzstd -lxml2' ;;\n\
         *' --libs '*) {DEBIAN_LLVM_CONFIG} \"$@\" | sed -e 's/-lPollyISL//g' -e 's/-lPolly//g' ;;\n\
         *) exec {DEBIAN_LLVM_CONFIG} \"$@\" ;;\n\
         esac\n"
    )
}

#[cfg(unix)]
fn write_executable(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, text).map_err(Error::file("write", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .map_err(Error::file("make executable", path))
}

#[cfg(not(unix))]
fn write_executable(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Error::file("write", path))
}

/// Asks the wrapper what the build script will ask it.
fn verify(folder: &Path) -> Result<()> {
    let wrapper = folder.join("bin/llvm-config");
    let ask = |question| {
        let mut command = Command::new(&wrapper);
        command.args(["--link-static", question]);
        process::capture(&mut command, "run `cargo xtask llvm`")
    };
    let version = ask("--version")?;
    let libraries = ask("--libs")?;
    ask("--libdir")?;
    if !libraries.contains("-lLLVMCore") || libraries.contains("Polly") {
        return Err(Error::Refused(format!(
            "{} lists other libraries than expected; is llvm-22-dev complete?",
            wrapper.display()
        )));
    }
    if let Some(package) = PACKAGES.into_iter().find(|name| !is_installed(name)) {
        return Err(Error::Refused(format!(
            "the package {package} is not installed: run `cargo xtask llvm`"
        )));
    }
    println!(
        "LLVM {} stands in for CubeCL's at {}\n\
         If a build with `cpu` or `cuda` failed before, run `cargo clean --release -p cubecl-llvm`.\n\
         Where no CUDA is installed, build `cuda` with CUDARC_CUDA_VERSION=13000.",
        version.trim(),
        folder.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_read_from_the_lock_file() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n\
                    [[package]]\nname = \"b\"\nversion = \"23.1.0-4\"\nsource = \"x\"\n";
        assert_eq!(locked_version(lock, "b"), Some("23.1.0-4"));
        assert_eq!(locked_version(lock, "c"), None);
    }

    #[test]
    fn a_real_download_is_told_from_a_prepared_folder() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("llvm");
        assert_eq!(State::of(&folder), State::Missing);
        fs::create_dir_all(folder.join("bin")).unwrap();
        assert_eq!(State::of(&folder), State::Foreign);
        fs::write(
            folder.join("bin/llvm-config"),
            [0x7f, b'E', b'L', b'F', 0xff],
        )
        .unwrap();
        fs::write(folder.join(INSTALLED), "").unwrap();
        assert_eq!(State::of(&folder), State::Downloaded);
    }

    #[test]
    fn preparing_twice_is_preparing_once() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("llvm");
        write_folder(&folder).unwrap();
        write_folder(&folder).unwrap();
        assert_eq!(State::of(&folder), State::Prepared);
    }

    #[cfg(unix)]
    #[test]
    fn wrapper_answers_for_the_system_libraries() {
        let home = tempfile::tempdir().unwrap();
        write_folder(home.path()).unwrap();
        let mut wrapper = Command::new(home.path().join("bin/llvm-config"));
        wrapper.args(["--link-static", "--system-libs"]);
        let answer = process::capture(&mut wrapper, "").unwrap();
        assert_eq!(answer.trim(), "-lrt -ldl -lm -lz3 -lz -lzstd -lxml2");
    }
}
