//! Tests by capability, in one binary.

mod autodiff;
mod book;
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
mod migration;
mod module;
mod onnx;
mod quantizers;
mod real_model;
mod shapes;
mod streaming;
