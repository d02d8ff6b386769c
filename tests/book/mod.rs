//! The book holds what it says: links lead somewhere, Rust is compiled, tables and differences are
//! computed. With `BURN_OSCAR_WRITE_BOOK` set, computed parts are written into the pages.

mod diffs;
mod memory;
mod names;
mod structure;

use std::fs;
use std::path::PathBuf;

/// The folder of the book.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// A file, by its path from the book's folder.
fn read(path: &str) -> String {
    let path = folder().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names of the pages.
fn pages() -> Vec<String> {
    let mut pages: Vec<String> = fs::read_dir(folder())
        .expect("the book")
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.into_string().expect("a name"))
        .filter(|name| name.ends_with(".md"))
        .collect();
    pages.sort();
    pages
}

/// Compares the part of a page between `<!-- computed NAME -->` and `<!-- end -->` with what it
/// should be, or writes it there.
fn computed(page: &str, name: &str, expected: &str) {
    let text = read(page);
    let start = format!("<!-- computed {name} -->\n");
    let from = text
        .find(&start)
        .unwrap_or_else(|| panic!("{page}: {start}"))
        + start.len();
    let to = from + text[from..].find("<!-- end -->").expect("an end");
    let expected = format!("\n{}\n\n", expected.trim());
    if std::env::var_os("BURN_OSCAR_WRITE_BOOK").is_some() {
        let text = [&text[..from], &expected, &text[to..]].concat();
        fs::write(folder().join(page), text).expect("writes the page");
        return;
    }
    assert_eq!(
        text[from..to],
        expected,
        "{page}, {name}: run the test with BURN_OSCAR_WRITE_BOOK=1 to write it"
    );
}
