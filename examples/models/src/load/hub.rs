//! A model of the Hugging Face hub, fetched into the hub's cache on this machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo};
use indicatif::{ProgressBar, ProgressStyle};

use super::{LoadError, hf};

/// The model id that a path which does not exist may stand for: `org/name`, nothing more.
pub(super) fn model_id(path: &Path) -> Option<&str> {
    let id = path.to_str()?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed);
    let (organisation, name) = id.split_once('/')?;
    (part(organisation) && part(name) && !name.ends_with(".gguf")).then_some(id)
}

/// Fetches the files of a model and returns the folder they lie in. Files in the cache are not
/// fetched again. `HF_HOME`, `HF_ENDPOINT` and the token that the hub's own tools keep are
/// honoured.
pub(super) fn fetch(id: &str) -> Result<PathBuf, LoadError> {
    let api = ApiBuilder::from_env()
        .build()
        .map_err(|error| failure(id, "a list", error))?;
    let hub = Hub {
        id,
        repo: api.model(id.to_string()),
        cached: Cache::from_env().repo(Repo::model(id.to_string())),
    };
    let config = hub.get(hf::CONFIG)?;
    hub.get(hf::TOKENIZER)?;
    for file in hf::OPTIONAL {
        // Absent from many models; a network that fails will fail for the weights too.
        let _ = hub.get(file);
    }
    match hub.get(hf::INDEX) {
        Ok(index) => {
            let text = std::fs::read_to_string(&index).map_err(LoadError::io(&index))?;
            let files: BTreeSet<_> = hf::shards(&index, &text)?.into_values().collect();
            files.iter().try_for_each(|file| hub.get(file).map(drop))?;
        }
        Err(_) => drop(hub.get(hf::SINGLE)?),
    }
    Ok(config.parent().map(Path::to_path_buf).unwrap_or_default())
}

struct Hub<'a> {
    id: &'a str,
    repo: ApiRepo,
    cached: hf_hub::CacheRepo,
}

impl Hub<'_> {
    fn get(&self, file: &str) -> Result<PathBuf, LoadError> {
        match self.cached.get(file) {
            Some(path) => Ok(path),
            None => self
                .repo
                .download_with_progress(file, DownloadBar::default())
                .map_err(|error| failure(self.id, file, error)),
        }
    }
}

fn failure(id: &str, file: &str, error: impl ToString) -> LoadError {
    LoadError::Hub {
        id: id.to_string(),
        file: file.to_string(),
        reason: error.to_string(),
    }
}

/// A bar over the bytes of one file, on standard error; hidden where that is no terminal.
#[derive(Default)]
struct DownloadBar(Option<ProgressBar>);

impl Progress for DownloadBar {
    fn init(&mut self, size: usize, file: &str) {
        let bar = ProgressBar::new(size as u64).with_message(file.to_string());
        let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        self.0 = Some(bar);
    }

    fn update(&mut self, size: usize) {
        if let Some(bar) = &self.0 {
            bar.inc(size as u64);
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_organisation_and_a_name_are_an_id() {
        assert_eq!(
            model_id(Path::new("Qwen/Qwen3-0.6B")),
            Some("Qwen/Qwen3-0.6B")
        );
        for path in [
            "Qwen3",
            "a/b/c",
            "/model",
            "./model",
            "../model",
            "dir/model.gguf",
            "a b/c",
        ] {
            assert_eq!(model_id(Path::new(path)), None, "{path}");
        }
    }
}
