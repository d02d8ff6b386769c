use serde_json::{Value, json};

use super::*;

fn qwen3() -> Value {
    json!({
        "model_type": "qwen3", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "rms_norm_eps": 1e-6, "max_position_embeddings": 512,
        "tie_word_embeddings": true, "eos_token_id": 7, "hidden_act": "silu",
        "rope_theta": 1000000, "rope_scaling": null, "sliding_window": null,
    })
}

/// The configuration with one key set to a value.
fn with(key: &str, value: Value) -> Result<ModelConfig, ConfigError> {
    let mut config = qwen3();
    config[key] = value;
    ModelConfig::from_hf_json(&config.to_string())
}

#[test]
fn the_architectures_differ_by_switches() {
    let switches = |name: &str, bias: bool| {
        let mut config = qwen3();
        config["model_type"] = json!(name);
        config["attention_bias"] = json!(bias);
        let config = ModelConfig::from_hf_json(&config.to_string()).expect("a model");
        (
            config.qk_norm,
            config.attention_bias,
            config.attention_output_bias,
        )
    };
    assert_eq!(switches("qwen3", false), (true, false, false));
    assert_eq!(switches("qwen2", false), (false, true, false));
    assert_eq!(switches("llama", false), (false, false, false));
    assert_eq!(switches("llama", true), (false, true, true));
}

#[test]
fn end_tokens_are_one_or_several() {
    assert_eq!(
        with("eos_token_id", json!(7)).expect("one").eos_token_ids,
        [7]
    );
    assert_eq!(
        with("eos_token_id", json!([7, 9]))
            .expect("two")
            .eos_token_ids,
        [7, 9]
    );
    assert!(
        with("eos_token_id", json!(null))
            .expect("none")
            .eos_token_ids
            .is_empty()
    );
}

#[test]
fn yarn_has_an_attention_factor() {
    let scaling = |rope: Value| with("rope_scaling", rope).expect("a model").rope.scaling;
    let factor = |rope: Value| match scaling(rope) {
        RopeScaling::Yarn {
            attention_factor,
            original_max_position_embeddings,
            ..
        } => (attention_factor, original_max_position_embeddings),
        other => panic!("{other:?}"),
    };
    let recommended = 0.1 * 4f64.ln() + 1.0;
    // Both names of the kind at once, as some files have them.
    let yarn = json!({"rope_type": "yarn", "type": "yarn", "factor": 4.0});
    assert_eq!(factor(yarn.clone()), (recommended, 512));
    let mut given = yarn.clone();
    given["attention_factor"] = json!(1.5);
    given["original_max_position_embeddings"] = json!(128);
    assert_eq!(factor(given), (1.5, 128));
    let mut scaled = yarn;
    (scaled["mscale"], scaled["mscale_all_dim"]) = (json!(1.0), json!(1.0));
    assert_eq!(factor(scaled).0, 1.0);
}

#[test]
fn what_is_not_computed_is_refused() {
    for (key, value, expected) in [
        ("model_type", json!("gemma3"), "`gemma3` is not supported"),
        ("hidden_act", json!("gelu"), "the activation `gelu`"),
        ("mlp_bias", json!(true), "biases in the feed-forward layers"),
        (
            "use_sliding_window",
            json!(true),
            "sliding-window attention",
        ),
        (
            "layer_types",
            json!(["full_attention", "sliding_attention"]),
            "sliding-window",
        ),
        ("quantization_config", json!({}), "quantised weights"),
        ("partial_rotary_factor", json!(0.5), "rotation of a part"),
        (
            "rope_scaling",
            json!({"rope_type": "dynamic", "factor": 2}),
            "`dynamic`",
        ),
        (
            "rope_scaling",
            json!({"rope_type": "linear"}),
            "no `rope factor`",
        ),
        (
            "rope_scaling",
            json!({"type": "linear", "factor": 0}),
            "`rope factor` is 0",
        ),
        ("rope_theta", json!(1), "`rope_theta` is 1"),
        ("rms_norm_eps", json!(0), "`rms_norm_eps` is 0"),
        ("vocab_size", json!(null), "no `vocab_size`"),
        (
            "vocab_size",
            json!(1u64 << 40),
            "`vocab_size` is 1099511627776",
        ),
        ("num_hidden_layers", json!(0), "`num_hidden_layers` is 0"),
        (
            "num_key_value_heads",
            json!(3),
            "a divisor of the 4 attention heads",
        ),
        (
            "head_dim",
            json!(33),
            "`head_dim` is 33, which must be even",
        ),
        ("hidden_size", json!("wide"), "not a valid config.json"),
    ] {
        match with(key, value) {
            Err(error) => assert!(error.to_string().contains(expected), "{error}"),
            Ok(config) => panic!("{key}: {config:?}"),
        }
    }
}
