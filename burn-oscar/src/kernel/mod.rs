//! CubeCL kernels of the operations, for every runtime of CubeCL.

pub mod fallback;
pub mod pack;

pub use fallback::fallback_once;
