use burn::tensor::{TensorData, Tolerance};
use burn_oscar::{KvCacheConfig, Method};

use super::*;
use crate::config::{RopeConfig, RopeScaling};

const LAYERS: usize = 2;
const HEAD_DIM: usize = 64;

fn model(device: &Device) -> Model {
    let config = ModelConfig {
        architecture: "qwen3".to_string(),
        vocab_size: 50,
        hidden_size: 32,
        intermediate_size: 48,
        num_layers: LAYERS,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: HEAD_DIM,
        rms_norm_eps: 1e-6,
        rope: RopeConfig {
            theta: 1e4,
            scaling: RopeScaling::None,
        },
        max_position_embeddings: 128,
        tie_word_embeddings: true,
        qk_norm: true,
        attention_bias: true,
        attention_output_bias: false,
        eos_token_ids: Vec::new(),
    };
    device.seed(1);
    Model::new(&config, device)
}

fn cache(device: &Device, max_tokens: usize) -> KvCache {
    KvCacheConfig::new(LAYERS, 2, HEAD_DIM)
        .with_method(Method::exact())
        .with_max_tokens(max_tokens)
        .with_max_sequences(2)
        .init(device)
        .expect("a cache")
}

fn tokens(ids: &[i64], device: &Device) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(ids.to_vec(), [1, ids.len()]), device)
}

#[test]
fn the_last_logits_are_the_last_of_all() {
    let device = Device::flex();
    let (model, mut cache) = (model(&device), cache(&device, 64));
    let input = tokens(&[3, 1, 4, 1, 5], &device);
    let hidden = model
        .forward(input, &mut cache, AttentionOptions::causal())
        .expect("runs");
    assert_eq!(hidden.dims(), [1, 5, 32]);
    let all = model.logits(hidden.clone());
    assert_eq!(all.dims(), [1, 5, 50]);
    let last = model.last_logits(hidden).into_data();
    let expected = all.narrow(1, 4, 1).squeeze_dim::<2>(1).into_data();
    last.assert_approx_eq::<f32>(&expected, Tolerance::default());
}

#[test]
fn one_sequence_goes_on_without_the_other() {
    let device = Device::flex();
    let (model, mut cache) = (model(&device), cache(&device, 64));
    let causal = AttentionOptions::causal;
    let first = cache.sequences()[0];
    let second = cache.add_sequence().expect("room for two");
    let run = |ids: &[i64], row, cache: &mut KvCache| {
        let hidden = model.forward_rows(tokens(ids, &device), &[row], cache, causal());
        hidden.expect("runs").into_data()
    };
    let alone = run(&[7, 8, 9], first, &mut cache);
    assert_eq!(cache.lens(), [3, 0]);
    let again = run(&[7, 8, 9], second, &mut cache);
    assert_eq!(cache.lens(), [3, 3]);
    again.assert_approx_eq::<f32>(&alone, Tolerance::default());
}

#[test]
fn a_refused_call_leaves_the_cache_as_it_was() {
    let device = Device::flex();
    let (model, mut cache) = (model(&device), cache(&device, 64));
    let causal = AttentionOptions::causal;
    model
        .forward(tokens(&[1, 2], &device), &mut cache, causal())
        .expect("runs");

    let rows = Tensor::cat(vec![tokens(&[3], &device); 2], 0);
    let error = model
        .forward(rows, &mut cache, causal())
        .expect_err("two rows");
    assert_eq!(
        error.to_string(),
        "2 rows of tokens for 1 sequences; give one row for each"
    );

    let long = tokens(&[0; 2000], &device);
    model
        .forward(long, &mut cache, causal())
        .expect_err("too long");
    assert_eq!(cache.lens(), [2]);

    // A cache of fewer layers refuses in the middle of the model.
    let mut shallow = KvCacheConfig::new(1, 2, HEAD_DIM)
        .with_max_tokens(64)
        .init(&device)
        .expect("a cache");
    model
        .forward(tokens(&[1, 2], &device), &mut shallow, causal())
        .expect_err("layer 1");
    assert_eq!(shallow.lens(), [0]);
}
