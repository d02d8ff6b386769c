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
pub(crate) mod portable;
mod types;

pub use functions::{attend, demote, read_pages, write_pages};
pub use ops::KvCacheOps;
pub use types::{AttentionPlan, Demotion, KvLayer, OptionalTensor, PackedPages, Pages, PlanRow};
