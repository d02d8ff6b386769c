//! Gradients. The portable attention is made of differentiable operations, so a gradient reaches
//! the queries, and the keys and values of the call and of the exact tiers. Pages are constants:
//! the query's gradient is that of attention over the dequantised page (straight through), and
//! nothing flows into tokens that have been quantised.

use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;

use super::KvCacheOps;

impl<B: KvCacheOps, C: CheckpointStrategy> KvCacheOps for Autodiff<B, C> {}
