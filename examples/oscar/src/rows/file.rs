//! A file of rows that grows, and survives being cut off.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use super::{FORMAT, Row};
use crate::error::{Error, Result};

/// A file to which rows are added. Rows that are already there need not be measured again.
#[derive(Debug)]
pub struct RowFile {
    path: PathBuf,
    file: File,
    rows: BTreeMap<String, Row>,
    /// Whether the last line was cut off, by a kill for one, and has been removed.
    pub repaired: bool,
}

impl RowFile {
    /// Opens a file, or makes it. A last line without its end is what a killed run leaves behind:
    /// it is removed, and measured again.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Line`] for anything else that is not a row: the file is then left
    /// as it is.
    pub fn open(path: &Path) -> Result<Self> {
        if let Some(folder) = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
        {
            fs::create_dir_all(folder).map_err(Error::file(folder))?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path).map_err(Error::file(path))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(Error::file(path))?;
        let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
        let rows = parse(path, &bytes[..whole])?;
        let repaired = whole < bytes.len();
        if repaired {
            file.set_len(whole as u64).map_err(Error::file(path))?;
        }
        file.seek(SeekFrom::End(0)).map_err(Error::file(path))?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            rows: rows.into_iter().map(|row| (row.key(), row)).collect(),
            repaired,
        })
    }

    /// The row of a key.
    pub fn get(&self, key: &str) -> Option<&Row> {
        self.rows.get(key)
    }

    /// Adds a row, in one write.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn push(&mut self, row: Row) -> Result<()> {
        let mut line = serde_json::to_string(&row).map_err(models::cli::CliError::Json)?;
        line.push('\n');
        let written = self.file.write_all(line.as_bytes());
        written.map_err(Error::file(&self.path))?;
        self.rows.insert(row.key(), row);
        Ok(())
    }
}

/// The rows of files; of rows of the same measurement the last.
///
/// # Errors
/// [`Error::File`], [`Error::Line`].
pub fn read(paths: &[PathBuf]) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for path in paths {
        let bytes = fs::read(path).map_err(Error::file(path))?;
        for row in parse(path, &bytes)? {
            match places.get(&row.key()) {
                Some(&place) => rows[place] = row,
                None => {
                    places.insert(row.key(), rows.len());
                    rows.push(row);
                }
            }
        }
    }
    Ok(rows)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<Row>> {
    let wrong = |line: usize, reason: String| Error::Line {
        path: path.to_path_buf(),
        line: line + 1,
        reason,
    };
    let lines = bytes.split(|&byte| byte == b'\n').enumerate();
    lines
        .filter(|(_, line)| !line.iter().all(u8::is_ascii_whitespace))
        .map(|(number, line)| {
            let row: Row = serde_json::from_slice(line).map_err(|error| {
                let reason = format!("not a row of `oscar evaluate`: {error}; give another --out");
                wrong(number, reason)
            })?;
            match row.format {
                FORMAT => Ok(row),
                other => Err(wrong(
                    number,
                    format!("format {other}, this program has {FORMAT}: give another --out"),
                )),
            }
        })
        .collect()
}
