//! Calibration as a Burn learner job: checkpoints, early stop, a held-out measurement.

use std::path::PathBuf;

use burn::tensor::{Int, Tensor};
use burn_oscar::{
    AttentionOptions, KvCache,
    calibration::{
        SolveOptions,
        learner::{CalibrationJob, CalibrationModel, ModelError, Outcome, Windows},
    },
};
use clap::Args;
use models::{
    cli::{Session, positive},
    model::Model,
    table::table,
};

use super::{Gather, Shard};
use crate::error::{Error, Result};

/// The job of a calibration.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Job")]
pub struct JobArgs {
    /// Keep checkpoints in this folder, and go on from the last one
    ///
    /// A job that was stopped and is run again in the same way ends with the same bytes.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["statistics", "shard"])]
    pub job: Option<PathBuf>,

    /// A text to measure the artifact on, layer by layer: another one than --text
    #[arg(long, value_name = "FILE", requires = "job")]
    pub valid: Option<PathBuf>,

    /// Windows of --valid
    #[arg(long, default_value_t = 1, value_name = "COUNT", value_parser = positive,
          requires = "valid")]
    pub valid_windows: usize,

    /// Stop when the bases move by less than this between checkpoints, above 0 to 1
    #[arg(long, value_name = "DISTANCE", requires = "job")]
    pub tolerance: Option<f64>,

    /// Windows from one checkpoint to the next
    #[arg(long, default_value_t = 4, value_name = "COUNT", value_parser = positive,
          requires = "job")]
    pub checkpoint_every: usize,
}

/// A model as the job wants it: it has no part in calibration but to run.
struct Runner(Model);

impl CalibrationModel for Runner {
    fn run(
        &mut self,
        tokens: Tensor<2, Int>,
        cache: &mut KvCache,
    ) -> std::result::Result<(), ModelError> {
        let newest: Vec<_> = cache.sequences().last().copied().into_iter().collect();
        self.0
            .forward_rows(tokens, &newest, cache, AttentionOptions::causal())?;
        Ok(())
    }
}

impl JobArgs {
    /// Runs the job in its folder, or goes on with it.
    ///
    /// # Errors
    /// What the texts and the job give; a usage error without a folder.
    pub fn run(
        &self,
        session: &Session,
        gather: &Gather,
        options: SolveOptions,
    ) -> Result<Outcome> {
        let Some(folder) = &self.job else {
            return Err(Error::usage("a job needs a folder: give --job FOLDER"));
        };
        let valid = match &self.valid {
            None => Vec::new(),
            Some(text) => {
                let held_out = Gather {
                    texts: vec![text.clone()],
                    windows: self.valid_windows,
                    shard: Shard::WHOLE,
                    ..gather.clone()
                };
                held_out.windows(session)?
            }
        };
        let caches = session.cache_config().with_max_tokens(gather.window);
        let mut job = CalibrationJob::new(folder, caches, session.device.clone())
            .with_options(options)
            .with_checkpoint_every(self.checkpoint_every);
        if let Some(tolerance) = self.tolerance {
            job = job.with_tolerance(tolerance);
        }
        let train = Windows::of(gather.windows(session)?);
        let model = Runner(session.loaded.model.clone());
        Ok(job.run(model, train, Windows::of(valid))?)
    }
}

/// What the artifact does to attention on held-out text, by layer; empty without such a text.
pub fn validation_table(outcome: &Outcome) -> String {
    if outcome.validation.is_empty() {
        return String::new();
    }
    let mut table = table(["layer", "output error", "attention KL", "of the worst head"]);
    for (index, layer) in outcome.validation.iter().enumerate() {
        let heads = layer.attention_kl_by_head().enumerate();
        let worst = heads.max_by(|(_, a), (_, b)| a.total_cmp(b));
        table.add_row([
            index.to_string(),
            format!("{:.4}", layer.output_error()),
            format!("{:.4}", layer.attention_kl()),
            worst.map_or("-".into(), |(head, kl)| {
                format!("{kl:.4} (query head {head})")
            }),
        ]);
    }
    format!(
        "{table}\n\nOn held-out text: squared error of the attention outputs relative to their size, \
         and KL of the attention weights in nats.\n\n"
    )
}
