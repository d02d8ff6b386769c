//! Qwen3, Qwen2 and Llama on a key/value cache of two bits per value.
//!
//! A checkpoint is read by [`load::load`] from a Hugging Face folder, a GGUF file or the
//! Hugging Face hub; [`model::Model`] computes it over a [`burn_oscar::KvCache`];
//! [`tokenizer::Tokenizer`] turns text to tokens and back.

pub mod config;
pub mod load;
pub mod model;
pub mod rope;
pub mod tokenizer;
