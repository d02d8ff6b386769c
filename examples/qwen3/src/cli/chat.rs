//! `qwen3 chat`: a conversation that lives in the cache.

use std::io::{self, BufRead, IsTerminal, Write};

use burn_oscar::KvCache;
use clap::Args;
use models::{
    cli::{CliError, ModelArgs, Session, note, positive, print},
    generate::{GenerateError, GenerateOptions},
    sampling::Sampler,
    tokenizer::Message,
};

use super::{
    args::{CacheArgs, ChunkArgs, SamplingArgs},
    generate::stream,
};
use crate::report::{GenerationReport, memory_line};

/// Talk with a model
#[derive(Debug, Args)]
#[command(
    long_about = "Talk with a model.\n\n\
        Each line is a message; the model's chat template is applied and the answer is streamed to \
        standard output. The conversation stays in the cache, so each turn reads only what is new. \
        Lines that start with / are commands:\n\n  \
        /stats  speed of the last answer and memory of the cache\n  \
        /reset  forget the conversation\n  \
        /exit   leave; so does the end of the input\n\n\
        Messages may also be piped in, one per line.",
    after_long_help = "Examples:\n  \
        qwen3 chat --model model.gguf\n  \
        qwen3 chat --model model.gguf --method kivi --system 'Answer in one sentence.'\n  \
        printf 'Hello!\\nWhat did I say?\\n' | qwen3 chat --model model.gguf --quiet"
)]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    sampling: SamplingArgs,

    /// A system message at the start of the conversation [default: the template's, if it has one]
    #[arg(long, value_name = "TEXT", help_heading = "Text")]
    system: Option<String>,

    /// The most tokens of one answer
    #[arg(long, short = 'n', default_value_t = 512, value_name = "TOKENS", value_parser = positive,
          help_heading = "Text")]
    max_new_tokens: usize,

    /// Tokens that the cache has room for: the length of the whole conversation
    #[arg(long, default_value_t = 4096, value_name = "TOKENS", value_parser = positive,
          help_heading = "Text")]
    max_tokens: usize,

    #[command(flatten)]
    chunk: ChunkArgs,
}

const HELP: &str = "commands: /stats (speed and memory), /reset (forget everything), /exit";

impl ChatArgs {
    /// Reads messages until the end of the input.
    pub fn run(self) -> Result<(), CliError> {
        let sampler = self.sampling.sampler()?;
        let session = Session::open(&self.model)?;
        let method = self.cache.method()?;
        let name = method.name().to_string();
        let cache = session.cache(method, self.max_tokens)?;
        let options = GenerateOptions {
            max_new_tokens: self.max_new_tokens,
            max_tokens: self.max_tokens,
            chunk: self.chunk.chunk,
            stop_tokens: session.stop_tokens(),
        };
        let mut conversation = Conversation::new(cache, self.system);
        let mut chat = Chat {
            session: &session,
            method: name,
            sampler,
            options,
            last: None,
        };
        let interactive = io::stdin().is_terminal();
        if interactive {
            note(session.quiet, &format!("method {}; {HELP}", chat.method));
        }
        let mut lines = io::stdin().lock().lines();
        loop {
            if interactive {
                let mut err = io::stderr().lock();
                let _ = write!(err, "> ").and_then(|()| err.flush());
            }
            let Some(line) = lines.next() else { break };
            let line = line.map_err(|source| CliError::Read {
                path: "-".into(),
                source,
            })?;
            match line.trim() {
                "" => {}
                "/exit" | "/quit" => break,
                "/reset" => conversation.reset(),
                "/stats" => chat.stats(&conversation),
                command if command.starts_with('/') => {
                    note(false, &format!("there is no command {command}; {HELP}"));
                }
                message => chat.answer(&mut conversation, message)?,
            }
        }
        Ok(())
    }
}

/// The messages, and the tokens of them that the cache holds.
struct Conversation {
    cache: KvCache,
    held: Vec<u32>,
    messages: Vec<Message>,
    /// Messages that a reset keeps: the system message, if there is one.
    kept: usize,
}

