use std::fs;

use serde_json::json;

use super::*;
use crate::testing::{load_tiny, text};

fn task(value: Value) -> Task {
    serde_json::from_value(value).expect("a task")
}

#[test]
fn windows_have_all_positions_and_stretches() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = text(folder.path(), 900);
    let tokenizer = load_tiny().tokenizer;
    let mut value =
        json!({"kind": "perplexity", "text": path, "window": 200, "windows": 3, "past": 50});
    let samples = task(value.clone()).samples(&tokenizer).expect("samples");
    let starts: Vec<_> = samples.iter().map(|sample| sample.item.clone()).collect();
    assert_eq!(
        starts,
        [
            json!({"start": 0}),
            json!({"start": 233}),
            json!({"start": 466})
        ]
    );
    let spans = &samples[0].branches[0].spans;
    let labels: Vec<_> = spans.iter().map(|span| span.label.as_str()).collect();
    assert_eq!(labels, ["all", "from 50", "1-50", "50-100", "100-200"]);
    assert_eq!(spans[0].range, 1..200);

    value["consecutive"] = json!(true);
    value["only"] = json!([0, 2]);
    let samples = task(value.clone()).samples(&tokenizer).expect("samples");
    let starts: Vec<_> = samples.iter().map(|sample| sample.item.clone()).collect();
    assert_eq!(starts, [json!({"start": 0}), json!({"start": 400})]);

    value["windows"] = json!(5);
    let error = task(value.clone())
        .samples(&tokenizer)
        .expect_err("too short");
    assert!(
        error
            .to_string()
            .contains("900 tokens, perplexity needs 1000"),
        "{error}"
    );
    value["past"] = json!(200);
    let error = task(value)
        .samples(&tokenizer)
        .expect_err("nothing to score");
    assert!(error.to_string().contains("--past"), "{error}");
}

#[test]
fn questions_follow_the_same_examples() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("q.jsonl");
    let line = |i: usize| json!({"question": format!("what is {i}"), "answer": "the time is more"});
    let lines: Vec<_> = (0..40).map(|i| line(i).to_string()).collect();
    fs::write(&path, lines.join("\n")).expect("writes");
    let tokenizer = load_tiny().tokenizer;
    let value = json!({"kind": "questions", "file": path, "shots": 4, "questions": 18});
    let samples = task(value.clone()).samples(&tokenizer).expect("samples");
    assert_eq!(samples.len(), 2);
    assert_eq!(samples[0].branches.len(), 16);
    assert_eq!(samples[0].prefix, samples[1].prefix);
    assert_eq!(samples[0].item["questions"][0], 4);
    let branch = &samples[0].branches[0];
    let answer = &branch.tokens[branch.spans[0].range.clone()];
    assert_eq!(
        tokenizer.decode(answer).expect("a text"),
        "the time is more"
    );
    assert_eq!(branch.spans[0].range.end, branch.tokens.len());

    let many = json!({"kind": "questions", "file": path, "shots": 4, "questions": 37});
    let error = task(many).samples(&tokenizer).expect_err("too few");
    assert!(error.to_string().contains("40 questions"), "{error}");
    fs::write(&path, "{\"question\": \"x\", \"answer\": \"y\"}\n{}\n").expect("writes");
    let error = task(value).samples(&tokenizer).expect_err("not a question");
    assert!(error.to_string().contains("line 2"), "{error}");
}

#[test]
fn needles_lie_where_they_should() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = text(folder.path(), 900);
    let tokenizer = load_tiny().tokenizer;
    let value = json!({"kind": "retrieval", "text": path, "lengths": [200, 300],
                       "depths": [0.0, 0.5, 1.0], "repeats": 2});
    let samples = task(value).samples(&tokenizer).expect("samples");
    assert_eq!(samples.len(), 12);
    assert!(samples.iter().all(|sample| {
        sample.prefix.len() == sample.task.settings["length"].as_u64().expect("a length") as usize
    }));
    // The sentence begins with the word `The`, which the tiny tokenizer does not know, and the hay
    // holds known words only.
    let at = |sample: &Sample| sample.prefix.iter().position(|&token| token == 0);
    let needle = tokenizer.encode(" The secret number of Lisbon is 12345.", false);
    let needle = needle.expect("tokens").len();
    assert_eq!(at(&samples[0]), Some(0));
    assert_eq!(
        at(&samples[1]),
        Some((200 - needle) / 2 + (200 - needle) % 2)
    );
    assert_eq!(at(&samples[2]), Some(200 - needle));
    assert_ne!(samples[0].item, samples[3].item);

    let several = json!({"kind": "retrieval", "text": path, "lengths": [300], "needles": 3});
    let samples = task(several).samples(&tokenizer).expect("samples");
    assert_eq!((samples.len(), samples[0].branches.len()), (1, 3));
    assert_eq!(samples[0].prefix.len(), 300);
    let labels: Vec<_> = samples[0]
        .branches
        .iter()
        .map(|b| b.spans[0].label.clone())
        .collect();
    assert_eq!(labels, ["depth 17 %", "depth 50 %", "depth 83 %"]);

    for (wrong, expected) in [
        (json!({"depths": [1.5]}), "depth 1.5"),
        (json!({"needles": 0}), "0 needles"),
        (json!({"lengths": [5]}), "do not fit"),
        (json!({"lengths": [5000]}), "retrieval needs 5000"),
        (json!({"repeats": 0}), "at least one"),
    ] {
        let mut value = json!({"kind": "retrieval", "text": path, "lengths": [200]});
        for (name, setting) in wrong.as_object().expect("an object") {
            value[name] = setting.clone();
        }
        let error = task(value)
            .samples(&tokenizer)
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn the_passage_comes_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = text(folder.path(), 900);
    let tokenizer = load_tiny().tokenizer;
    let value =
        json!({"kind": "recall", "text": path, "passage": 50, "context": 200, "windows": 2});
    let samples = task(value).samples(&tokenizer).expect("samples");
    assert_eq!(samples.len(), 2);
    let branch = &samples[1].branches[0];
    assert_eq!(branch.tokens[75..125], branch.tokens[200..250]);
    assert_eq!(branch.spans[0].range, 216..250);
    let short = json!({"kind": "recall", "text": path, "passage": 16});
    assert!(task(short).samples(&tokenizer).is_err());
}
