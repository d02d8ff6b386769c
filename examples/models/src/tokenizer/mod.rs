//! Text to tokens and back, and conversations to text.

mod chat;
mod stream;
mod vocabulary;

use std::fmt;

use serde_json::Value;

pub use chat::Message;
pub use stream::TextStream;
pub(crate) use vocabulary::Vocabulary;

/// Why text cannot be turned to tokens, or tokens to text.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// `tokenizer.json` or `tokenizer_config.json` is not what it should be.
    #[error("{file} cannot be read: {reason}")]
    File {
        /// Name of the file.
        file: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A GGUF file has a tokenizer of another kind.
    #[error("tokenizer model `{model}` is not supported; use a GGUF with `gpt2` (byte-level BPE)")]
    Model {
        /// The kind found.
        model: String,
    },
    /// A GGUF file splits text by rules that are not known.
    #[error(
        "pre-tokenizer `{name}` is not supported; known are gpt-2, smollm, qwen2 and llama-bpe; \
         use the Hugging Face folder of the model, whose tokenizer.json holds the rules"
    )]
    PreTokenizer {
        /// The name found.
        name: String,
    },
    /// A GGUF file's vocabulary contradicts itself.
    #[error("the vocabulary is damaged: {reason}")]
    Vocabulary {
        /// The contradiction.
        reason: String,
    },
    /// The text could not be split into tokens.
    #[error("the text cannot be tokenized: {reason}")]
    Encode {
        /// What the tokenizer says.
        reason: String,
    },
    /// The tokens could not be joined to text.
    #[error("the tokens cannot be turned into text: {reason}")]
    Decode {
        /// What the tokenizer says.
        reason: String,
    },
    /// The model comes without a chat template.
    #[error("the model has no chat template; give it a plain prompt instead of a conversation")]
    NoChatTemplate,
    /// The chat template failed.
    #[error("the model's chat template fails: {reason}")]
    ChatTemplate {
        /// What the template engine, or the template itself, says.
        reason: String,
    },
}

/// A model's tokenizer with its special tokens and chat template.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Put before a text where special tokens are asked for and `inner` does not know of it.
    prefix: Option<u32>,
    eos: Vec<u32>,
    bos_text: String,
    eos_text: String,
    chat_template: Option<String>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("tokens", &self.inner.get_vocab_size(true))
            .field("eos", &self.eos)
            .field("chat_template", &self.chat_template.is_some())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads the texts of `tokenizer.json` and, where there are such files, of
    /// `tokenizer_config.json` and `chat_template.jinja`. `eos` are the end tokens that the
    /// model's configuration names.
    ///
    /// # Errors
    /// [`TokenizerError::File`].
    pub fn from_hf(
        tokenizer: &[u8],
        config: Option<&str>,
        chat_template: Option<String>,
        eos: &[u32],
    ) -> Result<Self, TokenizerError> {
        let file = |file, reason: String| TokenizerError::File { file, reason };
        let inner = tokenizers::Tokenizer::from_bytes(tokenizer)
            .map_err(|error| file("tokenizer.json", error.to_string()))?;
        let config: Value = match config {
            Some(text) => serde_json::from_str(text)
                .map_err(|error| file("tokenizer_config.json", error.to_string()))?,
            None => Value::Null,
        };
        let mut tokenizer = Self {
            inner,
            prefix: None,
            eos: eos.to_vec(),
            bos_text: special_text(&config["bos_token"]),
            eos_text: special_text(&config["eos_token"]),
            chat_template: chat_template.or_else(|| default_template(&config["chat_template"])),
        };
        if let Some(id) = tokenizer.inner.token_to_id(&tokenizer.eos_text) {
            tokenizer.add_eos(id);
        }
        Ok(tokenizer)
    }

    /// Rebuilds the tokenizer from a GGUF file's metadata.
    pub(crate) fn from_gguf(vocabulary: Vocabulary) -> Result<Self, TokenizerError> {
        let text = |id: Option<u32>| {
            id.and_then(|id| vocabulary.tokens.get(id as usize))
                .cloned()
                .unwrap_or_default()
        };
        let mut tokenizer = Self {
            prefix: vocabulary.bos.filter(|_| vocabulary.add_bos),
            eos: Vec::new(),
            bos_text: text(vocabulary.bos),
            eos_text: text(vocabulary.eos),
            chat_template: vocabulary.chat_template.clone(),
            inner: vocabulary.build()?,
        };
        for id in [vocabulary.eos, vocabulary.eot].into_iter().flatten() {
            tokenizer.add_eos(id);
        }
        Ok(tokenizer)
    }

    fn add_eos(&mut self, id: u32) {
        if !self.eos.contains(&id) {
            self.eos.push(id);
        }
    }

    /// The token ids of a text. With `add_special`, the tokens that the model expects around a
    /// text are added; a conversation from [`Tokenizer::apply_chat_template`] already has them.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding =
            self.inner
                .encode_fast(text, add_special)
                .map_err(|error| TokenizerError::Encode {
                    reason: error.to_string(),
                })?;
        let prefix = self.prefix.filter(|_| add_special);
        Ok(prefix
            .into_iter()
            .chain(encoding.get_ids().iter().copied())
            .collect())
    }

    /// The text of token ids. Special tokens are left out; bytes that are not UTF-8 become
    /// U+FFFD. To print while generating use [`Tokenizer::stream`].
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.inner
            .decode(ids, true)
            .map_err(|error| TokenizerError::Decode {
                reason: error.to_string(),
            })
    }

    /// A decoder for tokens that come one at a time.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream::new(self)
    }

    /// Tokens that end a text.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// The largest token id, `None` for an empty vocabulary.
    pub fn largest_id(&self) -> Option<u32> {
        self.inner.get_vocab(true).into_values().max()
    }

    /// Whether the model comes with a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.chat_template.is_some()
    }

    /// A conversation as the text that the model was trained on; with `add_generation_prompt`
    /// it ends where the assistant's answer begins. Encode it without special tokens.
    ///
    /// # Errors
    /// [`TokenizerError::NoChatTemplate`], or [`TokenizerError::ChatTemplate`] where the
    /// template fails or refuses the conversation.
    pub fn apply_chat_template(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, TokenizerError> {
        let template = self
            .chat_template
            .as_deref()
            .ok_or(TokenizerError::NoChatTemplate)?;
        chat::render(
            template,
            messages,
            add_generation_prompt,
            &self.bos_text,
            &self.eos_text,
        )
    }
}

/// A special token in `tokenizer_config.json`: a text, or an object that holds one.
fn special_text(value: &Value) -> String {
    value
        .as_str()
        .or_else(|| value["content"].as_str())
        .unwrap_or_default()
        .to_string()
}

/// The chat template in `tokenizer_config.json`: a text, or a list of named ones.
fn default_template(value: &Value) -> Option<String> {
    let named = |named: &&Value| named["name"] == "default";
    let listed = || value.as_array()?.iter().find(named)?["template"].as_str();
    value.as_str().or_else(listed).map(str::to_string)
}

#[cfg(test)]
mod tests;