impl Conversation {
    fn new(cache: KvCache, system: Option<String>) -> Self {
        let messages: Vec<_> = system
            .map(|text| Message::new("system", text))
            .into_iter()
            .collect();
        Self {
            cache,
            held: Vec::new(),
            kept: messages.len(),
            messages,
        }
    }

    fn reset(&mut self) {
        self.cache.reset();
        self.held.clear();
        self.messages.truncate(self.kept);
    }

    /// Cuts the cache back to what it shares with `wanted` and returns how many tokens that is. At
    /// least one token of `wanted` remains to be read: its logits are needed.
    ///
    /// Usually everything held is shared. It is not where the template rewrites earlier messages,
    /// or where the answer's text is tokenised differently from how it was generated.
    fn keep_common(&mut self, wanted: &[u32]) -> Result<usize, CliError> {
        let common = common_prefix(&self.held, wanted);
        if common < self.held.len() {
            let sequence = self.cache.sequences().first().copied();
            if let Some(sequence) = sequence.filter(|_| common > 0) {
                self.cache.truncate(sequence, common)?;
            } else {
                self.cache.reset();
            }
            self.held.truncate(common);
        }
        Ok(common)
    }

    /// After a generation: `wanted` and the answer are in the cache, but for what did not fit.
    fn remember(&mut self, wanted: Vec<u32>, answer: &[u32]) {
        self.held = wanted;
        self.held.extend_from_slice(answer);
        let len = self.cache.lens().first().copied().unwrap_or(0);
        self.held.truncate(len);
    }
}

/// How many leading tokens of `held` may stay when `wanted` is to be read.
fn common_prefix(held: &[u32], wanted: &[u32]) -> usize {
    held.iter()
        .zip(wanted)
        .take_while(|(held, wanted)| held == wanted)
        .count()
        .min(wanted.len().saturating_sub(1))
}

struct Chat<'a> {
    session: &'a Session,
    method: String,
    sampler: Sampler,
    options: GenerateOptions,
    last: Option<GenerationReport>,
}

impl Chat<'_> {
    /// Answers one message. A message that does not fit is dropped with a note, and the
    /// conversation goes on.
    fn answer(&mut self, conversation: &mut Conversation, message: &str) -> Result<(), CliError> {
        let tokenizer = self.session.tokenizer();
        conversation.messages.push(Message::new("user", message));
        let text = tokenizer.apply_chat_template(&conversation.messages, true)?;
        let wanted = tokenizer.encode(&text, false)?;
        let common = conversation.keep_common(&wanted)?;
        let mut answer = String::new();
        let result = stream(
            self.session,
            &mut conversation.cache,
            &wanted[common..],
            &mut self.sampler,
            &self.options,
            |piece| {
                answer.push_str(piece);
                print(piece)
            },
        );
        let generation = match result {
            Ok(generation) => generation,
            Err(CliError::Generate(GenerateError::PromptTooLong { .. })) => {
                conversation.messages.pop();
                note(
                    false,
                    &format!(
                        "this message does not fit: the cache has room for {} tokens and the \
                         conversation would have {}; /reset forgets it, --max-tokens makes room",
                        self.options.max_tokens,
                        wanted.len()
                    ),
                );
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        print("\n")?;
        conversation.remember(wanted, &generation.tokens);
        conversation
            .messages
            .push(Message::new("assistant", answer.as_str()));
        self.last = Some(GenerationReport::new(
            &self.method,
            answer,
            &generation,
            conversation.cache.memory(),
            None,
        ));
        Ok(())
    }

    fn stats(&self, conversation: &Conversation) {
        let text = match &self.last {
            Some(last) if !conversation.held.is_empty() => last.summary(),
            _ => memory_line(&conversation.cache.memory()),
        };
        note(false, &text);
    }
}

#[cfg(test)]
mod tests {
    use super::common_prefix;

    #[test]
    fn one_token_is_always_read_again() {
        assert_eq!(common_prefix(&[], &[1, 2]), 0);
        assert_eq!(common_prefix(&[1, 2], &[1, 2, 3]), 2);
        assert_eq!(common_prefix(&[1, 2, 3], &[1, 2, 3]), 2);
        assert_eq!(common_prefix(&[1, 2, 3, 4], &[1, 9, 3, 4]), 1);
        assert_eq!(common_prefix(&[1], &[]), 0);
    }
}
