//! A loaded model on its device, and caches for it.

use burn::tensor::Device;
use burn_oscar::{KvCache, KvCacheConfig, Method};

use super::{CliError, ModelArgs, note, warnings};
use crate::{
    load::{LoadedModel, load},
    tokenizer::Tokenizer,
};

/// What every command starts from.
pub struct Session {
    /// The model, its configuration and its tokenizer.
    pub loaded: LoadedModel,
    /// Where the model is.
    pub device: Device,
    /// Whether standard error stays empty.
    pub quiet: bool,
    /// Whether the model carries the value transform of a method.
    folded: bool,
}

impl Session {
    /// Starts the device and loads the model.
    ///
    /// # Errors
    /// [`CliError::Usage`] for the device, [`CliError::Load`] for the model.
    pub fn open(args: &ModelArgs) -> Result<Self, CliError> {
        if !args.quiet {
            warnings::show();
        }
        let device = args.device.open()?;
        let loaded = load(&args.model, &device)?;
        Ok(Self {
            loaded,
            device,
            quiet: args.quiet,
            folded: false,
        })
    }

    /// Folds the value transform of `method` into the model's weights: from now on caches must be
    /// of that method.
    ///
    /// # Errors
    /// What [`Model::fold_values`](crate::model::Model::fold_values) gives, for methods without a
    /// value transform for one.
    pub fn fold_values(&mut self, method: &Method) -> Result<(), CliError> {
        let config = self
            .cache_config()
            .with_method(method.clone())
            .with_folded_values(true);
        self.loaded.model = self.loaded.model.clone().fold_values(&config)?;
        self.folded = true;
        Ok(())
    }

    /// Text and tokens.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.loaded.tokenizer
    }

    /// An empty cache of one sequence for up to `max_tokens` tokens.
    ///
    /// Warns where the model was not trained for so many.
    ///
    /// # Errors
    /// What the cache's configuration gives.
    pub fn cache(&self, method: Method, max_tokens: usize) -> Result<KvCache, CliError> {
        let trained = self.loaded.config.max_position_embeddings;
        if max_tokens > trained {
            note(
                self.quiet,
                &format!(
                    "warning: {max_tokens} tokens are more than the {trained} that this model was \
                     trained for; expect nonsense beyond them"
                ),
            );
        }
        self.check_memory(&method, max_tokens)?;
        let cache = self
            .cache_config()
            .with_method(method)
            .with_max_tokens(max_tokens)
            .init(&self.device)?;
        Ok(cache)
    }

    /// Refuses a cache that no machine has room for, which would otherwise end the program: the
    /// exact tiers and the pages are allocated at once.
    ///
    /// # Errors
    /// [`CliError::Usage`] with the size.
    pub fn check_memory(&self, method: &Method, max_tokens: usize) -> Result<(), CliError> {
        let config = &self.loaded.config;
        let token =
            config.num_layers * config.num_kv_heads * config.head_dim * 2 * size_of::<f32>();
        let exact = method.sink().saturating_add(method.recent());
        // Pages have at least 2 of the 32 bits.
        let bytes = exact.saturating_add(max_tokens / 16).saturating_mul(token);
        Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| {
            CliError::Usage(format!(
                "a cache for {max_tokens} tokens with {} sinks and {} recent tokens needs more \
                 memory than there is, {} GiB: lower --max-tokens, --sink or --recent",
                method.sink(),
                method.recent(),
                bytes >> 30
            ))
        })
    }

    /// What this model needs of a cache.
    pub fn cache_config(&self) -> KvCacheConfig {
        let config = &self.loaded.config;
        KvCacheConfig::new(config.num_layers, config.num_kv_heads, config.head_dim)
            .with_fingerprint(self.loaded.fingerprint.as_str())
            .with_folded_values(self.folded)
    }

    /// The tokens that end a text.
    pub fn stop_tokens(&self) -> Vec<u32> {
        self.tokenizer().eos().to_vec()
    }
}
