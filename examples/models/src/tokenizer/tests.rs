use std::path::Path;

use super::*;

/// Bytes as their own tokens, a few merges, one control token.
fn vocabulary(pre_tokenizer: &str) -> Vocabulary {
    // The byte-level alphabet: printable bytes are themselves, the others follow from U+0100.
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut shifted = 0x100..;
    let letters = (0u32..256).map(|byte| match printable(&byte) {
        true => byte,
        false => shifted.next().unwrap_or_default(),
    });
    let mut tokens: Vec<String> = letters
        .filter_map(char::from_u32)
        .map(String::from)
        .collect();
    let merges = [
        ("h", "e"),
        ("l", "l"),
        ("ll", "o"),
        ("he", "llo"),
        ("1", "2"),
    ];
    let merges = merges.map(|(left, right)| (left.to_string(), right.to_string()));
    tokens.extend(merges.iter().map(|(left, right)| format!("{left}{right}")));
    tokens.push("<end>".to_string());
    let end = tokens.len() as u32 - 1;
    let mut kinds = vec![1; tokens.len()];
    kinds[end as usize] = 3;
    Vocabulary {
        pre_tokenizer: pre_tokenizer.to_string(),
        tokens,
        kinds,
        merges: merges.to_vec(),
        bos: Some(end),
        eos: Some(end),
        eot: None,
        add_bos: true,
        chat_template: Some(
            "{% for message in messages %}\n{{ message.content.strip() }}{{ eos_token }}\n\
             {% endfor %}\n{% if messages[0]['role'] != 'user' %}\n\
             {{ raise_exception('begin with the user') }}\n{% endif %}\n\
             {% if add_generation_prompt %}>{% endif %}"
                .to_string(),
        ),
    }
}

fn tokenizer(pre_tokenizer: &str) -> Tokenizer {
    Tokenizer::from_gguf(vocabulary(pre_tokenizer)).expect("a tokenizer")
}

#[test]
fn texts_merge_and_come_back() {
    let tokenizer = tokenizer("smollm");
    let (hello, end) = (259, 261);
    assert_eq!(tokenizer.encode("hello", false).expect("ids"), [hello]);
    assert_eq!(
        tokenizer.encode("hello<end>", true).expect("ids"),
        [end, hello, end]
    );
    assert_eq!(tokenizer.eos(), [end]);
    assert_eq!(tokenizer.largest_id(), Some(end));
    let text = "hello, w\u{f6}rld \u{1f980}\n  12";
    let ids = tokenizer.encode(text, true).expect("ids");
    assert_eq!(tokenizer.decode(&ids).expect("a text"), text);
}

#[test]
fn the_rules_split_digits_differently() {
    let count = |rule: &str| tokenizer(rule).encode("12", false).expect("ids").len();
    assert_eq!(
        ["smollm", "qwen2", "llama-bpe", "gpt-2"].map(count),
        [2, 2, 1, 1]
    );
    let error = Tokenizer::from_gguf(vocabulary("viking")).expect_err("not known");
    assert!(
        error.to_string().starts_with("pre-tokenizer `viking`"),
        "{error}"
    );
}

#[test]
fn a_stream_gives_whole_characters() {
    let tokenizer = tokenizer("smollm");
    let text = "hello \u{1f980} \u{65e5}\u{672c}!";
    let ids = tokenizer.encode(text, false).expect("ids");
    let mut stream = tokenizer.stream();
    let mut pieces = Vec::new();
    for &id in &ids {
        pieces.push(stream.push(id).expect("a text"));
    }
    assert!(
        pieces
            .iter()
            .all(|piece| !piece.contains(char::REPLACEMENT_CHARACTER))
    );
    assert_eq!(pieces.concat(), text);
    assert_eq!(stream.finish().expect("a text"), "");

    // Cut off in the middle of the crab.
    let mut stream = tokenizer.stream();
    let cut = tokenizer.encode("\u{1f980}", false).expect("ids");
    assert_eq!(stream.push(cut[0]).expect("a text"), "");
    assert_eq!(stream.finish().expect("a text"), "\u{fffd}");
}

#[test]
fn broken_bytes_do_not_hold_a_stream_up() {
    let tokenizer = tokenizer("smollm");
    // A byte that begins a character, over and over, then text.
    let start = tokenizer.encode("\u{1f980}", false).expect("ids")[0];
    let mut stream = tokenizer.stream();
    let mut text = String::new();
    for id in [start; 20].into_iter().chain([259]) {
        text += &stream.push(id).expect("a text");
    }
    assert!(text.ends_with("hello"), "{text}");
}

#[test]
fn a_template_speaks_or_refuses() {
    let tokenizer = tokenizer("smollm");
    let turns = [
        Message::new("user", " hi "),
        Message::new("assistant", "ho"),
    ];
    let text = tokenizer.apply_chat_template(&turns, true).expect("a text");
    assert_eq!(text, "hi<end>\nho<end>\n>");
    let error = tokenizer
        .apply_chat_template(&turns[1..], true)
        .expect_err("refused");
    assert!(error.to_string().contains("begin with the user"), "{error}");
}

#[test]
fn vocabularies_that_contradict_themselves() {
    type Damage = fn(&mut Vocabulary);
    let cases: [(Damage, &str); 4] = [
        (|it| it.kinds.truncate(3), "262 tokens, but kinds for 3"),
        (|it| it.eos = Some(999), "special token 999 of 262"),
        (|it| it.tokens[5] = "a".to_string(), "a token occurs twice"),
        (|it| it.merges[0].0 = "nowhere".to_string(), "nowhere"),
    ];
    for (damage, expected) in cases {
        let mut vocabulary = vocabulary("smollm");
        damage(&mut vocabulary);
        let error = Tokenizer::from_gguf(vocabulary).expect_err("damaged");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// The ids are those of the Python package `tokenizers` with the rules of SmolLM2's own
/// `tokenizer.json`. Runs where `BURN_OSCAR_MODEL` names SmolLM2's GGUF file.
#[test]
fn a_real_vocabulary_gives_the_ids_of_its_own_tokenizer() {
    let Some(path) = std::env::var_os("BURN_OSCAR_MODEL") else {
        println!("skipped: BURN_OSCAR_MODEL is not set");
        return;
    };
    let device = burn::tensor::Device::flex();
    let tokenizer = crate::load::load(Path::new(&path), &device)
        .expect("loads")
        .tokenizer;
    let cases: [(&str, &[u32]); 4] = [
        (
            "In 2000 he had 1,234 pens.",
            &[
                788, 216, 34, 32, 32, 32, 384, 761, 216, 33, 28, 34, 35, 36, 24193, 30,
            ],
        ),
        (
            " = Robert Boulter = \n Robert",
            &[446, 6356, 389, 9226, 352, 446, 3717, 6356],
        ),
        (
            "caf\u{e9} \u{65e5}\u{672c}\u{8a9e} \u{1f980}!",
            &[
                83, 1939, 2756, 17097, 241, 115, 40993, 179, 120, 248, 15107, 116, 218, 17,
            ],
        ),
        (
            "<|im_start|>user\nHi<|im_end|>\n",
            &[1, 4093, 198, 26843, 2, 198],
        ),
    ];
    for (text, ids) in cases {
        assert_eq!(tokenizer.encode(text, true).expect("ids"), ids, "{text}");
    }
    let chat = tokenizer.apply_chat_template(&[Message::new("user", "Hi")], true);
    assert_eq!(
        chat.expect("a text"),
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging \
         Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(tokenizer.eos(), [2]);
}
