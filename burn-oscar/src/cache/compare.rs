//! A cache that answers exactly and keeps a second one, of another method, beside it: what that
//! method would have done to the same calls, without its errors adding up over the layers.

use burn::tensor::activation::softmax;
use burn::tensor::{DType, Tensor};

use super::host::numbers;
use super::{AttentionOptions, KvCache, KvCacheConfig};
use crate::error::Result;
use crate::method::Method;

/// What a method did to the attention of one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerComparison {
    /// `Σ ‖o' - o‖²` over all queries and heads, `o` the exact outputs.
    pub error: f64,
    /// `Σ ‖o‖²`.
    pub size: f64,
    /// `Σ KL(p ‖ p')` of the attention weights of each call's last query over the tokens then held,
    /// for each query head.
    pub divergence: Vec<f64>,
    /// Calls that [`divergence`](Self::divergence) adds up.
    pub queries: u64,
}

impl LayerComparison {
    /// Squared error of the outputs, relative to their size.
    pub fn output_error(&self) -> f64 {
        if self.size > 0.0 {
            self.error / self.size
        } else {
            0.0
        }
    }

    /// Mean divergence of the attention weights, in nats.
    pub fn attention_kl(&self) -> f64 {
        let heads = self.divergence.len().max(1) as f64;
        self.attention_kl_by_head().sum::<f64>() / heads
    }

    /// The same for each query head.
    pub fn attention_kl_by_head(&self) -> impl Iterator<Item = f64> + '_ {
        let queries = self.queries.max(1) as f64;
        self.divergence.iter().map(move |sum| sum / queries)
    }

    /// Adds what another text showed.
    pub fn add(&mut self, other: &Self) {
        self.error += other.error;
        self.size += other.size;
        let heads = self.divergence.len().max(other.divergence.len());
        self.divergence.resize(heads, 0.0);
        for (sum, other) in self.divergence.iter_mut().zip(&other.divergence) {
            *sum += other;
        }
        self.queries += other.queries;
    }
}

/// The second cache, and what was found so far.
#[derive(Debug)]
pub(super) struct Comparison {
    cache: Box<KvCache>,
    layers: Vec<LayerComparison>,
}

impl KvCache {
    /// Compares with a second cache of `config` from now on. Both must be new and hold one sequence:
    /// only `attend` is mirrored.
    pub(crate) fn compare_with(&mut self, config: &KvCacheConfig, method: Method) -> Result<()> {
        let cache = config.clone().with_method(method).init(&self.device)?;
        self.comparison = Some(Comparison {
            layers: vec![LayerComparison::default(); cache.n_layers()],
            cache: Box::new(cache),
        });
        Ok(())
    }

    /// What was found, one for each layer; nothing unless comparing.
    pub(crate) fn comparisons(&self) -> &[LayerComparison] {
        self.comparison.as_ref().map_or(&[], |held| &held.layers)
    }

    /// The same call to the second cache, after the first has answered `exact`.
    pub(super) fn compare_call(
        &mut self,
        layer: usize,
        [query, key, value]: [Tensor<4>; 3],
        exact: &Tensor<4>,
        scale: f64,
    ) -> Result<()> {
        let Some(mut held) = self.comparison.take() else {
            return Ok(());
        };
        let options = AttentionOptions::causal().streaming().with_scale(scale);
        let last = query.clone().narrow(2, query.dims()[2] - 1, 1);
        let found = held.cache.attend(layer, query, key, value, options);
        let result = found.and_then(|found| {
            let wide = |tensor: &Tensor<4>| tensor.clone().detach().cast(DType::F32);
            let (found, exact) = (wide(&found), wide(exact));
            let difference = found - exact.clone();
            let squares = Tensor::cat(
                vec![
                    (difference.clone() * difference).sum(),
                    (exact.clone() * exact).sum(),
                ],
                0,
            );
            let squares = numbers(squares)?;
            let divergences = self.divergences(&held.cache, layer, last, scale)?;
            let seen = &mut held.layers[layer];
            seen.add(&LayerComparison {
                error: f64::from(squares[0]),
                size: f64::from(squares[1]),
                divergence: divergences.into_iter().map(f64::from).collect(),
                queries: 1,
            });
            Ok(())
        });
        self.comparison = Some(held);
        result
    }

    /// KL of the weights over stored keys from those over exact ones, by head.
    fn divergences(
        &self,
        other: &KvCache,
        layer: usize,
        query: Tensor<4>,
        scale: f64,
    ) -> Result<Vec<f32>> {
        let (heads, kv_heads) = (query.dims()[1], self.config.n_kv_heads);
        let shape = [kv_heads, heads / kv_heads, self.config.head_dim];
        let query = query.detach().cast(DType::F32).reshape(shape);
        let scores = |cache: &KvCache| -> Result<Tensor<3>> {
            let [key, _] = cache.dequantize(cache.sequences[0].id, layer)?;
            Ok(query.clone().matmul(key.swap_dims(1, 2)) * scale)
        };
        let (exact, stored) = (scores(self)?, scores(other)?);
        let weights = softmax(exact.clone(), 2);
        let log = burn::tensor::activation::log_softmax::<3>;
        numbers((weights * (log(exact, 2) - log(stored, 2))).sum_dim(2))
    }
}
