//! 2-bit key/value caches for Burn.
