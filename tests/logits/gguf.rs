//! A GGUF file made of a fixture's weights, as the converters of that format write it.

use std::fs;
use std::path::Path;

use capabilities::fixtures::folder;
use half::{bf16, f16};
use models::config::{ModelConfig, RopeScaling};
use safetensors::{Dtype, SafeTensors};

/// A tensor, outputs first.
struct Weight {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// Writes the fixture `name` as one GGUF file at `path`: weights in f32, and a byte-level
/// vocabulary without merges.
pub fn write(name: &str, path: &Path) {
    let folder = folder().join(name);
    let json = fs::read_to_string(folder.join("config.json")).expect("the fixture");
    let config = ModelConfig::from_hf_json(&json).expect("a configuration");
    let mut weights = Vec::new();
    for entry in fs::read_dir(&folder).expect("the fixture") {
        let path = entry.expect("an entry").path();
        let file = path.file_name().expect("a name").to_string_lossy();
        if file.starts_with("model") && file.ends_with(".safetensors") {
            weights.extend(read_weights(&path, &config));
        }
    }
    if let Some(divisors) = divisors(&config) {
        weights.push(Weight {
            name: "rope_freqs.weight".into(),
            shape: vec![divisors.len()],
            values: divisors,
        });
    }
    weights.sort_by(|a, b| a.name.cmp(&b.name));
    fs::write(path, file(&config, &weights)).expect("writes");
}

fn read_weights(path: &Path, config: &ModelConfig) -> Vec<Weight> {
    let bytes = fs::read(path).expect("the fixture");
    let tensors = SafeTensors::deserialize(&bytes).expect("a valid fixture");
    let weight = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let words = |size: usize| view.data().chunks_exact(size);
        let values: Vec<f32> = match view.dtype() {
            Dtype::F32 => words(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            Dtype::F16 => words(2)
                .map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect(),
            Dtype::BF16 => words(2)
                .map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect(),
            other => panic!("{name}: {other:?} is not read"),
        };
        let shape = view.shape().to_vec();
        let rotated = name.contains("q_proj") || name.contains("k_proj");
        let values = match rotated && config.architecture == "llama" {
            true => interleaved(&values, config.head_dim, shape[1..].iter().product()),
            false => values,
        };
        let name = gguf_name(&name);
        Weight {
            name,
            shape,
            values,
        }
    };
    tensors.tensors().into_iter().map(weight).collect()
}

/// Rows of each head in the order of a `llama` file: channel `i` of the first half, then channel
/// `i` of the second.
fn interleaved(values: &[f32], head_dim: usize, row: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks(row).collect();
    rows.chunks(head_dim)
        .flat_map(|head| {
            let (first, second) = head.split_at(head_dim / 2);
            first.iter().zip(second).flat_map(|(a, b)| [*a, *b])
        })
        .flatten()
        .copied()
        .collect()
}

/// What Llama 3's scaling divides each frequency by, from the rule as its authors published it.
fn divisors(config: &ModelConfig) -> Option<Vec<f32>> {
    let RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original_max_position_embeddings,
    } = config.rope.scaling
    else {
        return None;
    };
    let length = original_max_position_embeddings as f64;
    let divisor = |i: usize| {
        let exponent = 2.0 * i as f64 / config.head_dim as f64;
        let wavelength = std::f64::consts::TAU * config.rope.theta.powf(exponent);
        if wavelength < length / high_freq_factor {
            1.0
        } else if wavelength > length / low_freq_factor {
            factor
        } else {
            let smooth =
                (length / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    Some(
        (0..config.head_dim / 2)
            .map(|i| divisor(i) as f32)
            .collect(),
    )
}

fn gguf_name(name: &str) -> String {
    let name = match name.strip_prefix("model.layers.") {
        Some(rest) => format!("blk.{rest}"),
        None => name.to_string(),
    };
    [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ]
    .iter()
    .fold(name, |name, (from, to)| name.replace(from, to))
}

/// The bytes of a value with its type in front.
enum Value {
    U32(u32),
    F32(f32),
    Text(&'static str),
    Texts(Vec<String>),
    Numbers(Vec<i32>),
}

fn file(config: &ModelConfig, weights: &[Weight]) -> Vec<u8> {
    let size = |size: usize| Value::U32(size as u32);
    let own = |key: &str| format!("{}.{key}", config.architecture);
    let architecture = match config.architecture.as_str() {
        "llama" => "llama",
        "qwen2" => "qwen2",
        _ => "qwen3",
    };
    let metadata = [
        (
            "general.architecture".to_string(),
            Value::Text(architecture),
        ),
        (own("block_count"), size(config.num_layers)),
        (own("context_length"), size(config.max_position_embeddings)),
        (own("embedding_length"), size(config.hidden_size)),
        (own("feed_forward_length"), size(config.intermediate_size)),
        (own("attention.head_count"), size(config.num_heads)),
        (own("attention.head_count_kv"), size(config.num_kv_heads)),
        (own("attention.key_length"), size(config.head_dim)),
        (own("attention.value_length"), size(config.head_dim)),
        (
            own("attention.layer_norm_rms_epsilon"),
            Value::F32(config.rms_norm_eps as f32),
        ),
        (own("rope.freq_base"), Value::F32(config.rope.theta as f32)),
        ("tokenizer.ggml.model".into(), Value::Text("gpt2")),
        ("tokenizer.ggml.pre".into(), Value::Text("gpt-2")),
        (
            "tokenizer.ggml.tokens".into(),
            Value::Texts((0..config.vocab_size).map(|id| format!("<{id}>")).collect()),
        ),
        (
            "tokenizer.ggml.token_type".into(),
            Value::Numbers(vec![1; config.vocab_size]),
        ),
        ("tokenizer.ggml.merges".into(), Value::Texts(Vec::new())),
        ("tokenizer.ggml.eos_token_id".into(), size(2)),
    ];

    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend((weights.len() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_text(&mut bytes, &key);
        put_value(&mut bytes, value);
    }
    let mut offset = 0;
    for weight in weights {
        put_text(&mut bytes, &weight.name);
        bytes.extend((weight.shape.len() as u32).to_le_bytes());
        for &size in weight.shape.iter().rev() {
            bytes.extend((size as u64).to_le_bytes());
        }
        let f32_type = 0u32;
        bytes.extend(f32_type.to_le_bytes());
        bytes.extend((offset as u64).to_le_bytes());
        offset += (4 * weight.values.len()).next_multiple_of(ALIGNMENT);
    }
    for weight in weights {
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes.extend(weight.values.iter().flat_map(|value| value.to_le_bytes()));
    }
    bytes
}

/// Bytes to which the data of a tensor is aligned.
const ALIGNMENT: usize = 32;

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

fn put_value(bytes: &mut Vec<u8>, value: Value) {
    let (u32_type, i32_type, f32_type, text_type, list_type) = (4u32, 5u32, 6u32, 8u32, 9u32);
    let list = |bytes: &mut Vec<u8>, of: u32, len: usize| {
        bytes.extend(list_type.to_le_bytes());
        bytes.extend(of.to_le_bytes());
        bytes.extend((len as u64).to_le_bytes());
    };
    match value {
        Value::U32(number) => {
            bytes.extend(u32_type.to_le_bytes());
            bytes.extend(number.to_le_bytes());
        }
        Value::F32(number) => {
            bytes.extend(f32_type.to_le_bytes());
            bytes.extend(number.to_le_bytes());
        }
        Value::Text(text) => {
            bytes.extend(text_type.to_le_bytes());
            put_text(bytes, text);
        }
        Value::Texts(texts) => {
            list(bytes, text_type, texts.len());
            texts.iter().for_each(|text| put_text(bytes, text));
        }
        Value::Numbers(numbers) => {
            list(bytes, i32_type, numbers.len());
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
    }
}
