//! The texts that demo and tests read, made from fetched Wikipedia summaries.

use crate::{
    error::{Error, Result},
    model::WIKIPEDIA,
    workspace,
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Where the texts are.
pub struct Texts {
    /// About 200 KB of running text, for perplexity.
    pub corpus: PathBuf,
    /// A prompt of about 1,400 tokens that ends in a question about its beginning.
    pub prompt: PathBuf,
}

/// One article; the JSON has more fields.
#[derive(serde::Deserialize)]
struct Article {
    extract: String,
}

/// Articles by title. Sorted, so that the corpus is the same everywhere.
type Articles = BTreeMap<String, Article>;

/// Returns the paths of the texts, made if they are not in the cache.
pub fn fetch() -> Result<Texts> {
    let folder = workspace::cache().join("texts");
    let summaries = WIKIPEDIA.fetch(&folder)?;
    let json = fs::read_to_string(&summaries).map_err(Error::file("read", &summaries))?;
    let articles: Articles = serde_json::from_str(&json)
        .map_err(|e| Error::Refused(format!("{} is not as pinned: {e}", summaries.display())))?;
    let texts = Texts {
        corpus: folder.join("wikipedia-summaries.txt"),
        prompt: folder.join("long-prompt.txt"),
    };
    write_if_changed(&texts.corpus, &corpus(&articles))?;
    write_if_changed(&texts.prompt, &prompt(&articles)?)?;
    Ok(texts)
}

/// The articles of the prompt. The question is about the first: its tokens are the oldest, so the
/// answer has to come through the 2-bit pages.
const PROMPT_ARTICLES: [&str; 9] = [
    "Moon", "Earth", "Ocean", "Volcano", "Glacier", "Rain", "River", "Lake", "Island",
];
const PROMPT_QUESTION: &str = "\
Question: What is the average distance between the Moon and the Earth, and what does the Moon's \
gravity do to the Earth?";

fn prompt(articles: &Articles) -> Result<String> {
    let mut prompt = String::new();
    for title in PROMPT_ARTICLES {
        let article = articles.get(title).ok_or_else(|| {
            Error::Refused(format!("the fetched summaries have no article {title:?}"))
        })?;
        prompt += &section(title, article);
    }
    Ok(prompt + PROMPT_QUESTION)
}

const CORPUS_BYTES: usize = 200_000;

/// Whole articles, in the order of their titles, until there is enough.
fn corpus(articles: &Articles) -> String {
    let mut corpus = String::new();
    for (title, article) in articles {
        if corpus.len() >= CORPUS_BYTES {
            break;
        }
        corpus += &section(title, article);
    }
    corpus
}

fn section(title: &str, article: &Article) -> String {
    format!("{title}\n{}\n\n", article.extract.trim())
}

/// Writes through a temporary file, so that a reader never sees half a text.
fn write_if_changed(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let part = path.with_extension(format!("{}.part", std::process::id()));
    fs::write(&part, text).map_err(Error::file("write", &part))?;
    fs::rename(&part, path).map_err(Error::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn articles(titles: &[&str]) -> Articles {
        let article = |title: &&str| {
            let extract = format!(" About {title}. ");
            (title.to_string(), Article { extract })
        };
        titles.iter().map(article).collect()
    }

    #[test]
    fn prompt_starts_with_what_it_asks_about() {
        let prompt = prompt(&articles(&PROMPT_ARTICLES)).unwrap();
        assert!(prompt.starts_with("Moon\nAbout Moon.\n\nEarth\n"));
        assert!(prompt.ends_with("do to the Earth?"));
    }

    #[test]
    fn prompt_names_the_missing_article() {
        let error = prompt(&articles(&["Moon"])).unwrap_err().to_string();
        assert!(error.contains("\"Earth\""), "{error}");
    }

    #[test]
    fn corpus_ends_with_a_whole_article() {
        let long = Article {
            extract: "x".repeat(CORPUS_BYTES - 10),
        };
        let articles = [
            ("a", long),
            (
                "b",
                Article {
                    extract: "yy".into(),
                },
            ),
        ];
        let mut articles: Articles = articles.map(|(t, a)| (t.to_owned(), a)).into();
        let text = corpus(&articles);
        assert!(text.ends_with("b\nyy\n\n"));
        articles.insert(
            "c".into(),
            Article {
                extract: "z".into(),
            },
        );
        assert_eq!(corpus(&articles), text);
    }

    #[test]
    fn an_unchanged_text_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.txt");
        write_if_changed(&path, "one").unwrap();
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        write_if_changed(&path, "one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written);
        write_if_changed(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
