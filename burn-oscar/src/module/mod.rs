//! What fits the cache to models that exist.
//!
//! [`KvCache::attend`](crate::KvCache::attend) is the one call, and the fast one. A model that must
//! keep its own attention reads the cache through [`KeyValueCache`]; [`fold_values`] moves the
//! rotation of the values out of every step, into the weights.

mod fold;
mod key_value;

pub use fold::fold_values;
pub use key_value::KeyValueCache;
