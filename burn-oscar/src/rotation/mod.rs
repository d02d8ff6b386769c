//! Orthogonal transforms of the head dimension: Hadamard, bit reversal, and their use on tensors.

mod hadamard;
mod transform;

pub use hadamard::{bit_reversal, hadamard, hadamard_block};
pub use transform::LayerTransform;
