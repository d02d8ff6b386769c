//! Reading an artifact's file, and replacing one without ever leaving half of it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Beyond any model: 96 layers of 16 heads of 256 with four matrices each are 1.6 GB.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// All bytes of the file, unless it is far too large to be an artifact.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>> {
    let io = |source| Error::Io {
        path: path.to_path_buf(),
        source,
    };
    let size = fs::metadata(path).map_err(io)?.len();
    if size > MAX_FILE_BYTES {
        return Err(Error::Artifact {
            path: path.to_path_buf(),
            reason: format!(
                "{size} bytes are more than the {MAX_FILE_BYTES} of the largest artifact: this is \
                 another kind of file; give the artifact that calibration wrote"
            ),
        });
    }
    fs::read(path).map_err(io)
}

/// Writes beside `path`, makes sure that the bytes have arrived, then takes its place.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let io = |source| Error::Io {
        path: path.to_path_buf(),
        source,
    };
    let name = path.file_name().ok_or_else(|| {
        io(io::Error::new(
            io::ErrorKind::InvalidInput,
            "this names no file: give a file name",
        ))
    })?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}-{number}.tmp", std::process::id()));
    let temporary = folder.join(temporary);

    let write = |mut file: File| {
        file.write_all(bytes)?;
        file.sync_all()
    };
    let file = File::create_new(&temporary).map_err(io)?;
    if let Err(error) = write(file).and_then(|()| fs::rename(&temporary, path)) {
        // The first error is the one that matters.
        let _ = fs::remove_file(&temporary);
        return Err(io(error));
    }
    // The new name survives a crash too where folders can be synchronised; not all can.
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}
