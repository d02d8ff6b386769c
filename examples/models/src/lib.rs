//! Qwen3, Qwen2 and Llama on a key/value cache of two bits per value, for the command lines beside
//! it: `qwen3` writes text, `oscar` calibrates and measures.
//!
//! A checkpoint is read by [`load::load`] from a Hugging Face folder, a GGUF file or the
//! Hugging Face hub; [`model::Model`] computes it over a [`burn_oscar::KvCache`];
//! [`tokenizer::Tokenizer`] turns text to tokens and back. On top of them, [`generate`] writes
//! text with a [`sampling::Sampler`] and [`evaluate`] measures what a cache's method costs.
//! [`cli`] is what command lines share: the choice of model and device, output, errors; [`table`]
//! is how all of them print.

pub mod cli;
pub mod config;
pub mod evaluate;
mod fold;
pub mod generate;
pub mod load;
pub mod model;
pub mod rope;
pub mod sampling;
pub mod table;
pub mod tokenizer;
