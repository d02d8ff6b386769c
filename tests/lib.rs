//! Fixtures and oracles for the tests.

pub mod dense;
pub mod fixtures;
pub mod golden;
#[cfg(feature = "cube")]
pub mod recipes;
