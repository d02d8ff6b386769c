//! Calibration as a Burn learner job: data loaders, metrics, dashboard, checkpoints, interruption
//! and early stopping are those of [`burn::train`], the loop is a custom
//! [strategy](burn::train::SupervisedLearningStrategy) on the plain device.
//!
//! Nothing is trained. A step runs the frozen model over a window of text through an observing
//! cache and adds up statistics; at checkpoints they are solved, and the job may stop early when
//! the bases no longer move. There is no gradient, and the optimiser and learning rate that Burn's
//! [`Learner`] wants are never used.
//!
//! ```text
//! job folder
//!   job.json                   what is observed, written first; only the same job resumes
//!   statistics.safetensors     the last checkpoint
//!   calibration.safetensors    the artifact, at the end
//!   train/, valid/             Burn's metric logs
//! ```
//!
//! A job that was killed, or interrupted, goes on from its last checkpoint and ends with the same
//! bytes, since statistics are exact sums.

mod folder;
mod lines;
mod metrics;
mod model;
mod strategy;
mod windows;

pub use lines::ProgressLines;
use model::Calibrator;
pub use model::{CalibrationModel, ModelError};
pub use strategy::Ending;
pub use windows::{Window, Windows};

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use burn::optim::SgdConfig;
use burn::tensor::Device;
use burn::train::renderer::MetricsRenderer;
use burn::train::{Interrupter, Learner, SupervisedTraining, TrainingStrategy};

use super::solve::Centring;
use super::{Solution, SolveOptions, Statistics};
use crate::cache::{KvCacheConfig, LayerComparison, ObserveOptions};
use crate::error::{Error, Result};
use crate::method::Method;
use folder::{Description, Folder};
use metrics::{AttentionKl, Distance, NumberMetric, OutputError, Tokens};
use strategy::{Found, Strategy};

/// A calibration job; [`run`](Self::run) runs it.
pub struct CalibrationJob {
    folder: PathBuf,
    caches: KvCacheConfig,
    device: Device,
    options: SolveOptions,
    observe: ObserveOptions,
    checkpoint_every: usize,
    tolerance: Option<f64>,
    chunk: usize,
    interrupter: Interrupter,
    renderer: Option<Box<dyn MetricsRenderer>>,
}

/// What a job ends with.
#[derive(Debug)]
pub struct Outcome {
    /// Why it ended.
    pub ending: Ending,
    /// Windows observed, those of the checkpoint included.
    pub windows: usize,
    /// What was observed.
    pub statistics: Statistics,
    /// What it was solved to; `None` when interrupted.
    pub solution: Option<Solution>,
    /// What the solution does to attention on the held-out windows, one for each layer; empty
    /// without such windows.
    pub validation: Vec<LayerComparison>,
}

impl CalibrationJob {
    /// A job in `folder`, for a model whose caches are made by `caches` (sizes, dtype, fingerprint;
    /// the method is of no account) on `device`. Default: `transform_coded`, a checkpoint every 4
    /// windows, no early stop.
    pub fn new(folder: impl AsRef<Path>, caches: KvCacheConfig, device: Device) -> Self {
        Self {
            folder: folder.as_ref().to_path_buf(),
            caches,
            device,
            options: SolveOptions::transform_coded(),
            observe: ObserveOptions::default(),
            checkpoint_every: 4,
            tolerance: None,
            chunk: 64,
            interrupter: Interrupter::new(),
            renderer: None,
        }
    }

    /// What the statistics are solved for.
    #[must_use]
    pub fn with_options(mut self, options: SolveOptions) -> Self {
        self.options = options;
        self
    }

    /// How the model is observed.
    #[must_use]
    pub fn with_observe(mut self, observe: ObserveOptions) -> Self {
        self.observe = observe;
        self
    }

    /// Windows from one checkpoint to the next: what a kill costs at most.
    #[must_use]
    pub fn with_checkpoint_every(mut self, windows: usize) -> Self {
        self.checkpoint_every = windows;
        self
    }

    /// Stops when the bases move by less than `tolerance` from one checkpoint to the next
    /// ([`Solution::distance`], 0 to 1).
    #[must_use]
    pub fn with_tolerance(mut self, tolerance: f64) -> Self {
        self.tolerance = Some(tolerance);
        self
    }

    /// Tokens of a call in validation (64): those of one call see each other exactly.
    #[must_use]
    pub fn with_chunk(mut self, tokens: usize) -> Self {
        self.chunk = tokens;
        self
    }

    /// To be told to stop: the job ends after the window at hand, and resumes from its last
    /// checkpoint when run again.
    #[must_use]
    pub fn with_interrupter(mut self, interrupter: Interrupter) -> Self {
        self.interrupter = interrupter;
        self
    }

    /// What shows the progress (default: Burn's dashboard where feature `tui` is on and the
    /// output is a terminal, [`ProgressLines`] otherwise).
    #[must_use]
    pub fn with_renderer(mut self, renderer: Box<dyn MetricsRenderer>) -> Self {
        self.renderer = Some(renderer);
        self
    }

