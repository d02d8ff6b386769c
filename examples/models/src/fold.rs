//! Folding the value transform of a cache's method into a model's weights.

use burn_oscar::module::fold_values;
use burn_oscar::{Error, KvCacheConfig};

use crate::model::Model;

impl Model {
    /// The model for caches of `config`, which says
    /// [`with_folded_values`](KvCacheConfig::with_folded_values): the value and output projections
    /// of every layer carry the method's value transform. It no longer fits other caches.
    ///
    /// # Errors
    /// Those of [`fold_values`].
    pub fn fold_values(mut self, config: &KvCacheConfig) -> Result<Self, Error> {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let attention = &mut layer.attention;
            let (value, output) = (attention.value.clone(), attention.output.clone());
            (attention.value, attention.output) = fold_values(config, index, value, output)?;
        }
        Ok(self)
    }
}
