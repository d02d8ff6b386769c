//! What three models change to gain the cache, counted in lines.

use super::{computed, folder};
use std::fs;

/// Unchanged lines shown around a change.
const CONTEXT: usize = 2;

/// Lines with their marks: ' ' kept, '-' gone, '+' new, by the longest common subsequence.
fn difference<'a>(old: &'a str, new: &'a str) -> Vec<(char, &'a str)> {
    let old: Vec<&str> = old.lines().collect();
    let new: Vec<&str> = new.lines().collect();
    // common[i][j]: length of the longest common subsequence of old[i..] and new[j..].
    let mut common = vec![vec![0usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = match old[i] == new[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut lines = Vec::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push((' ', old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || i < old.len() && common[i + 1][j] >= common[i][j + 1] {
            lines.push(('-', old[i]));
            i += 1;
        } else {
            lines.push(('+', new[j]));
            j += 1;
        }
    }
    lines
}

/// A count of the changed lines that are neither empty nor comments, and the changes themselves.
fn section(old: &str, new: &str) -> String {
    let lines = difference(old, new);
    let near = |at: usize| {
        let around = at.saturating_sub(CONTEXT)..(at + CONTEXT + 1).min(lines.len());
        lines[around].iter().any(|(mark, _)| *mark != ' ')
    };
    let code = |line: &str| !line.trim().is_empty() && !line.trim().starts_with("//");
    let count = |wanted: char| {
        let counted = |&&(mark, line): &&(char, &str)| mark == wanted && code(line);
        lines.iter().filter(counted).count()
    };
    let mut text = format!(
        "**{} lines of code more, {} fewer.**\n\n```diff\n",
        count('+'),
        count('-')
    );
    let mut shown = true;
    for (at, (mark, line)) in lines.iter().enumerate() {
        if near(at) {
            if !shown {
                text += "@@\n";
            }
            text += format!("{mark}{line}").trim_end();
            text += "\n";
        }
        shown = near(at);
    }
    text + "```"
}

/// A source file up to its tests, with the paths of its own crate.
fn source(path: &str) -> String {
    let path = folder().join("..").join(path);
    let text = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .replace("crate::migration::", "crate::")
        .replace("models::", "crate::");
    let end = text.find("\n#[cfg(test)]").unwrap_or(text.len());
    text[..end].to_owned()
}

#[test]
fn the_changes_are_those_of_the_files() {
    for (name, old, new) in [
        (
            "llama",
            "tests/migration/llama/dense.rs",
            "tests/migration/llama/cached.rs",
        ),
        (
            "decoder",
            "examples/custom-transformer/src/attention/dense.rs",
            "examples/custom-transformer/src/attention/cached.rs",
        ),
        (
            "qwen3",
            "tests/migration/qwen3/dense.rs",
            "examples/models/src/model.rs",
        ),
    ] {
        computed("migration.md", name, &section(&source(old), &source(new)));
    }
}

#[test]
fn a_difference_holds_both_texts() {
    let (old, new) = ("a\nb\nc\nd", "a\nx\nc\nd\ne");
    let lines = difference(old, new);
    let side = |gone: char| {
        let kept = lines.iter().filter(|(mark, _)| *mark != gone);
        kept.map(|(_, line)| *line).collect::<Vec<_>>().join("\n")
    };
    assert_eq!((side('+'), side('-')), (old.to_owned(), new.to_owned()));
    assert_eq!(lines.iter().filter(|(mark, _)| *mark == ' ').count(), 3);
    assert!(section(old, new).starts_with("**2 lines of code more, 1 fewer.**"));
}