    /// Observes `train`, solves, saves the artifact, and measures it on `valid`, which may be empty.
    /// Goes on where the folder's last checkpoint stopped.
    ///
    /// # Errors
    /// [`Error::Zero`] and [`Error::Option`] for options without meaning; [`Error::Artifact`] where
    /// the folder holds another job; [`Error::Calibration`] where the model fails or does not
    /// attend in every layer, or where all windows are too short to learn from or to measure on; those of [`KvCacheConfig::init`] and [`solve`](super::solve());
    /// [`Error::Io`].
    pub fn run(
        self,
        model: impl CalibrationModel,
        train: Windows,
        valid: Windows,
    ) -> Result<Outcome> {
        self.validate(&train)?;
        self.check_lengths(&train, &valid)?;
        let folder = Folder::new(&self.folder)?;
        let empty = self.empty()?;
        let description = Description {
            windows: train.digest(),
            count: train.len(),
            checkpoint_every: self.checkpoint_every,
            stopping: format!("{:?}, {:?}", self.tolerance, self.options),
            statistics: format!("{:?}", empty.config()),
        };
        let start = match folder.open(&description)? {
            None => (empty, 0, false),
            // Every window begins one sequence.
            Some(found) => {
                let windows = found.statistics.sequences() as usize;
                (found.statistics, windows, found.converged)
            }
        };

        let calibrator = Calibrator::new(
            Box::new(model),
            self.caches,
            self.observe,
            self.device,
            self.chunk,
        );
        let strategy = Arc::new(Strategy {
            folder: folder.clone(),
            options: self.options,
            checkpoint_every: self.checkpoint_every,
            tolerance: self.tolerance,
            windows: train.digest(),
            start,
            found: Mutex::new(None),
        });
        let mut training =
            SupervisedTraining::<Calibrator>::new(folder.path(), Arc::new(train), Arc::new(valid))
                .metric_train_numeric(NumberMetric::<Tokens>::new())
                .metric_train_numeric(NumberMetric::<Distance>::new())
                .metric_valid_numeric(NumberMetric::<OutputError>::new())
                .metric_valid_numeric(NumberMetric::<AttentionKl>::new())
                .num_epochs(1)
                .label("calibration")
                // Burn's logger would take over the process's, and its panics.
                .with_application_logger(None)
                .with_interrupter(self.interrupter.clone())
                .with_training_strategy(TrainingStrategy::Custom(strategy.clone()));
        let dashboard = cfg!(feature = "tui") && std::io::stdout().is_terminal();
        let renderer = match self.renderer {
            None if !dashboard => Some(Box::new(ProgressLines::new()) as Box<dyn MetricsRenderer>),
            renderer => renderer,
        };
        if let Some(renderer) = renderer {
            training = training.renderer(renderer);
        }
        // Burn's learner has an optimiser; a job without gradients never calls it.
        let result = training.launch(Learner::new(calibrator, SgdConfig::new().init(), 0.0));
        if let Some(error) = result.error {
            return Err(Error::Calibration {
                reason: format!("the job stopped: {error}"),
            });
        }
        let found = strategy
            .found
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(found) = found else {
            return Err(Error::Calibration {
                reason: "the job ended before it began".into(),
            });
        };
        let Found {
            statistics,
            windows,
            ending,
            solution,
            validation,
        } = found?;
        Ok(Outcome {
            ending,
            windows,
            statistics,
            solution,
            validation,
        })
    }

    fn validate(&self, train: &Windows) -> Result<()> {
        for (what, count) in [
            ("windows", train.len()),
            ("checkpoint_every", self.checkpoint_every),
            ("chunk", self.chunk),
        ] {
            if count == 0 {
                return Err(Error::Zero { what });
            }
        }
        match self.tolerance {
            Some(tolerance) if !(tolerance > 0.0 && tolerance <= 1.0) => Err(Error::Option {
                option: "tolerance",
                value: tolerance.to_string(),
                reason: "bases move by 0 to 1: give a number above 0",
            }),
            _ => Ok(()),
        }
    }

    /// Windows that nothing could be learnt from, or measured on, are refused before the work.
    fn check_lengths(&self, train: &Windows, valid: &Windows) -> Result<()> {
        let fail = |reason| Err(Error::Calibration { reason });
        let page_means = self.options.centring == Centring::Page;
        let (sinks, block) = (self.observe.sinks, self.observe.block);
        let counted = if page_means { block } else { 1 };
        if train.longest() < sinks + counted {
            return fail(format!(
                "the longest window has {} tokens, of which the first {sinks} are sinks, and the \
                 statistics want {counted} more: give windows of {} or more",
                train.longest(),
                sinks + counted
            ));
        }
        // Any method with these pages will do.
        let method = Method::hadamard_centred().with_page_means(page_means);
        let (sink, recent, page) = (method.sink(), method.recent(), method.page_tokens());
        let packed = sink + recent + page;
        if !valid.is_empty() && valid.longest() < packed {
            return fail(format!(
                "the longest held-out window has {} tokens, but {sink} sinks and {recent} recent \
                 tokens stay exact and a page takes {page}: nothing would be packed, give windows \
                 of {packed} or more",
                valid.longest()
            ));
        }
        Ok(())
    }

    /// Statistics of nothing, as the job's caches take them.
    fn empty(&self) -> Result<Statistics> {
        let caches = self.caches.clone().with_max_tokens(1).with_max_sequences(1);
        let caches = caches
            .with_method(Method::exact())
            .observing(self.observe.clone());
        let mut cache = caches.init(&self.device)?;
        cache.take_statistics().ok_or_else(|| Error::Calibration {
            reason: "the cache does not observe".into(),
        })
    }
}
