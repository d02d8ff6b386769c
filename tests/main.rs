//! Tests by capability, in one binary.

mod autodiff;
mod cache_properties;
mod calibrated;
mod degenerate;
mod errors;
#[cfg(feature = "cpu")]
mod kernels_attend;
#[cfg(feature = "cpu")]
mod kernels_pack;
mod logits;
mod memory;
mod quantizers;
mod real_model;
mod shapes;
mod streaming;
