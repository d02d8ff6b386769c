//! CubeCL kernels, one file each. They know pages, words and plans; sequences and models are none
//! of their business.

pub mod append;
pub mod attend;
pub mod chunk;
pub mod decode;
pub mod field;
pub mod fragments;
pub mod launch;
pub mod merge;
pub mod query;
pub mod spec;
pub mod steps;
pub mod tile;
pub mod warp;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
static FUSED: AtomicU64 = AtomicU64::new(0);

/// Says through `log`, once, that the default body serves.
pub fn fallback_once(what: &str) {
    let mut said = SAID.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if said.insert(what.to_string()) {
        log::warn!("burn-oscar: no kernel for {what}: the slower default body is used");
    }
}

/// Counts a launch of a fused kernel.
pub fn count_fused() {
    FUSED.fetch_add(1, Ordering::Relaxed);
}

/// Launches of fused kernels so far.
pub fn fused() -> u64 {
    FUSED.load(Ordering::Relaxed)
}
