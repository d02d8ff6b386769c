//! A page before it is Markdown or HTML, and how it becomes either.

use std::{
    fs::{create_dir_all, write},
    path::{Path, PathBuf},
};

use super::Table;
use crate::error::{Error, Result};

/// A page.
#[derive(Debug, Default)]
pub struct Document {
    pub title: String,
    pub blocks: Vec<Block>,
}

/// A part of a page.
#[derive(Debug)]
pub enum Block {
    Heading(String),
    Text(String),
    Table(Table),
    /// A figure: the name of its file, without ending, what it shows, its SVG.
    Figure {
        name: String,
        caption: String,
        svg: String,
    },
}

const STYLE: &str = "body{font:16px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em;\
    color:#222}table{border-collapse:collapse;font-size:14px;margin:1em 0}th,td{padding:.25em .7em;\
    border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}th:first-child,td:first-child{\
    text-align:left}figure{margin:1.5em 0}figcaption,.caption{color:#555;font-size:14px}\
    .wide{overflow-x:auto}svg{max-width:100%;height:auto}";

impl Document {
    /// Writes `report.md` with its figures, and `report.html`, which holds all of them itself.
    /// Returns both paths.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, folder: &Path) -> Result<[PathBuf; 2]> {
        create_dir_all(folder).map_err(Error::file(folder))?;
        for block in &self.blocks {
            if let Block::Figure { name, svg, .. } = block {
                let path = folder.join(format!("{name}.svg"));
                write(&path, svg).map_err(Error::file(&path))?;
            }
        }
        let markdown = folder.join("report.md");
        write(&markdown, self.markdown()).map_err(Error::file(&markdown))?;
        let html = folder.join("report.html");
        write(&html, self.html()).map_err(Error::file(&html))?;
        Ok([markdown, html])
    }

    /// The page in Markdown; figures are files beside it.
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n", self.title);
        for block in &self.blocks {
            text.push('\n');
            text += &match block {
                Block::Heading(heading) => format!("## {heading}\n"),
                Block::Text(words) => format!("{words}\n"),
                Block::Table(table) => format!(
                    "### {}\n\n{}\n\n{}\n",
                    table.title,
                    table.markdown(),
                    table.caption
                ),
                Block::Figure { name, caption, .. } => format!("![{caption}]({name}.svg)\n"),
            };
        }
        text
    }

    /// The page in HTML, complete in itself.
    pub fn html(&self) -> String {
        let mut body = format!("<h1>{}</h1>\n", escape(&self.title));
        for block in &self.blocks {
            body += &match block {
                Block::Heading(heading) => format!("<h2>{}</h2>\n", escape(heading)),
                Block::Text(words) => format!("<p>{}</p>\n", escape(words)),
                Block::Table(table) => html_table(table),
                Block::Figure { caption, svg, .. } => format!(
                    "<figure>{svg}<figcaption>{}</figcaption></figure>\n",
                    escape(caption)
                ),
            };
        }
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{}</title>\n\
             <style>{STYLE}</style>\n<body>\n{body}</body>\n</html>\n",
            escape(&self.title)
        )
    }
}

fn html_table(table: &Table) -> String {
    let cells = |row: &[String], tag: &str| {
        let cells = row
            .iter()
            .map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = table.rows.iter().map(|row| cells(row, "td")).collect();
    format!(
        "<h3>{}</h3>\n<div class=\"wide\"><table>\n{}{rows}</table></div>\n<p class=\"caption\">{}</p>\n",
        escape(&table.title),
        cells(&table.header, "th"),
        escape(&table.caption)
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
