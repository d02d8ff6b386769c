//! One row that fails must not take the others along.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Error, Result};

/// Runs a measurement; a panic in it becomes [`Error::Device`].
///
/// # Errors
/// Those of the measurement.
pub fn guarded<T>(measure: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(measure)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::Device(text.unwrap_or("panicked").to_string()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let error = guarded::<()>(|| panic!("out of memory")).unwrap_err();
        assert_eq!(error.to_string(), "the device failed: out of memory");
        assert!(guarded(|| Ok(1)).is_ok());
    }
}
