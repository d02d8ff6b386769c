//! A model as a Burn learner: a step observes a window, and a validation step compares a candidate
//! with exact attention on one. Neither changes a weight.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::{Module, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn::train::{InferenceStep, ItemLazy, TrainOutput, TrainStep};

use super::Window;
use crate::cache::{KvCache, KvCacheConfig, LayerComparison, ObserveOptions};
use crate::calibration::Statistics;
use crate::error::{Error, Result};
use crate::method::Method;

/// What a model's own code may fail with.
pub type ModelError = Box<dyn std::error::Error + Send + Sync>;

/// A model that can be calibrated: any that attends through a [`KvCache`].
pub trait CalibrationModel: Send + 'static {
    /// Runs over token ids `[1, tokens]`, which come after the tokens that `cache` holds, calling
    /// [`KvCache::attend`] once in every layer and nothing else of the cache. What the model makes
    /// of it is of no interest, so the head need not be computed.
    ///
    /// # Errors
    /// Whatever the model fails with; the job then stops and says so.
    fn run(
        &mut self,
        tokens: Tensor<2, Int>,
        cache: &mut KvCache,
    ) -> std::result::Result<(), ModelError>;
}

/// The frozen model with what a step needs, as a Burn module.
#[derive(Module, Debug)]
pub(super) struct Calibrator {
    /// One number that nobody reads: Burn asks a learner's parameters for their device.
    place: Param<Tensor<1>>,
    #[module(skip)]
    shared: Arc<Shared>,
    /// The method that validation compares.
    #[module(skip)]
    candidate: Option<Arc<Method>>,
}

struct Shared {
    model: Mutex<Box<dyn CalibrationModel>>,
    caches: KvCacheConfig,
    observe: ObserveOptions,
    device: Device,
    chunk: usize,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("caches", &self.caches)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// What a step saw.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub statistics: std::result::Result<Arc<Statistics>, Arc<Error>>,
    pub tokens: usize,
    pub distance: Option<f64>,
}

/// What a validation step saw: one comparison a layer.
#[derive(Clone, Debug)]
pub(super) struct Compared {
    pub layers: std::result::Result<Vec<LayerComparison>, Arc<Error>>,
}

impl Compared {
    pub fn mean(&self, of: impl Fn(&LayerComparison) -> f64) -> f64 {
        let layers = self.layers.as_deref().unwrap_or(&[]);
        layers.iter().map(of).sum::<f64>() / layers.len().max(1) as f64
    }
}

impl ItemLazy for Observed {
    fn sync(self) -> std::result::Result<Self, burn::tensor::ExecutionError> {
        Ok(self)
    }
}

impl ItemLazy for Compared {
    fn sync(self) -> std::result::Result<Self, burn::tensor::ExecutionError> {
        Ok(self)
    }
}

impl Calibrator {
    pub(super) fn new(
        model: Box<dyn CalibrationModel>,
        caches: KvCacheConfig,
        observe: ObserveOptions,
        device: Device,
        chunk: usize,
    ) -> Self {
        Self {
            place: Param::from_tensor(Tensor::zeros([1], &device)),
            shared: Arc::new(Shared {
                model: Mutex::new(model),
                caches,
                observe,
                device,
                chunk,
            }),
            candidate: None,
        }
    }

    pub(super) fn with_candidate(mut self, method: Method) -> Self {
        self.candidate = Some(Arc::new(method));
        self
    }

    fn caches(&self, window: &Window) -> KvCacheConfig {
        let caches = self.shared.caches.clone();
        caches.with_max_tokens(window.tokens.len().max(1))
    }

    fn run(&self, tokens: &[u32], cache: &mut KvCache) -> Result<()> {
        let ids: Vec<i64> = tokens.iter().copied().map(i64::from).collect();
        let shape = [1, ids.len()];
        let ids = Tensor::from_data(TensorData::new(ids, shape), &self.shared.device);
        // A model that panicked once was given up then.
        let mut model = self
            .shared
            .model
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let held = cache.len(cache.sequences()[0])?;
        model.run(ids, cache).map_err(|error| Error::Calibration {
            reason: format!("the model failed: {error}"),
        })?;
        let now = cache.len(cache.sequences()[0])?;
        if now - held == tokens.len() {
            return Ok(());
        }
        Err(Error::Calibration {
            reason: format!(
                "the model was given {} tokens and its layers attended to {}: call `attend` once \
                 in every layer",
                tokens.len(),
                now - held
            ),
        })
    }

    fn observe(&self, window: &Window) -> Result<Statistics> {
        let caches = self.caches(window).with_method(Method::exact());
        let caches = caches.observing(self.shared.observe.clone());
        let mut cache = caches.init(&self.shared.device)?;
        cache.set_text_id(cache.sequences()[0], window.text)?;
        self.run(&window.tokens, &mut cache)?;
        cache.take_statistics().ok_or_else(|| Error::Calibration {
            reason: "the cache does not observe".into(),
        })
    }

    fn compare(&self, window: &Window) -> Result<Vec<LayerComparison>> {
        let Some(candidate) = &self.candidate else {
            return Err(Error::Calibration {
                reason: "there is no candidate to validate yet: observe some windows first".into(),
            });
        };
        let caches = self.caches(window);
        let mut cache = caches
            .clone()
            .with_method(Method::exact())
            .init(&self.shared.device)?;
        cache.compare_with(&caches, Method::clone(candidate))?;
        // Tokens of one call see each other exactly, so a whole window in one would show nothing.
        for chunk in window.tokens.chunks(self.shared.chunk) {
            self.run(chunk, &mut cache)?;
        }
        Ok(cache.comparisons().to_vec())
    }
}

impl TrainStep for Calibrator {
    type Input = Window;
    type Output = Observed;

    fn step(&self, window: Window) -> TrainOutput<Observed> {
        let statistics = self.observe(&window);
        TrainOutput {
            // There is nothing to optimise.
            grads: GradientsParams::new(),
            item: Observed {
                statistics: statistics.map(Arc::new).map_err(Arc::new),
                tokens: window.tokens.len(),
                distance: None,
            },
        }
    }
}

impl InferenceStep for Calibrator {
    type Input = Window;
    type Output = Compared;

    fn step(&self, window: Window) -> Compared {
        Compared {
            layers: self.compare(&window).map_err(Arc::new),
        }
    }
}
