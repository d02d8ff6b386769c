//! The loop: Burn's supervised training with nothing to optimise.

use std::sync::{Arc, Mutex, PoisonError};

use burn::data::dataloader::Progress;
use burn::train::{
    EventProcessorTraining, InferenceStep, Learner, LearnerEvent, SupervisedLearningStrategy,
    SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents, TrainingItem, ValidLoader,
};

use super::folder::Folder;
use super::model::{Calibrator, Observed};
use crate::cache::LayerComparison;
use crate::calibration::solve::solve_unsigned;
use crate::calibration::{Solution, SolveOptions, Statistics, solve};
use crate::error::{Error, Result};

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All windows were observed.
    AllWindows,
    /// The bases moved less than the tolerance between two checkpoints.
    Converged,
    /// The interrupter was told to stop; the last checkpoint is in the folder.
    Interrupted,
}

/// What the loop found.
pub(super) struct Found {
    pub statistics: Statistics,
    pub windows: usize,
    pub ending: Ending,
    pub solution: Option<Solution>,
    pub validation: Vec<LayerComparison>,
}

/// State that goes in and comes out of the loop, which Burn owns meanwhile.
pub(super) struct Strategy {
    pub folder: Folder,
    pub options: SolveOptions,
    pub checkpoint_every: usize,
    pub tolerance: Option<f64>,
    /// Digest of the windows.
    pub windows: String,
    /// What a checkpoint held: statistics, windows, whether that was enough.
    pub start: (Statistics, usize, bool),
    pub found: Mutex<Option<Result<Found>>>,
}

impl SupervisedLearningStrategy<Calibrator> for Strategy {
    fn fit(
        &self,
        components: TrainingComponents<Calibrator>,
        learner: Learner<Calibrator>,
        train: TrainLoader<Calibrator>,
        valid: ValidLoader<Calibrator>,
        epoch: usize,
    ) -> (Calibrator, SupervisedTrainingEventProcessor<Calibrator>) {
        let mut run = Run {
            strategy: self,
            components,
            learner,
            epoch,
        };
        let found = run.fit(&train, &valid);
        if found.is_err() {
            run.components.interrupter.stop(Some("calibration failed"));
        }
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        (run.learner.model(), run.components.event_processor)
    }
}

struct Run<'a> {
    strategy: &'a Strategy,
    components: TrainingComponents<Calibrator>,
    learner: Learner<Calibrator>,
    epoch: usize,
}

