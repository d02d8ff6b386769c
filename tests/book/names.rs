//! Errors and public names: what the code has, the pages have.

use super::read;

/// The second level of a list of names: `Name` at the start of table rows.
fn rows(page: &str) -> Vec<String> {
    let text = read(page);
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `"));
    cells
        .filter_map(|line| line.split('`').next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_error_has_its_row() {
    let source = read("../burn-oscar/src/error.rs");
    let body = source.split("pub enum Error {").nth(1).expect("the enum");
    let body = body.split("\n}\n").next().expect("its end");
    let mut variants: Vec<&str> = body
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with(char::is_uppercase))
        .filter_map(|line| line.split(|c: char| !c.is_alphanumeric()).next())
        .collect();
    let mut found = rows("errors.md");
    variants.sort_unstable();
    found.sort();
    assert!(variants.len() > 20, "{variants:?}");
    assert_eq!(found, variants);
}

/// The names that `lib.rs` exports at the root and the modules it has.
#[test]
fn every_public_name_has_its_reason() {
    let source = read("../burn-oscar/src/lib.rs");
    let mut names = Vec::new();
    for item in source.split(';') {
        let item = item.rsplit("\npub ").next().expect("an item");
        if let Some(module) = item.strip_prefix("mod ") {
            names.push(module.to_owned());
        } else if let Some(path) = item.strip_prefix("use ") {
            let list = path.rsplit("::").next().expect("a name");
            let list = list.trim_matches(|c| "{}".contains(c)).split(',');
            let list = list.map(str::trim).filter(|name| !name.is_empty());
            names.extend(list.map(str::to_owned));
        }
    }
    assert!(names.len() > 10, "{names:?}");
    let rows = rows("public-api.md");
    for name in names {
        assert!(rows.contains(&name), "public-api.md: `{name}` has no row");
    }
}
