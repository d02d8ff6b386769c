//! Decoding while tokens are still coming.
//!
//! A byte-level token may end in the middle of a UTF-8 character, and a token's text may depend
//! on its neighbours (spaces). So a short run of tokens is decoded again with each new one, and
//! only the text that the new one adds is given out, once it ends with a whole character.

use super::{Tokenizer, TokenizerError};

/// Most tokens held back for an unfinished character. A character has at most 4 bytes; bytes
/// that have not become one after this many tokens never will.
const MOST_HELD: usize = 8;

/// A decoder for tokens that come one at a time, from [`Tokenizer::stream`].
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// Tokens whose text has been given out and that the next ones' text depends on, then the
    /// tokens held back.
    ids: Vec<u32>,
    /// How many of `ids` have been given out.
    given: usize,
}

impl<'a> TextStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self {
            tokenizer,
            ids: Vec::new(),
            given: 0,
        }
    }

    /// Takes a token; returns the text that is complete now and was not before, often empty.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        self.ids.push(id);
        let held = self.ids.len() - self.given;
        let text = self.added_text()?;
        if text.ends_with(char::REPLACEMENT_CHARACTER) && held < MOST_HELD {
            return Ok(String::new());
        }
        if !text.is_empty() {
            self.ids.drain(..self.given);
            self.given = self.ids.len();
        }
        Ok(text)
    }

    /// The text still held back, at the end of a generation; a character cut off is U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn finish(mut self) -> Result<String, TokenizerError> {
        self.added_text()
    }

    fn added_text(&mut self) -> Result<String, TokenizerError> {
        let before = self.tokenizer.decode(&self.ids[..self.given])?;
        let after = self.tokenizer.decode(&self.ids)?;
        Ok(after.get(before.len()..).unwrap_or_default().to_string())
    }
}
