//! What the benchmarks share.
//!
//! A benchmark times one operation on one device, with inputs that do not fit the last cache,
//! counts the bytes that the operation must move, and says which share of the device's own
//! streaming read that is. Every row is written as JSON; [`report`] joins those files.

pub mod arguments;
pub mod cache;
pub mod device;
mod error;
mod guard;
pub mod methods;
pub mod report;
pub mod results;
pub mod rows;
pub mod shape;
pub mod stream;
pub mod timing;

pub use error::{Error, Result};
pub use guard::guarded;
