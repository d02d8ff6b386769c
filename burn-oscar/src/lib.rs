//! 2-bit key/value caches for transformer models in Burn.
//!
//! A decoder keeps the keys and values of every token. At long contexts that cache fills the
//! device, and every new token waits for it to be read. burn-oscar stores old tokens in 2 bits
//! and attends to the bits:
//!
//! ```
//! use burn::tensor::{Device, Distribution, Tensor};
//! use burn_oscar::{AttentionOptions, KvCacheConfig, Method};
//!
//! # fn main() -> burn_oscar::Result<()> {
//! let device = Device::flex();
//! let (layers, heads, kv_heads, head_dim) = (2, 8, 2, 64);
//! let mut cache = KvCacheConfig::new(layers, kv_heads, head_dim)
//!     .with_method(Method::hadamard_centred())
//!     .init(&device)?;
//!
//! // In each attention layer, instead of concatenating and attending by hand:
//! let random = |heads| Tensor::<4>::random([1, heads, 5, head_dim], Distribution::Default, &device);
//! let (query, key, value) = (random(heads), random(kv_heads), random(kv_heads));
//! let context = cache.attend(0, query, key, value, AttentionOptions::causal())?;
//! assert_eq!(context.dims(), [1, heads, 5, head_dim]);
//! # Ok(())
//! # }
//! ```
//!
//! The parts, in the order in which data flows: [`method`] says what to do, as data;
//! [`quantizer`] how numbers become bits and where the bits lie; [`rotation`] how vectors are
//! turned first; [`backend`] holds the operations, as a Burn backend extension; [`cache`] the
//! sequences; [`module`] what fits models that exist: adapters for trained modules of burn-nn, a
//! drop-in, folding. [`calibration`] holds what the calibrated methods learn from a model.
//!
//! # Feature flags
//!
//! One per Burn backend: `flex` (default), `cpu`, `cuda`, `wgpu`, `vulkan`, `metal`, `rocm`; and
//! `fusion`, `autotune`, `calibrate` (observation, solver and learner job) and `tui` (the job's
//! dashboard). Enable backends through these flags, not only
//! through Burn's own: an operation of this crate on a backend whose flag is off panics.

pub mod backend;
pub mod cache;
pub mod calibration;
mod error;
#[cfg(feature = "cube")]
mod kernel;
pub mod method;
pub mod module;
pub mod quantizer;
pub mod rotation;

#[cfg(feature = "calibrate")]
pub use cache::ObserveOptions;
pub use cache::{AttentionOptions, KvCache, KvCacheConfig, MemoryReport, Padding, SequenceId};
pub use calibration::Calibration;
pub use error::{Error, Result};
pub use method::Method;
