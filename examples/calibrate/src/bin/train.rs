//! An ordinary training run that ends with a calibrated cache: a small Qwen3-shaped model learns
//! the bytes of a text through the same cache call that serves it later, then it is calibrated on
//! the text and measured on the rest of it.

use std::{error::Error, path::PathBuf, process::ExitCode};

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_oscar::calibration::learner::{CalibrationJob, Windows};
use burn_oscar::calibration::solve::SolveOptions;
use burn_oscar::{AttentionOptions, KvCacheConfig};
use calibrate::{Frozen, rope_of, summary};
use clap::Parser;
use models::cli::{DeviceChoice, positive, read_text};
use models::config::{ModelConfig, RopeConfig, RopeScaling};
use models::model::Model;

/// Train a small Qwen3-shaped model on a text, then calibrate its cache
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example:\n  train --text book.txt --folder job --steps 200"
)]
struct Arguments {
    /// The text; a token is a byte
    #[arg(long, value_name = "FILE")]
    text: PathBuf,

    /// Where the calibration job keeps its checkpoints and the artifact
    #[arg(long, value_name = "FOLDER")]
    folder: PathBuf,

    /// Optimiser steps
    #[arg(long, default_value_t = 200, value_name = "COUNT", value_parser = positive)]
    steps: usize,

    /// Where to run: auto, flex, cpu, cuda, rocm, metal, vulkan or wgpu
    #[arg(long, default_value = "auto", value_name = "DEVICE[:NUMBER]")]
    device: DeviceChoice,
}

/// Sequences of a step, and their tokens.
const BATCH: usize = 4;
const TOKENS: usize = 128;
/// Tokens of a calibration window: enough that the held-out ones fill pages past the exact tokens.
const WINDOW: usize = 1024;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let text: Vec<u32> = read_text(&arguments.text)?.bytes().map(u32::from).collect();
    if text.len() < 8 * WINDOW {
        return Err(format!(
            "the text has {} bytes: give at least {}",
            text.len(),
            8 * WINDOW
        )
        .into());
    }
    // Train on seven eighths; the calibration is measured on the rest.
    let (train, valid) = text.split_at(text.len() / 8 * 7);
    let device = arguments.device.open()?;
    let config = config();
    let model = train_model(&config, train, arguments.steps, &device)?;

    // From here on as for any other model.
    let caches = caches(&config).with_fingerprint("train-example");
    let outcome = CalibrationJob::new(&arguments.folder, caches, device)
        .with_options(SolveOptions::transform_coded().with_rope(rope_of(&config), 4 * WINDOW))
        .run(
            Frozen(model),
            Windows::of_corpus(train, WINDOW).take(8),
            Windows::of_corpus(valid, WINDOW).take(2),
        )?;
    print!("{}", summary(&outcome));
    println!(
        "{}",
        arguments.folder.join("calibration.safetensors").display()
    );
    Ok(())
}

/// Two layers of Qwen3's shape.
fn config() -> ModelConfig {
    ModelConfig {
        architecture: "qwen3".into(),
        vocab_size: 256,
        hidden_size: 64,
        intermediate_size: 128,
        num_layers: 2,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 32,
        rms_norm_eps: 1e-6,
        rope: RopeConfig {
            theta: 1e4,
            scaling: RopeScaling::None,
        },
        max_position_embeddings: 4 * WINDOW,
        tie_word_embeddings: true,
        qk_norm: true,
        attention_bias: false,
        attention_output_bias: false,
        eos_token_ids: Vec::new(),
    }
}

fn caches(config: &ModelConfig) -> KvCacheConfig {
    KvCacheConfig::new(config.num_layers, config.num_kv_heads, config.head_dim)
}

fn train_model(
    config: &ModelConfig,
    text: &[u32],
    steps: usize,
    device: &Device,
) -> Result<Model, Box<dyn Error>> {
    let device = device.clone().autodiff();
    let mut model = Model::new(config, &device);
    let mut optimizer = AdamWConfig::new().init();
    let loss = CrossEntropyLossConfig::new().init(&device);
    for step in 0..steps {
        // Stretches from all over the text, other ones in each step.
        let stretch = (text.len() - TOKENS - 1) / BATCH;
        let starts = (0..BATCH).map(|row| row * stretch + step * 7919 % stretch);
        let rows: Vec<&[u32]> = starts
            .map(|start| &text[start..start + TOKENS + 1])
            .collect();
        let ids = |from: usize| -> Tensor<2, Int> {
            let part = |row: &&[u32]| {
                row[from..from + TOKENS]
                    .iter()
                    .map(|&id| i64::from(id))
                    .collect()
            };
            let flat: Vec<Vec<i64>> = rows.iter().map(part).collect();
            Tensor::from_data(TensorData::new(flat.concat(), [BATCH, TOKENS]), &device)
        };
        // An exact cache is attention as ever, gradients included.
        let mut cache = caches(config)
            .with_max_tokens(TOKENS)
            .with_max_sequences(BATCH)
            .init(&device)?;
        for _ in 1..BATCH {
            cache.add_sequence()?;
        }
        let hidden = model.forward(ids(0), &mut cache, AttentionOptions::causal())?;
        let logits = model
            .logits(hidden)
            .reshape([BATCH * TOKENS, config.vocab_size]);
        let loss = loss.forward(logits, ids(1).reshape([BATCH * TOKENS]));
        if step % 20 == 0 || step + 1 == steps {
            eprintln!(
                "step {step:4}: loss {:.3}",
                loss.clone().into_scalar::<f32>()
            );
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(3e-3, model, gradients);
    }
    Ok(model.valid())
}
