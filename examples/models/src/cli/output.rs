//! Standard output, standard error and progress bars.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::CliError;

/// Writes text to standard output at once, so that a stream of tokens is seen as it grows.
///
/// # Errors
/// [`CliError::Output`], for a closed pipe among others.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes one JSON document and a newline to standard output.
///
/// # Errors
/// [`CliError::Json`] and [`CliError::Output`].
pub fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    print(&text)
}

/// Writes a line to standard error unless it is to be quiet. A closed standard error is no reason
/// to stop.
pub fn note(quiet: bool, text: &str) {
    if !quiet {
        let _ = writeln!(io::stderr().lock(), "{text}");
    }
}

/// A progress bar on standard error; hidden when quiet or where standard error is no terminal.
pub fn progress(quiet: bool, total: usize, what: &str) -> ProgressBar {
    let visible = !quiet && io::stderr().is_terminal();
    let target = if visible {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(total as u64), target);
    let template = "{msg} {wide_bar} {pos}/{len} tokens, {per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what.to_string());
    bar
}
