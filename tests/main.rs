//! Tests by capability, in one binary.

mod autodiff;
mod cache_properties;
mod calibrated;
#[cfg(feature = "calibrate")]
mod calibration;
mod decode;
mod degenerate;
mod errors;
mod fold;
#[cfg(feature = "cube")]
mod kernels;
mod key_value;
mod layers;
mod logits;
mod memory;
mod module;
mod quantizers;
mod real_model;
mod shapes;
mod streaming;
