//! Chat templates: the Jinja programs that models carry, with the Python methods they call.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::TokenizerError;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`; a template may know more.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A turn of the given role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
        }
    }
}

/// Runs a template with the variables that Hugging Face gives it.
pub(super) fn render(
    template: &str,
    messages: &[Message],
    add_generation_prompt: bool,
    bos_token: &str,
    eos_token: &str,
) -> Result<String, TokenizerError> {
    let mut environment = Environment::new();
    let failure = |error: Error| TokenizerError::ChatTemplate {
        reason: error.to_string(),
    };
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    environment.set_syntax(syntax.map_err(failure)?);
    environment.set_unknown_method_callback(unknown_method_callback);
    // How a template refuses a conversation, such as one that starts with the assistant.
    environment.add_function(
        "raise_exception",
        |reason: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, reason))
        },
    );
    let turn = |turn: &Message| {
        Value::from_pairs([
            ("role", turn.role.as_str()),
            ("content", turn.content.as_str()),
        ])
    };
    let messages: Vec<Value> = messages.iter().map(turn).collect();
    environment
        .render_str(
            template,
            context! { messages, add_generation_prompt, bos_token, eos_token },
        )
        .map_err(failure)
}
