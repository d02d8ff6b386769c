//! What a cache is made from.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Int, Tensor};

use super::KvCache;
use super::layers::LayerOptions;
use super::pool::PagePool;
use crate::backend::{KvLayer, OptionalTensor, PackedPages, Pages};
use crate::error::{Error, Result};
use crate::method::{Method, Side};
use crate::quantizer::{PageSpec, Role};

/// Head dimensions are multiples of this.
pub(super) const HEAD_DIM_STEP: usize = 16;
/// The largest head dimension.
pub(super) const MAX_HEAD_DIM: usize = 256;

/// Describes a cache; [`init`](Self::init) makes it.
///
/// All layers of a cache have the same KV heads and channels. A model whose layers differ in them
/// has one cache for each shape, and calls each with the layers counted within it:
///
/// ```
/// # use burn::tensor::Device;
/// # use burn_oscar::{KvCacheConfig, Method};
/// # fn main() -> burn_oscar::Result<()> {
/// let device = Device::flex();
/// // Layers 0 to 3: every other one has fewer, wider heads.
/// let caches = |kv_heads, head_dim| {
///     KvCacheConfig::new(2, kv_heads, head_dim)
///         .with_method(Method::hadamard_centred())
///         .init(&device)
/// };
/// let mut shapes = [caches(4, 64)?, caches(1, 128)?];
/// for layer in 0..4 {
///     let (cache, layer) = (&mut shapes[layer % 2], layer / 2);
///     // cache.attend(layer, query, key, value, options)?
/// #   assert!(layer < cache.n_layers());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct KvCacheConfig {
    pub(super) n_layers: usize,
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) method: Method,
    pub(super) max_tokens: usize,
    pub(super) max_sequences: usize,
    pub(super) dtype: DType,
    pub(super) check_inputs: bool,
    pub(super) poison: bool,
    pub(super) fingerprint: Option<String>,
    pub(super) layer_options: LayerOptions,
    #[cfg(feature = "calibrate")]
    pub(super) observe: Option<super::ObserveOptions>,
}

impl KvCacheConfig {
    /// A cache for `n_layers` layers of `n_kv_heads` KV heads of `head_dim` channels. Default:
    /// the method `exact`, one sequence of at most 4,096 tokens, f32 activations.
    pub fn new(n_layers: usize, n_kv_heads: usize, head_dim: usize) -> Self {
        Self {
            n_layers,
            n_kv_heads,
            head_dim,
            method: Method::exact(),
            max_tokens: 4096,
            max_sequences: 1,
            dtype: DType::F32,
            check_inputs: true,
            poison: false,
            fingerprint: None,
            layer_options: LayerOptions::default(),
            #[cfg(feature = "calibrate")]
            observe: None,
        }
    }

    /// How keys and values are stored.
    #[must_use]
    pub fn with_method(mut self, method: Method) -> Self {
        self.method = method;
        self
    }

    /// Tokens of a sequence that the pool has room for. Sequences draw on one pool of
    /// `max_tokens * max_sequences` tokens, allocated at [`init`](Self::init).
    #[must_use]
    pub fn with_max_tokens(mut self, max_tokens: usize) -> Self {
        self.max_tokens = max_tokens;
        self
    }

    /// Sequences held at once (default 1).
    #[must_use]
    pub fn with_max_sequences(mut self, max_sequences: usize) -> Self {
        self.max_sequences = max_sequences;
        self
    }

    /// The dtype of the activations, and so of the exact tiers: F32 (default), F16 or BF16.
    #[must_use]
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Whether each call's keys and values are searched for NaN and for magnitudes that cannot be
    /// stored (default yes). The search reads two numbers back from the device per call, which
    /// costs nothing on a CPU and a synchronisation on a GPU.
    #[must_use]
    pub fn with_input_checks(mut self, check: bool) -> Self {
        self.check_inputs = check;
        self
    }

    /// Fills unused memory with NaN and all-one words, so that reading any of it shows. For tests.
    #[must_use]
    pub fn with_poison(mut self, poison: bool) -> Self {
        self.poison = poison;
        self
    }

