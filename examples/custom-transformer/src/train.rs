//! Training with a Burn learner. Nothing here knows of the cache.

use std::error::Error;
use std::path::Path;

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataset::InMemDataset;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use burn::train::metric::LossMetric;
use burn::train::{
    ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep,
};

use crate::model::{Decoder, ModelConfig, VOCABULARY};
use crate::text::{Batch, Bytes, WINDOW, windows};

/// Windows of a step.
const BATCH: usize = 16;
/// Windows that the loss is measured on in the end.
const VALID: usize = 32;

impl Decoder {
    fn score(&self, batch: Batch) -> ClassificationOutput {
        let [rows, tokens] = batch.tokens.dims();
        let scores = self.forward(batch.tokens);
        let scores = scores.reshape([rows * tokens, VOCABULARY]);
        let targets = batch.targets.reshape([rows * tokens]);
        let loss = CrossEntropyLossConfig::new().init(&scores.device());
        let loss = loss.forward(scores.clone(), targets.clone());
        ClassificationOutput::new(loss, scores, targets)
    }
}

impl TrainStep for Decoder {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = self.score(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Decoder {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.score(batch)
    }
}

/// A model of `config` that has learnt `text` for so many steps, on the plain `device`. Burn's
/// learner keeps its logs in `folder`.
///
/// # Errors
/// For a text shorter than two windows, and where the learner fails.
pub fn train(
    config: &ModelConfig,
    text: &[u8],
    steps: usize,
    folder: &Path,
    device: &Device,
) -> Result<Decoder, Box<dyn Error>> {
    if text.len() < 2 * WINDOW {
        return Err(format!(
            "the text has {} bytes: give at least {}",
            text.len(),
            2 * WINDOW
        )
        .into());
    }
    let loader = |count| {
        DataLoaderBuilder::new(Bytes)
            .batch_size(BATCH)
            .set_device(device.clone())
            .build(InMemDataset::new(windows(text, count)))
    };
    let training = SupervisedTraining::<Decoder>::new(folder, loader(steps * BATCH), loader(VALID))
        .metric_train_numeric(LossMetric::new())
        .metric_valid_numeric(LossMetric::new())
        .num_epochs(1)
        // Burn's logger would take over the process's.
        .with_application_logger(None);
    // Gradients are recorded on this device; the learner gives the model back without.
    let learner = Learner::new(
        Decoder::new(config, &device.clone().autodiff()),
        AdamWConfig::new().init(),
        2e-3,
    );
    let result = training.launch(learner);
    match result.error {
        Some(error) => Err(error.to_string().into()),
        None => Ok(result.model),
    }
}
