//! Warnings of the library, on standard error.

use log::{LevelFilter, Log, Metadata, Record};

use super::note;

/// Prints what burn-oscar warns of, such as a context longer than its artifact serves. Other
/// libraries speak of their own inside.
struct Warnings;

impl Log for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("burn_oscar")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            note(false, &format!("warning: {}", record.args()));
        }
    }

    fn flush(&self) {}
}

/// Shows warnings from now on. Whoever has set a logger before keeps it.
pub(super) fn show() {
    if log::set_logger(&Warnings).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}
