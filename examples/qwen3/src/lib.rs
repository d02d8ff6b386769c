//! Qwen3, Qwen2 and Llama on a key/value cache of two bits per value.
//!
//! A checkpoint is read by [`load::load`] from a Hugging Face folder, a GGUF file or the
//! Hugging Face hub; [`model::Model`] computes it over a [`burn_oscar::KvCache`];
//! [`tokenizer::Tokenizer`] turns text to tokens and back. On top of them, [`generate`] writes
//! text with a [`sampling::Sampler`], [`evaluate`] measures what a cache's method costs, and
//! [`report`] prints it.

pub mod config;
pub mod evaluate;
pub mod generate;
pub mod load;
pub mod model;
pub mod report;
pub mod rope;
pub mod sampling;
pub mod tokenizer;
