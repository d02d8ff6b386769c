//! The cache's operations as a Burn backend extension.
//!
//! [`KvCacheOps`] is implemented for every backend that Burn dispatches to. Its default bodies,
//! in `portable`, are made of Burn operations on real packed bits; they run anywhere and are
//! what every kernel is tested against.

mod autodiff;
#[cfg(feature = "cube")]
mod cube;
mod functions;
mod ops;
pub(crate) mod plan;
pub(crate) mod portable;
mod types;

pub use functions::{append, attend, demote, read_pages, write_pages};
pub use ops::KvCacheOps;

use burn::tensor::Device;
pub use plan::{AttentionPlan, PlanRow};
pub(crate) use plan::{Limits, PlanWords, plan_words};
pub use types::{Demotion, KvLayer, OptionalTensor, PackedPages, Pages};

/// Launches of fused attention kernels so far, over all caches: tells whether they serve.
pub fn fused_calls() -> u64 {
    #[cfg(feature = "cube")]
    return crate::kernel::fused();
    #[cfg(not(feature = "cube"))]
    0
}

/// Work items for each KV head that a step's history is best cut into.
pub(crate) fn splits(device: &Device, kv_heads: usize) -> usize {
    #[cfg(feature = "cube")]
    if let Some(splits) = cube::splits(device, kv_heads) {
        return splits;
    }
    let _ = (device, kv_heads);
    1
}