    /// The model's fingerprint, compared with the calibration artifact's.
    #[must_use]
    pub fn with_fingerprint(mut self, fingerprint: impl Into<String>) -> Self {
        self.fingerprint = Some(fingerprint.into());
        self
    }

    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Layers of the model.
    pub fn n_layers(&self) -> usize {
        self.n_layers
    }

    /// KV heads of a layer.
    pub fn n_kv_heads(&self) -> usize {
        self.n_kv_heads
    }

    /// Channels of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Tokens of a sequence that the pool has room for.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The activations' dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn validate(&self) -> Result<()> {
        for (what, count) in [
            ("n_layers", self.n_layers),
            ("n_kv_heads", self.n_kv_heads),
            ("max_tokens", self.max_tokens),
            ("max_sequences", self.max_sequences),
        ] {
            if count == 0 {
                return Err(Error::Zero { what });
            }
        }
        if self.head_dim == 0
            || !self.head_dim.is_multiple_of(HEAD_DIM_STEP)
            || self.head_dim > MAX_HEAD_DIM
        {
            return Err(Error::HeadDim {
                head_dim: self.head_dim,
                multiple: HEAD_DIM_STEP,
                min: HEAD_DIM_STEP,
                max: MAX_HEAD_DIM,
            });
        }
        if !matches!(self.dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(Error::Option {
                option: "dtype",
                value: format!("{:?}", self.dtype),
                reason: "activations are F32, F16 or BF16",
            });
        }
        for side in [self.method.key_side(), self.method.value_side()] {
            if let Some(quantizer) = &side.quantizer {
                quantizer.validate(self.method.name())?;
            }
        }
        self.validate_layers()?;
        if self.largest_size().is_none() {
            return Err(Error::Option {
                option: "max_tokens",
                value: self.max_tokens.to_string(),
                reason: "with these windows and sequences the cache passes what memory can \
                         address: lower max_tokens, max_sequences, sink or recent",
            });
        }
        if let Some(calibration) = self.method.calibration() {
            calibration.check(
                self.fingerprint.as_deref(),
                self.n_layers,
                self.n_kv_heads,
                self.head_dim,
            )?;
        }
        Ok(())
    }

    /// Bytes of all tokens in f32, more than any method takes; `None` past the address space.
    fn largest_size(&self) -> Option<usize> {
        let windows = self.method.sink().checked_add(self.method.recent())?;
        let tokens = (windows.checked_add(self.max_tokens)?)
            .checked_add(2 * self.method.page_tokens())?
            .checked_mul(self.max_sequences)?;
        [self.n_layers, self.n_kv_heads, self.head_dim, 8]
            .into_iter()
            .try_fold(tokens, usize::checked_mul)
            .filter(|&bytes| bytes <= isize::MAX as usize)
    }

    /// Allocates the cache.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::HeadDim`], [`Error::Option`], [`Error::Method`] where the method
    /// does not fit, [`Error::Artifact`] where its calibration belongs to another model.
    pub fn init(&self, device: &Device) -> Result<KvCache> {
        self.validate()?;
        #[cfg(feature = "calibrate")]
        let observer = match &self.observe {
            Some(options) => Some(super::observe::Observer::new(self, options)?),
            None => None,
        };
        let page_tokens = self.method.page_tokens();
        let exact = self.method.sink() + self.method.recent();
        let pages =
            self.max_sequences * self.max_tokens.saturating_sub(exact).div_ceil(page_tokens);
        // A pool without pages would be an empty tensor, which some devices cannot hold.
        let pages = pages.max(1);

        let transforms = (0..self.n_layers)
            .map(|layer| {
                let transform = self.layer_transform(layer, device);
                match self.folded_values() {
                    true => transform.without_values(),
                    false => transform,
                }
            })
            .collect();
        let layers = (0..self.n_layers)
            .map(|layer| {
                let tier = [
                    self.max_sequences,
                    self.n_kv_heads,
                    exact + page_tokens,
                    self.head_dim,
                ];
                let [key, value] = self.sides(layer);
                Some(KvLayer {
                    key: self.pages(key, Role::Key, layer, pages, device),
                    value: self.pages(value, Role::Value, layer, pages, device),
                    key_tier: self.filled(tier, self.dtype, device).into_dispatch(),
                    value_tier: self.filled(tier, self.dtype, device).into_dispatch(),
                    sink: self.method.sink(),
                })
            })
            .collect();
        let mut cache = KvCache {
            config: self.clone(),
            device: device.clone(),
            page_tokens,
            layers,
            transforms,
            pool: PagePool::new(pages),
            sequences: Vec::new(),
            free_slots: (0..self.max_sequences).rev().collect(),
            next_id: 0,
            splits: crate::backend::splits(device, self.n_kv_heads),
            step_plan: None,
            decode_plan: None,
            warned: AtomicBool::new(false),
            #[cfg(feature = "calibrate")]
            observer,
            #[cfg(feature = "calibrate")]
            comparison: None,
        };
        cache.add_sequence()?;
        Ok(cache)
    }

    /// The same with `batch` empty sequences, and room for no more.
    pub(crate) fn init_rows(self, batch: usize, device: &Device) -> Result<KvCache> {
        let mut cache = self.with_max_sequences(batch).init(device)?;
        for _ in 1..batch {
            cache.add_sequence()?;
        }
        Ok(cache)
    }

    fn filled<const D: usize>(
        &self,
        shape: [usize; D],
        dtype: DType,
        device: &Device,
    ) -> Tensor<D> {
        let value = if self.poison { f32::NAN } else { 0.0 };
        flat(shape, value, dtype, device)
    }

    fn pages(
        &self,
        side: &Side,
        role: Role,
        layer: usize,
        pages: usize,
        device: &Device,
    ) -> Pages<Dispatch> {
        let page_tokens = self.method.page_tokens();
        let (heads, head_dim) = (self.n_kv_heads, self.head_dim);
        let Some(quantizer) = &side.quantizer else {
            let shape = [pages, heads, page_tokens, head_dim];
            return Pages::Exact(self.filled(shape, self.dtype, device).into_dispatch());
        };
        let quantizer = match self.method.calibration() {
            Some(calibration) => calibration.adjust_quantizer(layer, role, quantizer),
            None => quantizer.clone(),
        };
        let spec = PageSpec::new(&quantizer, role, head_dim, page_tokens);
        let words = [pages, heads, spec.code_words() + spec.scale_words()];
        let word = if self.poison { u32::MAX } else { 0 };
        let optional = |stored: bool, tensor: &dyn Fn() -> burn::backend::DispatchTensor| {
            if stored {
                OptionalTensor::Present(tensor())
            } else {
                OptionalTensor::Absent
            }
        };
        let numbers = spec.pair_numbers();
        Pages::Packed(PackedPages {
            words: Tensor::<1, Int>::full(
                [words.iter().product::<usize>()],
                word,
                (device, DType::U32),
            )
            .reshape(words)
            .into_dispatch(),
            pairs: optional(numbers > 0, &|| {
                self.filled([pages, heads, numbers], DType::F16, device)
                    .into_dispatch()
            }),
            norms: optional(quantizer.token_norm, &|| {
                self.filled([pages, page_tokens], DType::F16, device)
                    .into_dispatch()
            }),
            means: optional(quantizer.page_mean, &|| {
                self.filled([pages, heads, head_dim], DType::F16, device)
                    .into_dispatch()
            }),
            spec: Arc::new(spec),
        })
    }
}

/// A tensor without gaps: of more than one dimension, a GPU may pad rows, and kernels address
/// pages by plain arithmetic.
fn flat<const D: usize>(shape: [usize; D], value: f32, dtype: DType, device: &Device) -> Tensor<D> {
    Tensor::<1>::full([shape.iter().product::<usize>()], value, (device, dtype)).reshape(shape)
}
