//! The command line as clap sees it.

use clap::{CommandFactory, Parser};

use super::Cli;

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_option_is_explained() {
    for command in Cli::command().get_subcommands_mut() {
        let name = command.get_name().to_string();
        assert!(
            command.get_long_about().is_some(),
            "{name} has no long help"
        );
        assert!(
            command.get_after_long_help().is_some(),
            "{name} has no examples"
        );
        for argument in command.get_arguments() {
            assert!(
                argument.get_help().is_some(),
                "{name}: {} is not explained",
                argument.get_id()
            );
        }
        assert!(!command.render_long_help().to_string().is_empty());
    }
}

#[test]
fn the_issue_s_command_lines_are_accepted() {
    for line in [
        "qwen3 generate --model m.gguf --prompt x --max-new-tokens 5 --method kivi --sink 0 \
         --recent 128 --bits 4 --device flex --temperature 0.7 --top-k 40 --top-p 0.9 --seed 1 \
         --json --chunk 64 --max-tokens 100",
        "qwen3 generate --model m.gguf --prompt-file - --artifact a.safetensors",
        "qwen3 chat --model Qwen/Qwen3-0.6B --method exact",
        "qwen3 perplexity --model M --text F --window 1024 --windows 4 --method kivi --json",
        "qwen3 compare --model M --text F --methods exact,kivi --artifact a --artifact b --json",
        "qwen3 demo --model M --prompt-file F",
    ] {
        let parsed = Cli::try_parse_from(line.split_whitespace());
        assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
    }
}

#[test]
fn wrong_values_are_refused() {
    for line in [
        "qwen3",
        "qwen3 generate --prompt x",
        "qwen3 generate --model m --prompt x --prompt-file f",
        "qwen3 generate --model m --prompt x --method kivy",
        "qwen3 generate --model m --prompt x --bits two",
        "qwen3 generate --model m --prompt x --chunk 0",
        "qwen3 generate --model m --prompt x --device tpu",
        "qwen3 perplexity --model m",
        "qwen3 perplexity --model m --text f --positions-from 0",
    ] {
        assert!(
            Cli::try_parse_from(line.split_whitespace()).is_err(),
            "{line}"
        );
    }
}
