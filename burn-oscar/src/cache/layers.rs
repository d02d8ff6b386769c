//! What a configuration says of single layers: which are exact, which see a window only, and
//! whether the values arrive transformed.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::Device;

use super::KvCacheConfig;
use crate::calibration::CalibrationBuilder;
use crate::error::{Error, Result};
use crate::method::{Method, Side, TransformKind};
use crate::rotation::LayerTransform;

/// Where layers differ.
#[derive(Clone, Debug, Default)]
pub(super) struct LayerOptions {
    exact: BTreeSet<usize>,
    windows: BTreeMap<usize, usize>,
    folded_values: bool,
}

impl KvCacheConfig {
    /// Keeps everything in these layers in the activation dtype, whatever the method: the first
    /// and the last layer of a model are often the most sensitive, and two of many cost little.
    /// Each call adds to the layers named before.
    ///
    /// ```
    /// # use burn_oscar::{KvCacheConfig, Method};
    /// let layers = 28;
    /// let config = KvCacheConfig::new(layers, 8, 128)
    ///     .with_method(Method::hadamard_centred())
    ///     .with_exact_layers([0, layers - 1]);
    /// assert!(config.is_exact_layer(27) && !config.is_exact_layer(1));
    /// ```
    #[must_use]
    pub fn with_exact_layers(mut self, layers: impl IntoIterator<Item = usize>) -> Self {
        self.layer_options.exact.extend(layers);
        self
    }

    /// Every token of `layer` sees the newest `tokens` tokens, itself included, and no older one,
    /// as models with sliding-window attention were trained. The layer still stores every token,
    /// since its pages are those of all layers: the window bounds what is seen and computed, not
    /// what is held. Sinks are no exception: they are seen while the window reaches them.
    ///
    /// The CubeCL kernels do not know windows: such a layer runs through the portable body, on
    /// every device.
    #[must_use]
    pub fn with_sliding_window(mut self, layer: usize, tokens: usize) -> Self {
        self.layer_options.windows.insert(layer, tokens);
        self
    }

    /// Says that the model's value and output projections carry the method's value transform
    /// already ([`fold_values`](crate::module::fold_values)): values are stored as they arrive and
    /// outputs are returned as they are, which saves two matrix products for each layer and step.
    /// With a model that is *not* folded the stored bits lose the method's accuracy, silently.
    #[must_use]
    pub fn with_folded_values(mut self, folded: bool) -> Self {
        self.layer_options.folded_values = folded;
        self
    }

    /// Whether a layer is kept in the activation dtype.
    pub fn is_exact_layer(&self, layer: usize) -> bool {
        self.layer_options.exact.contains(&layer)
    }

    /// The newest tokens that a token of the layer sees; `None` for all.
    pub fn sliding_window(&self, layer: usize) -> Option<usize> {
        self.layer_options.windows.get(&layer).copied()
    }

    /// Whether values arrive transformed.
    pub fn folded_values(&self) -> bool {
        self.layer_options.folded_values
    }

    /// The layers that see a window only.
    pub(super) fn windowed_layers(&self) -> impl Iterator<Item = usize> + '_ {
        self.layer_options.windows.keys().copied()
    }

    /// Keys and values of a layer.
    pub(super) fn sides(&self, layer: usize) -> [&Side; 2] {
        match self.is_exact_layer(layer) {
            true => [&Side::EXACT; 2],
            false => [self.method.key_side(), self.method.value_side()],
        }
    }

    /// The method's transforms of a layer, for values that arrive untransformed.
    pub(crate) fn layer_transform(&self, layer: usize, device: &Device) -> LayerTransform {
        let [key, value] = self.sides(layer);
        let calibration = match self.is_exact_layer(layer) {
            // A calibration's means would be subtracted here too.
            true => None,
            false => self.method.calibration(),
        };
        LayerTransform::new(key, value, calibration, layer, self.head_dim, device)
    }

    pub(crate) fn check_layer(&self, layer: usize) -> Result<()> {
        match layer < self.n_layers {
            true => Ok(()),
            false => Err(Error::Layer {
                layer,
                layers: self.n_layers,
            }),
        }
    }

    pub(super) fn validate_layers(&self) -> Result<()> {
        let options = &self.layer_options;
        let named = options.exact.iter().chain(options.windows.keys());
        if let Some(&layer) = named.max() {
            self.check_layer(layer)?;
        }
        if options.windows.values().any(|&tokens| tokens == 0) {
            return Err(Error::Zero {
                what: "sliding window",
            });
        }
        if options.folded_values {
            check_foldable(&self.method)?;
        }
        Ok(())
    }

    /// The same for one of the layers alone.
    pub(crate) fn single_layer(&self, layer: usize) -> Result<Self> {
        self.check_layer(layer)?;
        let mut config = self.clone();
        config.n_layers = 1;
        let here = &self.layer_options;
        config.layer_options = LayerOptions {
            exact: here
                .exact
                .contains(&layer)
                .then_some(0)
                .into_iter()
                .collect(),
            windows: self
                .sliding_window(layer)
                .map(|w| (0, w))
                .into_iter()
                .collect(),
            folded_values: here.folded_values,
        };
        if let Some(all) = self.method.calibration() {
            all.check(
                self.fingerprint.as_deref(),
                self.n_layers,
                self.n_kv_heads,
                self.head_dim,
            )?;
            let one = CalibrationBuilder::new(all.method(), 1, self.n_kv_heads, self.head_dim)
                .fingerprint(all.fingerprint())
                .served_length(all.served_length())
                .tokens(all.tokens())
                .layer(0, all.layer(layer).clone())
                .build()?;
            config.method.calibration = Some(one);
        }
        Ok(config)
    }
}

/// Refuses a method whose values are stored as they are.
pub(crate) fn check_foldable(method: &Method) -> Result<()> {
    if method.value_side().transform != TransformKind::Identity {
        return Ok(());
    }
    Err(Error::Method {
        method: method.name().to_string(),
        reason: "its values are stored as they are, so there is no transform to fold: leave out \
                 KvCacheConfig::with_folded_values and fold_values"
            .into(),
    })
}
