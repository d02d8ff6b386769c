//! 2-bit key/value caches for Burn.
pub mod backend;
pub mod calibration;
mod error;
pub mod method;
pub mod quantizer;
pub use error::{Error, Result};
