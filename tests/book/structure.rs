//! Pages, links and fences.

use super::{folder, pages, read};

/// The Rust that is compiled and run, one line a page.
const COMPILED: &str = include_str!("../pages.rs");

/// Targets of a page's links, code left out.
fn links(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut links = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced || line.starts_with("    ") {
            continue;
        }
        // Code spans are at odd places between backticks.
        let plain: Vec<&str> = line.split('`').step_by(2).collect();
        let mut rest = &plain.join("``")[..];
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let end = rest.find(')').unwrap_or(rest.len());
            links.push(rest[..end].to_owned());
        }
    }
    links
}

/// The words after the opening fences of a page.
fn fences(text: &str) -> Vec<&str> {
    let fences = text.lines().filter_map(|line| line.strip_prefix("```"));
    fences.step_by(2).collect()
}

/// What a heading is called in a link.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().chars();
    kept.filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| match c {
            ' ' => '-',
            c => c.to_ascii_lowercase(),
        })
        .collect()
}

#[test]
fn every_page_is_in_the_summary_once() {
    let summary = links(&read("SUMMARY.md"));
    let mut listed = summary.clone();
    listed.push("SUMMARY.md".into());
    listed.sort();
    assert_eq!(listed, pages());
}

#[test]
fn every_link_leads_somewhere() {
    let mut pages = pages();
    pages.push("../README.md".into());
    for page in pages {
        for link in links(&read(&page)) {
            if link.starts_with("http") {
                continue;
            }
            let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
            let base = folder().join(&page);
            let target = match path {
                "" => base,
                path => base.parent().expect("a folder").join(path),
            };
            assert!(target.exists(), "{page}: {link}");
            if !heading.is_empty() {
                let text = std::fs::read_to_string(&target).expect("a page");
                let headings = text.lines().filter(|line| line.starts_with('#'));
                assert!(
                    headings.map(anchor).any(|anchor| anchor == heading),
                    "{page}: {link}"
                );
            }
        }
    }
}

/// Rust that is not compiled is not called Rust. `edition`s and the like need no exception.
#[test]
fn every_rust_block_is_compiled_and_run() {
    for page in pages().iter().map(String::as_str).chain(["../README.md"]) {
        let text = read(page);
        let fences = fences(&text);
        for fence in &fences {
            assert!(!fence.is_empty(), "{page}: a fence names no language");
            assert!(
                !fence.starts_with("rust") || *fence == "rust",
                "{page}: {fence} is not run"
            );
        }
        let path = match page.strip_prefix("../") {
            Some(name) => format!("\"../{name}\""),
            None => format!("\"../docs/{page}\""),
        };
        let rust = fences.contains(&"rust");
        assert_eq!(rust, COMPILED.contains(&path), "{page}, in tests/pages.rs");
        // Documentation tests take indented blocks for Rust.
        let indented = text.lines().any(|line| line.starts_with("    "));
        let mut fenced = false;
        let indented = indented
            && text.lines().any(|line| {
                if line.starts_with("```") {
                    fenced = !fenced;
                }
                !fenced && line.starts_with("    ")
            });
        assert!(!(rust && indented), "{page}: fence the indented blocks");
    }
}
