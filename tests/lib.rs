//! Fixtures and oracles for the tests.

pub mod dense;
pub mod fixtures;
pub mod golden;
#[cfg(feature = "cpu")]
pub mod recipes;
