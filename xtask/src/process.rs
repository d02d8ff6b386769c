//! Running other programs, with their command line shown and their failure named.

use crate::error::{Error, Result};
use std::{
    io::ErrorKind,
    process::{Command, ExitStatus},
    time::Duration,
};

/// Shows the command line, runs it with this terminal, and fails if it fails.
///
/// `remedy` says how to get the program when it is not installed.
pub fn run(command: &mut Command, remedy: &str) -> Result<()> {
    let line = command_line(command);
    eprintln!("\n$ {line}");
    let status = command
        .status()
        .map_err(|e| start_error(command, remedy, e))?;
    check(status, line)
}

/// Runs a command and returns what it printed on standard output.
pub fn capture(command: &mut Command, remedy: &str) -> Result<String> {
    let line = command_line(command);
    let output = command
        .output()
        .map_err(|e| start_error(command, remedy, e))?;
    if !output.status.success() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
    check(output.status, line)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a command starts and ends with success; its output is dropped.
pub fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// A duration as a person says it: `8 s`, `2 min 05 s`.
pub fn human_time(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds / 60 {
        0 => format!("{seconds} s"),
        minutes => format!("{minutes} min {:02} s", seconds % 60),
    }
}

fn check(status: ExitStatus, command: String) -> Result<()> {
    if status.success() {
        return Ok(());
    }
    Err(Error::Failed {
        command,
        status: status.to_string(),
    })
}

fn start_error(command: &Command, remedy: &str, error: std::io::Error) -> Error {
    let program = command.get_program().to_string_lossy().into_owned();
    match error.kind() {
        ErrorKind::NotFound => Error::Missing {
            program,
            remedy: remedy.to_owned(),
        },
        _ => Error::Refused(format!("cannot start `{program}`: {error}")),
    }
}

/// The command as it could be typed, environment changes first. The program is shown by its file
/// name: Cargo and rustup set long absolute paths.
fn command_line(command: &Command) -> String {
    let environment = command.get_envs().filter_map(|(name, value)| {
        let value = value?.to_string_lossy().into_owned();
        Some(format!("{}={}", name.to_string_lossy(), quoted(&value)))
    });
    let program = std::path::Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program());
    let arguments = std::iter::once(program).chain(command.get_args());
    environment
        .chain(arguments.map(|argument| quoted(&argument.to_string_lossy())))
        .collect::<Vec<_>>()
        .join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_can_be_pasted() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["doc", "a b", "it's", ""]);
        command
            .env("RUSTDOCFLAGS", "-D warnings")
            .env_remove("HOME");
        assert_eq!(
            command_line(&command),
            r"RUSTDOCFLAGS='-D warnings' cargo doc 'a b' 'it'\''s' ''"
        );
    }

    #[test]
    fn times_are_readable() {
        assert_eq!(human_time(Duration::from_secs(8)), "8 s");
        assert_eq!(human_time(Duration::from_secs(125)), "2 min 05 s");
    }

    #[test]
    fn missing_program_names_the_remedy() {
        let error = run(&mut Command::new("no-such-program-at-all"), "install it").unwrap_err();
        assert_eq!(
            error.to_string(),
            "`no-such-program-at-all` was not found: install it"
        );
    }

    #[cfg(unix)]
    #[test]
    fn failure_names_command_and_status() {
        let error = capture(&mut Command::new("false"), "").unwrap_err();
        assert_eq!(error.to_string(), "`false` failed (exit status: 1)");
        assert!(!succeeds(&mut Command::new("false")));
    }
}
