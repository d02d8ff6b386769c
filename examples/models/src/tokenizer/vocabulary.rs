//! A byte-level BPE tokenizer rebuilt from the lists in a GGUF file.
//!
//! The file has the vocabulary and the merges, but only the name of the rule by which text is
//! split before merging. The rules below are those of the models' own `tokenizer.json` files.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, Tokenizer};

use super::TokenizerError;

/// Qwen2 and Qwen3: words with one leading character, single digits, punctuation, white space.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Llama 3: as Qwen2, but digits in groups of up to three.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Kind of a token that is never part of a text, such as an end mark.
const CONTROL: i32 = 3;
/// Kind of a token that is found in a text before it is split.
const USER_DEFINED: i32 = 4;

/// The tokenizer's data in a GGUF file.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// Name of the rule that splits text.
    pub(crate) pre_tokenizer: String,
    /// Token texts in the byte-level alphabet, by id.
    pub(crate) tokens: Vec<String>,
    /// Kinds of the tokens, by id.
    pub(crate) kinds: Vec<i32>,
    /// Pairs that merge, first ones first.
    pub(crate) merges: Vec<(String, String)>,
    /// Token that begins a text.
    pub(crate) bos: Option<u32>,
    /// Token that ends a text.
    pub(crate) eos: Option<u32>,
    /// Token that ends a turn.
    pub(crate) eot: Option<u32>,
    /// Whether texts begin with `bos`.
    pub(crate) add_bos: bool,
    /// Jinja program for conversations.
    pub(crate) chat_template: Option<String>,
}

impl Vocabulary {
    /// Builds the tokenizer.
    pub(super) fn build(&self) -> Result<Tokenizer, TokenizerError> {
        let damaged = |reason: String| TokenizerError::Vocabulary { reason };
        if self.tokens.len() != self.kinds.len() {
            let (tokens, kinds) = (self.tokens.len(), self.kinds.len());
            return Err(damaged(format!("{tokens} tokens, but kinds for {kinds}")));
        }
        for id in [self.bos, self.eos, self.eot].into_iter().flatten() {
            if id as usize >= self.tokens.len() {
                return Err(damaged(format!(
                    "special token {id} of {}",
                    self.tokens.len()
                )));
            }
        }
        let vocab: Vocab = self.tokens.iter().cloned().zip(0..).collect();
        if vocab.len() != self.tokens.len() {
            return Err(damaged("a token occurs twice".to_string()));
        }
        let rules = Rules::named(&self.pre_tokenizer)?;
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, self.merges.clone())
            .ignore_merges(rules.whole_words)
            .build()
            .map_err(|error| damaged(error.to_string()))?;

        let mut tokenizer = Tokenizer::new(bpe);
        tokenizer
            .with_pre_tokenizer(Some(Sequence::new(rules.pre_tokenizers)))
            .with_decoder(Some(ByteLevel::new(false, true, true)));
        if rules.compose {
            tokenizer
                .with_normalizer(Some(NFC))
                .map_err(|error| damaged(error.to_string()))?;
        }
        let of_kind = |wanted: i32| {
            let kinds = self.kinds.iter().zip(&self.tokens);
            kinds
                .filter(move |(kind, _)| **kind == wanted)
                .map(|(_, token)| token)
        };
        let special = of_kind(CONTROL).map(|token| AddedToken::from(token, true));
        let defined =
            of_kind(USER_DEFINED).map(|token| AddedToken::from(token, false).normalized(false));
        tokenizer
            .add_special_tokens(special)
            .and_then(|_| tokenizer.add_tokens(defined))
            .map_err(|error| damaged(error.to_string()))?;
        Ok(tokenizer)
    }
}

/// How text is prepared for merging.
struct Rules {
    pre_tokenizers: Vec<PreTokenizerWrapper>,
    /// Whether a piece that is a token is taken whole, whatever the merges say.
    whole_words: bool,
    /// Whether text is brought to Unicode's composed form first.
    compose: bool,
}

impl Rules {
    fn named(name: &str) -> Result<Self, TokenizerError> {
        let rules = |pre_tokenizers, whole_words, compose| Self {
            pre_tokenizers,
            whole_words,
            compose,
        };
        match name {
            "gpt-2" => Ok(rules(
                vec![ByteLevel::new(false, true, true).into()],
                false,
                false,
            )),
            "smollm" => {
                let digits = Digits::new(true).into();
                Ok(rules(
                    vec![digits, ByteLevel::new(false, true, true).into()],
                    false,
                    false,
                ))
            }
            "qwen2" => Ok(rules(split_by(QWEN2)?, false, true)),
            "llama-bpe" | "llama3" | "llama-v3" => Ok(rules(split_by(LLAMA3)?, true, false)),
            _ => Err(TokenizerError::PreTokenizer {
                name: name.to_string(),
            }),
        }
    }
}

/// Splits by a regular expression, each match a piece, then maps bytes to their alphabet.
fn split_by(pattern: &str) -> Result<Vec<PreTokenizerWrapper>, TokenizerError> {
    let pattern = SplitPattern::Regex(pattern.to_string());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(|error| {
        TokenizerError::Vocabulary {
            reason: error.to_string(),
        }
    })?;
    Ok(vec![
        split.into(),
        ByteLevel::new(false, true, false).into(),
    ])
}
