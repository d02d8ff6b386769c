//! What fits the cache to models that exist: adapters for trained modules of burn-nn, a drop-in for
//! models that keep their own attention ([`KeyValueCache`]), and the rotation of the values folded
//! into the weights ([`fold_values`]). For attention written by hand
//! [`KvCache::attend`](crate::KvCache::attend) is the one call.
//!
//! | trained module | adapter | what it does |
//! |---|---|---|
//! | `MultiHeadAttention`, self-attention | [`CachedAttention`] | appends this step's tokens and attends |
//! | `CrossAttention`, or `MultiHeadAttention` as such | [`CachedCrossAttention`] | `encode` stores the memory once, `forward` reads it at every step |
//! | `TransformerDecoder` | [`CachedTransformerDecoder`] | both, in all its layers |
//!
//! An adapter holds the trained module's weights (shared, not copied) and computes what the module
//! computes at inference: dropout is inactive. It is a Burn module itself, with the parameters
//! under the same names, so a record of the trained module loads into it.
//!
//! ```
//! use burn::nn::attention::MultiHeadAttentionConfig;
//! use burn::tensor::{Device, Distribution, Tensor};
//! use burn_oscar::module::CachedAttention;
//! use burn_oscar::{AttentionOptions, Method};
//!
//! # fn main() -> burn_oscar::Result<()> {
//! let device = Device::flex();
//! let trained = MultiHeadAttentionConfig::new(64, 2).init(&device);
//!
//! let attention = CachedAttention::new(&trained)?;
//! let mut cache = attention
//!     .cache_config(1)
//!     .with_method(Method::hadamard_centred())
//!     .init(&device)?;
//! for tokens in [5, 1, 1] {
//!     let x = Tensor::<3>::random([1, tokens, 64], Distribution::Default, &device);
//!     let context = attention.forward(&mut cache, 0, x, AttentionOptions::causal())?;
//!     assert_eq!(context.dims(), [1, tokens, 64]);
//! }
//! assert_eq!(cache.lens(), [7]);
//! # Ok(())
//! # }
//! ```
//!
//! # Masks
//!
//! - Causal: always, in self-attention; nothing to pass. A model that builds the mask anyway may
//!   have it checked by [`check_causal_mask`].
//! - Padding: [`Padding`](crate::Padding) reads a tokenizer's mask once, and
//!   [`AttentionOptions::padding`](crate::AttentionOptions::padding) leaves the padding out, on
//!   either side of the tokens. Nothing of it is stored, later steps need no mask for it, and
//!   outputs at padding are zero, where the undecorated module has numbers without meaning.
//! - Holes in a padding mask, other attention masks, biases on scores (ALiBi) and `quiet_softmax`
//!   are not served: the adapters refuse them, or have no parameter for them.
//!
//! # Positions
//!
//! burn-nn's attention has no positions of its own; models add them to its input. Count them from
//! each row's first real token, and go on from [`KvCache::lens`](crate::KvCache::lens):
//! [`Padding::positions`](crate::Padding::positions) gives the ids. Models that number the slots of
//! a left-padded batch instead give every row other positions than it has alone.

mod attention;
mod check;
mod cross;
mod decoder;
mod fold;
mod key_value;

pub use attention::CachedAttention;
pub use check::check_causal_mask;
pub use cross::CachedCrossAttention;
pub use decoder::{CachedTransformerDecoder, DecoderCache};
pub use fold::fold_values;
pub use key_value::KeyValueCache;
