//! Saying once that a kernel does not cover something and the portable body serves.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, PoisonError};

static SAID: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

/// Warns, the first time for each text, that the portable body does `what`.
pub fn fallback_once(what: &str) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.insert(what.to_string()) {
        log::warn!("no kernel for {what}: the slower portable body is used");
    }
}
