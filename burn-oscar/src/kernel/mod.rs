//! CubeCL kernels, one file each. They know pages, words and plans; sequences and models are none
//! of their business.

#![allow(
    clippy::collapsible_if,
    reason = "a compile-time `if` around a run-time one is two things"
)]
#![allow(
    clippy::assign_op_pattern,
    clippy::manual_is_multiple_of,
    clippy::needless_range_loop,
    reason = "inside kernels there are fewer operators, methods and loops than in Rust"
)]
#![allow(
    clippy::too_many_arguments,
    clippy::result_large_err,
    reason = "kernels take arrays one by one, and a launch that is declined hands all of them back"
)]

pub mod append;
pub mod attend;
pub mod bytes;
pub mod chunk;
pub mod decode;
pub mod exact;
pub mod fallback;
pub mod field;
pub mod fragments;
pub mod grid;
pub mod handover;
pub mod launch;
pub mod mean;
pub mod merge;
pub mod offers;
pub mod pack;
pub mod products;
pub mod query;
pub mod running;
pub mod scores;
pub mod shape;
pub mod spec;
pub mod steps;
pub mod tile;
pub mod values;
pub mod warp;

pub use fallback::fallback_once;

use std::sync::atomic::{AtomicU64, Ordering};

static FUSED: AtomicU64 = AtomicU64::new(0);

/// Counts a launch of a fused kernel.
pub fn count_fused() {
    FUSED.fetch_add(1, Ordering::Relaxed);
}

/// Launches of fused kernels so far.
pub fn fused() -> u64 {
    FUSED.load(Ordering::Relaxed)
}
