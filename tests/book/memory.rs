//! The table of bytes by model, context and batch, and that a cache takes as much.

use std::borrow::Cow;

use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_oscar::method::Side;
use burn_oscar::quantizer::{ChannelBits, PageSpec, Quantizer, Role, Segment};
use burn_oscar::{AttentionOptions, KvCacheConfig, Method};

use super::computed;

/// Layers, KV heads and head_dim.
type Shape = (usize, usize, usize);

const MODELS: &[(&str, Shape)] = &[
    ("SmolLM2-135M", (30, 3, 64)),
    ("Qwen2.5-7B", (28, 4, 128)),
    ("Llama-3.1-8B", (32, 8, 128)),
    ("Qwen3-4B, Qwen3-8B", (36, 8, 128)),
    ("Llama-3.1-70B", (80, 8, 128)),
];

/// Tokens of a sequence, and sequences.
const SIZES: &[(usize, usize)] = &[(8192, 1), (32768, 1), (32768, 16), (131_072, 1)];

/// Bytes of what a cache holds after `tokens` tokens, with `activation` bytes a number where it is
/// exact: the arithmetic of the page.
fn bytes(
    method: &Method,
    (layers, kv_heads, head_dim): Shape,
    tokens: usize,
    activation: usize,
) -> usize {
    let page_tokens = method.page_tokens();
    let sinks = tokens.min(method.sink());
    let pages = (tokens - sinks).saturating_sub(method.recent()) / page_tokens;
    let recent = tokens - sinks - pages * page_tokens;
    let vector = kv_heads * head_dim * activation;
    let page = |side: &Side, role| match &side.quantizer {
        Some(quantizer) => {
            PageSpec::new(quantizer, role, head_dim, page_tokens).page_bytes(kv_heads)
        }
        None => page_tokens * vector,
    };
    let page = page(method.key_side(), Role::Key) + page(method.value_side(), Role::Value);
    layers * (pages * page + 2 * vector * (sinks + recent))
}

/// `transform_coded` packs like this; its transforms take no part in the bytes of tokens.
fn transform_coded() -> Method {
    let segments = vec![Segment::new(4, 4), Segment::new(8, 2), Segment::new(4, 0)];
    let method = Method::hadamard_centred();
    let key = Side {
        quantizer: method
            .key_side()
            .quantizer
            .clone()
            .map(|quantizer| Quantizer {
                bits: ChannelBits::Segments(Cow::Owned(segments)),
                ..quantizer
            }),
        ..method.key_side().clone()
    };
    method.with_key_side(key)
}

fn methods() -> Vec<(&'static str, Method)> {
    vec![
        ("`exact`", Method::exact()),
        ("`kivi`", Method::kivi()),
        ("`oscar_scaled`", Method::oscar_scaled()),
        ("`hadamard`, `oscar`", Method::hadamard()),
        ("`transform_coded`", transform_coded()),
        ("`hadamard_centred`", Method::hadamard_centred()),
    ]
}

#[test]
fn the_table_of_models() {
    let methods = methods();
    let names: Vec<_> = methods.iter().map(|(name, _)| *name).collect();
    let mut table = format!("| model | tokens | batch | {} |\n", names.join(" | "));
    table += &format!("|---|--:|--:|{}\n", "--:|".repeat(methods.len()));
    for &(model, shape) in MODELS {
        for &(tokens, batch) in SIZES {
            // SmolLM2 ends at 8,192 positions.
            if model.starts_with("SmolLM2") && tokens > 8192 {
                continue;
            }
            let cells = methods.iter().map(|(_, method)| {
                let mib = (batch * bytes(method, shape, tokens, 2)) as f64 / f64::from(1 << 20);
                match mib < 1024.0 {
                    true => format!("{mib:.0} MiB"),
                    false => format!("{:.2} GiB", mib / 1024.0),
                }
            });
            let cells = cells.collect::<Vec<_>>().join(" | ");
            table += &format!("| {model} | {tokens} | {batch} | {cells} |\n");
        }
    }
    computed("memory.md", "models", &table);
}

/// The report counts tensors; the table is arithmetic.
#[test]
fn a_cache_takes_what_the_arithmetic_says() {
    let device = Device::flex();
    let shape @ (layers, kv_heads, head_dim) = (2, 3, 64);
    for (name, method) in methods() {
        let mut cache = KvCacheConfig::new(layers, kv_heads, head_dim)
            .with_method(method.clone())
            .with_max_tokens(2048)
            .init(&device)
            .unwrap();
        let mut held = 0;
        for tokens in [1, 64, 319, 320, 383, 384, 575, 576, 1500] {
            let x = [1, kv_heads, tokens - held, head_dim];
            let x = Tensor::<4>::random(x, Distribution::Default, &device);
            for layer in 0..layers {
                cache
                    .extend(layer, x.clone(), x.clone(), AttentionOptions::causal())
                    .unwrap();
            }
            held = tokens;
            let report = cache.memory();
            let expected = bytes(&method, shape, tokens, DType::F32.size());
            assert_eq!(report.resident_bytes, expected, "{name}, {tokens} tokens");
        }
    }
}
