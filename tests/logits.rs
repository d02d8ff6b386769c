//! The model against Hugging Face transformers, on the tiny random checkpoints of `fixtures/`.

pub mod checkpoint;
pub mod gguf;

use std::fs;

use burn_oscar::Method;
use capabilities::fixtures::folder;
use checkpoint::{Checkpoint, PREFILL};
use models::config::ModelConfig;
use models::load::load;
use models::tokenizer::Message;
use serde_json::Value;

const NAMES: [&str; 3] = ["qwen3-tiny", "qwen2-tiny", "llama-tiny"];
/// Largest difference over the largest logit.
const TOLERANCE: f32 = 1e-4;

fn largest(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(0.0, |largest, value| {
        assert!(value.is_finite());
        largest.max(value.abs())
    })
}

/// Each position, and so the whole, is within the tolerance.
pub fn assert_equal(what: &str, found: &[Vec<f32>], expected: &[Vec<f32>]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let mut worst = 0f32;
    for (position, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}");
        let difference = largest(found.iter().zip(expected).map(|(a, b)| a - b));
        let relative = difference / largest(expected.iter().copied());
        assert!(
            relative <= TOLERANCE,
            "{what}, position {position}: {relative:e}"
        );
        worst = worst.max(relative);
    }
    println!("{what}: at most {worst:.1e} of a position's largest logit");
}

/// Windows so small that most tokens of a fixture's text lie in pages.
fn paged() -> Method {
    Method::exact().with_sink(3).with_recent(5)
}

#[test]
fn prefill_and_decode_equal_transformers() {
    for name in NAMES {
        let checkpoint = Checkpoint::open(name);
        for (windows, method) in [("default", Method::exact()), ("small", paged())] {
            let mut cache = checkpoint.cache(method, 1);
            let logits = checkpoint.feed(&mut cache, &[PREFILL]);
            assert_equal(
                &format!("{name}, {windows} windows"),
                &logits,
                &checkpoint.logits,
            );
            assert_eq!(cache.lens(), [checkpoint.tokens.len()]);
        }
    }
}

#[test]
fn prefill_in_chunks_equals_transformers() {
    for name in NAMES {
        let checkpoint = Checkpoint::open(name);
        for chunk in [1, 7, 31] {
            for (windows, method) in [("default", Method::exact()), ("small", paged())] {
                let mut cache = checkpoint.cache(method, 1);
                let logits = checkpoint.feed(&mut cache, &vec![chunk; PREFILL / chunk]);
                let what = format!("{name}, chunks of {chunk}, {windows} windows");
                assert_equal(&what, &logits, &checkpoint.logits);
            }
        }
    }
}

#[test]
fn rows_of_different_lengths_equal_each_alone() {
    for name in NAMES {
        let checkpoint = Checkpoint::open(name);
        let (text, reference) = (&checkpoint.tokens, &checkpoint.logits);
        for method in [Method::exact(), paged()] {
            let mut cache = checkpoint.cache(method, 2);
            let long = cache.sequences()[0];
            let short = cache.add_sequence().expect("room for two");
            let prefill = |cache: &mut _, id, len: usize| {
                checkpoint.step(cache, &[id], &[&text[..len]]).remove(0)
            };
            let mut of_long = prefill(&mut cache, long, 70);
            let mut of_short = prefill(&mut cache, short, 30);
            of_long.append(&mut checkpoint.step(&mut cache, &[long], &[&text[70..PREFILL]])[0]);
            assert_eq!(cache.lens(), [PREFILL, 30]);

            for at in PREFILL..text.len() {
                // Half way the rows change places.
                if at == PREFILL + 16 {
                    cache.reorder(&[short, long]).expect("both are there");
                }
                let behind = at - PREFILL + 30;
                let token = |id| {
                    if id == long {
                        &text[at..=at]
                    } else {
                        &text[behind..=behind]
                    }
                };
                let ids = cache.sequences();
                let rows = [token(ids[0]), token(ids[1])];
                for (id, mut logits) in ids.iter().zip(checkpoint.step(&mut cache, &ids, &rows)) {
                    let all = if *id == long {
                        &mut of_long
                    } else {
                        &mut of_short
                    };
                    all.append(&mut logits);
                }
            }
            assert_eq!(cache.lens(), [62, 128]);
            assert_equal(&format!("{name}, the longer row"), &of_long, reference);
            assert_equal(
                &format!("{name}, the shorter row"),
                &of_short,
                &reference[..62],
            );
        }
    }
}

