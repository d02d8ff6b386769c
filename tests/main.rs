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
#[cfg(feature = "cube")]
mod kernels;
mod logits;
mod memory;
mod migration;
mod onnx;
mod quantizers;
mod real_model;
mod shapes;
mod streaming;