impl Run<'_> {
    fn fit(
        &mut self,
        train: &TrainLoader<Calibrator>,
        valid: &ValidLoader<Calibrator>,
    ) -> Result<Found> {
        let mut found = self.observe(train)?;
        if found.ending == Ending::Interrupted {
            return Ok(found);
        }
        let converged = found.ending == Ending::Converged;
        self.strategy.folder.keep(&found.statistics, converged)?;
        let mut solution = solve(&found.statistics, &self.strategy.options)?;
        let windows = self.strategy.windows.clone();
        solution.calibration = solution.calibration.with_note("windows_sha256", windows)?;
        solution.calibration.save(self.strategy.folder.artifact())?;
        found.validation = self.validate(valid, &solution)?;
        found.solution = Some(solution);
        self.train_event(LearnerEvent::EndEpoch(self.epoch));
        Ok(found)
    }

    fn observe(&mut self, train: &TrainLoader<Calibrator>) -> Result<Found> {
        let total = train.num_items();
        let (statistics, done, converged) = &self.strategy.start;
        let mut found = Found {
            statistics: statistics.clone(),
            windows: *done,
            ending: match converged {
                true => Ending::Converged,
                false => Ending::AllWindows,
            },
            solution: None,
            validation: Vec::new(),
        };
        // The bases of the checkpoint, as the run that wrote it had them.
        let mut bases = self.bases(&found)?;
        let mut distance = None;
        self.train_event(LearnerEvent::StartSplit {
            epoch_number: self.epoch,
            total_items: total,
        });
        let rest = train.slice(*done, total);
        let mut windows = rest.iter();
        while found.ending == Ending::AllWindows {
            if self.components.interrupter.should_stop() {
                found.ending = Ending::Interrupted;
                break;
            }
            let Some(window) = windows.next() else { break };
            let window = window.map_err(|error| Error::Calibration {
                reason: format!("a window cannot be read: {error}"),
            })?;
            let mut seen: Observed = self.learner.train_step(window).item;
            let statistics = seen.statistics.clone().map_err(shared)?;
            found.statistics.merge(&statistics)?;
            found.windows += 1;
            if self.is_checkpoint(found.windows) {
                let now = self.bases(&found)?;
                distance = match (&bases, &now) {
                    (Some(before), Some(now)) => Some(now.distance(before)?),
                    _ => None,
                };
                bases = now;
                let close = |tolerance| distance.is_some_and(|moved| moved < tolerance);
                if self.strategy.tolerance.is_some_and(close) {
                    found.ending = Ending::Converged;
                }
                let converged = found.ending == Ending::Converged;
                self.strategy.folder.keep(&found.statistics, converged)?;
            }
            seen.distance = distance;
            let progress = Progress::new(found.windows, total, Some("windows".into()));
            let item = TrainingItem::new(seen, progress, Some(found.windows), None);
            self.train_event(LearnerEvent::ProcessedItem(item));
        }
        self.train_event(LearnerEvent::EndSplit(self.epoch));
        Ok(found)
    }

    fn is_checkpoint(&self, windows: usize) -> bool {
        windows.is_multiple_of(self.strategy.checkpoint_every)
    }

    /// The solution at a checkpoint, where early stopping or the display wants one. Too little may
    /// have been seen yet.
    fn bases(&self, found: &Found) -> Result<Option<Solution>> {
        if found.windows == 0 || !self.is_checkpoint(found.windows) {
            return Ok(None);
        }
        match solve_unsigned(&found.statistics, &self.strategy.options) {
            Ok(solution) => Ok(Some(solution)),
            Err(Error::Calibration { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn validate(
        &mut self,
        valid: &ValidLoader<Calibrator>,
        solution: &Solution,
    ) -> Result<Vec<LayerComparison>> {
        let total = valid.num_items();
        self.valid_event(LearnerEvent::StartSplit {
            epoch_number: self.epoch,
            total_items: total,
        });
        let model = self.learner.model().with_candidate(solution.method()?);
        let mut layers: Vec<LayerComparison> = Vec::new();
        for (done, window) in valid.iter().enumerate() {
            if self.components.interrupter.should_stop() {
                break;
            }
            let window = window.map_err(|error| Error::Calibration {
                reason: format!("a window cannot be read: {error}"),
            })?;
            let seen = InferenceStep::step(&model, window);
            let compared = seen.layers.clone().map_err(shared)?;
            layers.resize(compared.len(), LayerComparison::default());
            for (sum, layer) in layers.iter_mut().zip(&compared) {
                sum.add(layer);
            }
            let progress = Progress::new(done + 1, total, Some("windows".into()));
            let item = TrainingItem::new(seen, progress, Some(done + 1), None);
            self.valid_event(LearnerEvent::ProcessedItem(item));
        }
        self.valid_event(LearnerEvent::EndSplit(self.epoch));
        Ok(layers)
    }

    fn train_event(&mut self, event: LearnerEvent<Observed>) {
        let result = self.components.event_processor.process_train(event);
        self.components.interrupter.fail_on_error(result);
    }

    fn valid_event(&mut self, event: LearnerEvent<super::model::Compared>) {
        let result = self.components.event_processor.process_valid(event);
        self.components.interrupter.fail_on_error(result);
    }
}

/// The error of an item, which metrics hold as well.
fn shared(error: Arc<Error>) -> Error {
    Arc::try_unwrap(error).unwrap_or_else(|error| Error::Calibration {
        reason: error.to_string(),
    })
}