#[test]
fn a_gguf_of_the_same_weights_equals_transformers() {
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let path = folder.path().join(format!("{name}.gguf"));
        gguf::write(name, &path);
        let checkpoint = Checkpoint::load(name, &path);
        let logits = checkpoint.feed(&mut checkpoint.cache(Method::exact(), 1), &[PREFILL]);
        assert_equal(&format!("{name}.gguf"), &logits, &checkpoint.logits);
        assert_eq!(
            checkpoint.loaded.config.architecture,
            name.trim_end_matches("-tiny")
        );
    }
}

#[test]
fn a_missing_head_dim_is_hidden_size_over_heads() {
    for (name, expected) in [("qwen2-tiny", 64 / 2), ("llama-tiny", 64 / 4)] {
        let json = fs::read_to_string(folder().join(name).join("config.json")).unwrap();
        let mut config: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            ModelConfig::from_hf_json(&config.to_string())
                .unwrap()
                .head_dim,
            64
        );
        config.as_object_mut().unwrap().remove("head_dim");
        assert_eq!(
            ModelConfig::from_hf_json(&config.to_string())
                .unwrap()
                .head_dim,
            expected
        );
    }
}

#[test]
fn both_spellings_of_the_rotary_parameters_are_read() {
    let config = |name: &str| {
        let json = fs::read_to_string(folder().join(name).join("config.json")).unwrap();
        serde_json::from_str::<Value>(&json).unwrap()
    };
    let read = |config: &Value| ModelConfig::from_hf_json(&config.to_string()).unwrap();
    let mut llama = config("llama-tiny");
    let older = read(&llama);
    let mut rope = llama["rope_scaling"].take();
    rope["rope_theta"] = llama["rope_theta"].take();
    llama["rope_parameters"] = rope;
    assert_eq!(read(&llama), older);

    let mut qwen3 = config("qwen3-tiny");
    let newer = read(&qwen3);
    assert_eq!(newer.rope.theta, 1e6);
    let rope = qwen3["rope_parameters"].take();
    qwen3["rope_theta"] = rope["rope_theta"].clone();
    assert_eq!(read(&qwen3), newer);
}

#[test]
fn the_fingerprint_names_the_weights() {
    let print = |name| Checkpoint::open(name).loaded.fingerprint;
    let prints = NAMES.map(print);
    assert_eq!(prints, NAMES.map(print));
    assert!(prints[0] != prints[1] && prints[1] != prints[2] && prints[0] != prints[2]);
}

#[test]
fn the_tokenizer_gives_the_ids_of_transformers() {
    let path = folder().join("qwen3-tiny");
    let tokenizer = load(&path, &burn::tensor::Device::flex())
        .unwrap()
        .tokenizer;
    let expected = fs::read_to_string(path.join("tokenizer_expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
    for case in expected["texts"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let expected = ids(&case["ids"]);
        for special in [true, false] {
            assert_eq!(tokenizer.encode(text, special).unwrap(), expected, "{text}");
        }
        // Unknown words are not in the ids any more.
        if !expected.contains(&0) {
            let spaces = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(spaces(&tokenizer.decode(&expected).unwrap()), spaces(text));
            let mut stream = tokenizer.stream();
            let pieces: String = expected
                .iter()
                .map(|&id| stream.push(id).unwrap())
                .collect();
            assert_eq!(
                pieces + &stream.finish().unwrap(),
                tokenizer.decode(&expected).unwrap()
            );
        }
    }

    let chat = &expected["chat"];
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let messages: Vec<Message> = chat["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| Message::new(text(&message["role"]), text(&message["content"])))
        .collect();
    let prompt = tokenizer.apply_chat_template(&messages, true).unwrap();
    assert_eq!(prompt, text(&chat["prompt"]));
    assert_eq!(tokenizer.encode(&prompt, false).unwrap(), ids(&chat["ids"]));
    assert_eq!(tokenizer.eos(), [2]);
}
