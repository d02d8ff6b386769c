//! Fixtures and oracles for the tests.

pub mod dense;
pub mod fixtures;
pub mod golden;
#[cfg(doctest)]
mod pages;
#[cfg(feature = "cube")]
pub mod recipes;
