//! Wrong inputs and the message that each gives.
//!
//! A message says what was given, what the limit is and what to do about it. In the expected
//! texts `*` stands for anything: paths, digests, and what other libraries say.

mod artifact;
mod call;
mod checkpoint;
mod config;
mod gguf;
mod module;
mod unchanged;

use std::fmt::Display;

/// Checks that `result` is an error whose message fits `expected`.
fn assert_message<T>(what: &str, result: Result<T, impl Display>, expected: &str) {
    let Err(error) = result else {
        panic!("{what}: no error, expected: {expected}");
    };
    let message = error.to_string();
    assert!(
        fits(&message, expected),
        "{what}:\n   found: {message}\nexpected: {expected}"
    );
}

/// Whether `text` is `pattern`, in which `*` stands for any text.
fn fits(text: &str, pattern: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return text == pattern;
    };
    let Some(mut text) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match text.split_once(part) {
            Some((_, after)) => text = after,
            None => return false,
        }
    }
    text.ends_with(last)
}

#[test]
fn patterns_are_told_apart() {
    for (text, pattern, expected) in [
        ("abc", "abc", true),
        ("abc", "ab", false),
        ("abc", "a*", true),
        ("abc", "a*b", false),
        ("abcabc", "*b*c", true),
        ("abab", "ab*bab", false),
    ] {
        assert_eq!(fits(text, pattern), expected, "{text} {pattern}");
    }
}
