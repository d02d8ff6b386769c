//! Hugging Face folders that cannot be loaded.

use std::fs;
use std::path::Path;

use burn::tensor::Device;
use models::config::ModelConfig;
use models::load::load;
use serde_json::{Value, json};

use super::assert_message;
use crate::logits::checkpoint::copy;

fn assert_refused(what: &str, path: &Path, expected: &str) {
    assert_message(what, load(path, &Device::flex()).map(drop), expected);
}

#[test]
fn paths_without_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    assert_refused(
        "no such path",
        &folder.path().join("nothing here"),
        "*nothing here is neither a folder, nor a file, nor a model id of the form `org/name`; \
         give a folder with config.json and model.safetensors, or a .gguf file",
    );
    let file = folder.path().join("model.safetensors");
    fs::write(&file, b"anything").unwrap();
    assert_refused(
        "a file of another kind",
        &file,
        "*model.safetensors is not a GGUF file; for safetensors give the folder that holds \
         config.json",
    );
}

#[test]
fn missing_files() {
    for (name, file, expected) in [
        (
            "qwen3-tiny",
            "config.json",
            "* has no config.json, which a Hugging Face checkpoint needs",
        ),
        (
            "qwen3-tiny",
            "tokenizer.json",
            "* has no tokenizer.json, which a Hugging Face checkpoint needs",
        ),
        (
            "qwen3-tiny",
            "model.safetensors",
            "* has no model.safetensors or model.safetensors.index.json, which a Hugging Face \
             checkpoint needs",
        ),
        (
            "llama-tiny",
            "model-00002-of-00002.safetensors",
            "* has no model-00002-of-00002.safetensors, which a Hugging Face checkpoint needs",
        ),
    ] {
        let folder = copy(name);
        load(folder.path(), &Device::flex()).unwrap();
        fs::remove_file(folder.path().join(file)).unwrap();
        assert_refused(file, folder.path(), expected);
    }
}

/// A fixture's configuration with some keys replaced, or removed where they are null.
fn config(name: &str, changes: Value) -> String {
    let text = fs::read_to_string(copy(name).path().join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let keys = config.as_object_mut().unwrap();
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(keys.remove(key)),
            value => drop(keys.insert(key.clone(), value.clone())),
        }
    }
    config.to_string()
}

#[test]
fn configurations() {
    let missing =
        |field| format!("the configuration has no `{field}`; it is needed to build the model");
    for (name, changes, expected) in [
        (
            "qwen3-tiny",
            json!({"model_type": null}),
            missing("model_type"),
        ),
        (
            "qwen3-tiny",
            json!({"vocab_size": null}),
            missing("vocab_size"),
        ),
        (
            "qwen3-tiny",
            json!({"hidden_size": null}),
            missing("hidden_size"),
        ),
        (
            "qwen3-tiny",
            json!({"intermediate_size": null}),
            missing("intermediate_size"),
        ),
        (
            "qwen3-tiny",
            json!({"num_hidden_layers": null}),
            missing("num_hidden_layers"),
        ),
        (
            "qwen3-tiny",
            json!({"num_attention_heads": null}),
            missing("num_attention_heads"),
        ),
        (
            "llama-tiny",
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}),
            missing("low_freq_factor"),
        ),
        (
            "llama-tiny",
            json!({"model_type": "mistral"}),
            "architecture `mistral` is not supported; use a qwen3, qwen2 or llama model".into(),
        ),
        (
            "llama-tiny",
            json!({"num_key_value_heads": 3}),
            "`num_key_value_heads` is 3, which must be a divisor of the 4 attention heads".into(),
        ),
        (
            "llama-tiny",
            json!({"num_key_value_heads": 0}),
            "`num_key_value_heads` is 0, which must be from 1 to 4096".into(),
        ),
        (
            "llama-tiny",
            json!({"head_dim": null, "num_attention_heads": 5}),
            "`num_attention_heads` is 5, which must be a divisor of hidden_size 64, or head_dim \
             given"
                .into(),
        ),
        (
            "llama-tiny",
            json!({"head_dim": 33}),
            "`head_dim` is 33, which must be even, to be rotated".into(),
        ),
        (
            "llama-tiny",
            json!({"rms_norm_eps": 0.0}),
            "`rms_norm_eps` is 0, which must be finite and above 0".into(),
        ),
        (
            "llama-tiny",
            json!({"num_hidden_layers": 4_000_000_000_u64}),
            "`num_hidden_layers` is 4000000000, which must be from 1 to 1024".into(),
        ),
        (
            "llama-tiny",
            json!({"rope_scaling": {"rope_type": "longrope", "factor": 8.0}}),
            "rope scaling `longrope` is not supported; known are default, linear, llama3 and yarn"
                .into(),
        ),
        (
            "llama-tiny",
            json!({"hidden_act": "gelu"}),
            "the model uses the activation `gelu`, which is not supported".into(),
        ),
        (
            "qwen2-tiny",
            json!({"use_sliding_window": true}),
            "the model uses sliding-window attention, which is not supported".into(),
        ),
        (
            "qwen2-tiny",
            json!({"hidden_size": "wide"}),
            "not a valid config.json: invalid type: string \"wide\", expected usize at *".into(),
        ),
    ] {
        let json = config(name, changes.clone());
        assert_message(
            &changes.to_string(),
            ModelConfig::from_hf_json(&json),
            &expected,
        );
    }

    let folder = copy("llama-tiny");
    let json = config("llama-tiny", json!({"hidden_size": null}));
    fs::write(folder.path().join("config.json"), json).unwrap();
    let expected = format!("*config.json: {}", missing("hidden_size"));
    assert_refused("in a folder", folder.path(), &expected);
}

