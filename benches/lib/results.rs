//! Rows as JSON, one file for each benchmark and device.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use burn::tensor::Device;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::device;
use crate::shape::Shape;
use crate::timing::Spread;
use crate::{Error, Result};

/// One run of one benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results<R> {
    /// The benchmark.
    pub bench: String,
    /// The device's own name.
    pub device: String,
    /// Day of the run, UTC.
    pub date: String,
    /// Of what took part.
    pub versions: BTreeMap<String, String>,
    /// The device's streaming read in this run.
    #[serde(default)]
    pub stream_tb_s: Option<f64>,
    /// Whether samples were cut short.
    #[serde(default)]
    pub quick: bool,
    /// What was measured.
    pub rows: Vec<R>,
    /// What was not, and why.
    #[serde(default)]
    pub refused: Vec<Refused>,
}

/// Something that was asked for and not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// The method, or the baseline's backend.
    pub name: String,
    /// The problem.
    #[serde(flatten)]
    pub shape: Shape,
    /// Why.
    pub reason: String,
}

/// One method and shape of `attention`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AttentionRow {
    /// The method.
    pub method: String,
    /// The problem.
    #[serde(flatten)]
    pub shape: Shape,
    /// Whether every call took a fused kernel.
    pub fused: bool,
    /// Whether a hardware graph was replayed.
    pub graph: bool,
    /// Layers that the calls rotated over.
    pub copies: usize,
    /// Calls in one graph.
    pub calls: usize,
    /// Timed samples.
    pub repeats: usize,
    /// Bits for each stored number, windows and parameters included.
    pub bits_per_value: f64,
    /// Bytes that one call must move.
    pub bytes: usize,
    /// Microseconds of one call.
    #[serde(flatten)]
    pub time: Spread,
    /// `bytes` over the median.
    pub tb_s: f64,
    /// `tb_s` over the streaming read of this run.
    pub share_of_stream: Option<f64>,
    /// The best BF16 attention of the baseline file over this row's median.
    pub ratio: Option<f64>,
}

/// One backend and shape of `baseline.py`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BaselineRow {
    /// Which implementation of PyTorch.
    pub backend: String,
    /// The problem.
    #[serde(flatten)]
    pub shape: Shape,
    /// Microseconds of one call.
    #[serde(flatten)]
    pub time: Spread,
}

/// One part and batch of `append`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AppendRow {
    /// The method.
    pub method: String,
    /// The problem.
    #[serde(flatten)]
    pub shape: Shape,
    /// Whether attention took a fused kernel.
    pub fused: bool,
    /// Tokens of a page: steps over which packing one spreads.
    pub page_tokens: usize,
    /// One token of each sequence into the exact tiers.
    pub append: Spread,
    /// One page of each sequence out of them, packed: on the device, in a graph.
    pub demote: Spread,
    /// The same launched one by one.
    pub demote_launched: Spread,
    /// Attention of one step.
    pub attend: Spread,
    /// `append + demote / page_tokens`, by medians.
    pub step_us: f64,
    /// `step_us` over `step_us + attend`.
    pub share_of_step: f64,
}

/// One method of `prefill`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PrefillRow {
    /// The method.
    pub method: String,
    /// Tokens packed.
    pub tokens: usize,
    /// Bytes read (keys and values in BF16) and written (pages with parameters).
    pub bytes: usize,
    /// Microseconds of one call.
    #[serde(flatten)]
    pub time: Spread,
    /// `bytes` over the median.
    pub tb_s: f64,
    /// `tb_s` over the streaming read of this run.
    pub share_of_stream: Option<f64>,
}

/// One run of `stream`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamRow {
    /// Bytes read.
    pub bytes: usize,
    /// Microseconds of one pass.
    #[serde(flatten)]
    pub time: Spread,
    /// `bytes` over the median.
    pub tb_s: f64,
}

impl<R: Serialize + DeserializeOwned> Results<R> {
    /// Nothing measured yet.
    pub fn new(bench: &str, device: &Device, quick: bool) -> Self {
        Self {
            bench: bench.into(),
            device: device::name(device),
            date: today(),
            versions: versions(),
            stream_tb_s: None,
            quick,
            rows: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Writes `folder/BENCH.json`; without a folder, that of the device under `benches/results`.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, folder: Option<&Path>) -> Result<PathBuf> {
        let default = || Path::new("benches/results").join(device::slug(&self.device));
        let folder = folder.map_or_else(default, Path::to_path_buf);
        let path = folder.join(format!("{}.json", self.bench));
        let file = |source| Error::File {
            path: path.clone(),
            source,
        };
        std::fs::create_dir_all(&folder).map_err(file)?;
        let text = serde_json::to_string_pretty(self).map_err(|source| Error::Json {
            path: path.clone(),
            source,
        })?;
        std::fs::write(&path, text + "\n").map_err(file)?;
        Ok(path)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Json`].
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::File {
            path: path.into(),
            source,
        })?;
        serde_json::from_str(&text).map_err(|source| Error::Json {
            path: path.into(),
            source,
        })
    }
}

/// The best of a baseline's backends for a shape: its name and its median in microseconds.
pub fn best(baseline: &Results<BaselineRow>, shape: Shape) -> Option<(&str, f64)> {
    let rows = baseline.rows.iter().filter(|row| row.shape == shape);
    rows.map(|row| (row.backend.as_str(), row.time.median_us))
        .min_by(|a, b| a.1.total_cmp(&b.1))
}

/// The crates that decide the speed, as the lock file has them.
fn versions() -> BTreeMap<String, String> {
    let lock = include_str!("../../Cargo.lock");
    let mut lines = lock.lines();
    let mut found = BTreeMap::new();
    while let Some(line) = lines.next() {
        let quoted = |line: &str| line.split('"').nth(1).map(str::to_string);
        if let Some(name) = line.strip_prefix("name = ").and_then(quoted)
            && ["burn", "burn-oscar", "cubecl"].contains(&name.as_str())
            && let Some(version) = lines.next().and_then(quoted)
        {
            found.insert(name, version);
        }
    }
    found
}

/// Today, UTC, as YYYY-MM-DD.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH);
    date(seconds.map_or(0, |elapsed| elapsed.as_secs() / 86_400))
}

/// The date of a day counted from 1970-01-01.
fn date(mut day: u64) -> String {
    let every = |year: u64, years| year.is_multiple_of(years);
    let leap = |year| every(year, 4) && !every(year, 100) || every(year, 400);
    let mut year = 1970;
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (day, expected) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (789, "1972-02-29"),
            (11_016, "2000-02-29"),
            (20_818, "2026-12-31"),
        ] {
            assert_eq!(date(day), expected);
        }
    }

    #[test]
    fn versions_come_from_the_lock_file() {
        let versions = versions();
        assert_eq!(versions.len(), 3);
        assert!(versions["burn"].starts_with("0."));
    }
}
