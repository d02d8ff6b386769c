//! Tables and sizes as they are printed.

use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};

/// A table in Markdown: readable as it is, and ready to be pasted into a document.
pub fn table<'a>(header: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A count of bytes in the unit that suits it: 1024 bytes are a KiB.
pub fn bytes(count: usize) -> String {
    let mut value = count as f64;
    for unit in ["B", "KiB", "MiB"] {
        if value < 1024.0 {
            return if unit == "B" {
                format!("{count} B")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.2} GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_choose_their_unit() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(5 << 20), "5.0 MiB");
        assert_eq!(bytes(3 << 30), "3.00 GiB");
    }

    #[test]
    fn tables_are_markdown() {
        let mut any = table(["a", "b"]);
        any.add_row(["x", "1"]);
        let text = any.to_string();
        assert!(text.starts_with("| a |"), "{text}");
        assert_eq!(text.lines().count(), 3);
    }
}