#[test]
fn weights_that_do_not_fit_the_configuration() {
    for (name, changes, expected) in [
        (
            "qwen2-tiny",
            json!({"intermediate_size": 48}),
            "tensor `model.layers.0.mlp.gate_proj.weight` has shape [32, 64]; its configuration \
             calls for [48, 64]",
        ),
        (
            "qwen2-tiny",
            json!({"num_hidden_layers": 3}),
            "* has no tensor `model.layers.2.input_layernorm.weight`, which its configuration \
             calls for",
        ),
        (
            "qwen2-tiny",
            json!({"model_type": "qwen3"}),
            "* has no tensor `model.layers.0.self_attn.q_norm.weight`, which its configuration \
             calls for",
        ),
        (
            "qwen3-tiny",
            json!({"vocab_size": 100}),
            "the tokenizer has token id 127, the embedding 100 rows; they are of different models",
        ),
    ] {
        let folder = copy(name);
        fs::write(
            folder.path().join("config.json"),
            config(name, changes.clone()),
        )
        .unwrap();
        assert_refused(&changes.to_string(), folder.path(), expected);
    }
}

#[test]
fn damaged_weights() {
    let name = "model.safetensors";
    let folder = copy("qwen2-tiny");
    let path = folder.path().join(name);
    let bytes = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for len in [
        0,
        7,
        8,
        header / 2,
        header,
        bytes.len() / 2,
        bytes.len() - 1,
    ] {
        fs::write(&path, &bytes[..len]).unwrap();
        assert_refused(
            &format!("{len} bytes"),
            folder.path(),
            "*model.safetensors is damaged: *; fetch it again",
        );
    }

    // Whatever bit of the header is flipped, loading ends, and nearly always with an error: a
    // tensor's name that is none of the model's, or the order of keys, does not matter.
    let mut refused = 0;
    let places = (0..header).step_by(11);
    for at in places.clone() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&path, &damaged).unwrap();
        refused += usize::from(load(folder.path(), &Device::flex()).is_err());
    }
    assert!(
        refused * 10 >= places.len() * 9,
        "{refused} of {} refused",
        places.len()
    );

    // Infinity in the last element of the last tensor.
    let mut damaged = bytes.clone();
    let end = bytes.len();
    damaged[end - 4..].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
    fs::write(&path, &damaged).unwrap();
    assert_refused(
        "infinity",
        folder.path(),
        "tensor `*` has -inf at element *; the checkpoint is damaged",
    );

    let folder = copy("llama-tiny");
    let index = folder.path().join("model.safetensors.index.json");
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, &text[..text.len() / 2]).unwrap();
    assert_refused(
        "half an index",
        folder.path(),
        "*model.safetensors.index.json is damaged: EOF while parsing *; fetch it again",
    );
    fs::write(&index, text.replace("model-00002-of", "../model-00002-of")).unwrap();
    assert_refused(
        "a shard elsewhere",
        folder.path(),
        "*model.safetensors.index.json is damaged: shard `../model-00002-of-00002.safetensors` is \
         not a file name; fetch it again",
    );
}

#[test]
fn damaged_tokenizers() {
    let folder = copy("qwen3-tiny");
    let path = folder.path().join("tokenizer.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() / 2]).unwrap();
    assert_refused(
        "half a tokenizer",
        folder.path(),
        "*tokenizer.json: tokenizer.json cannot be read: *",
    );
}
