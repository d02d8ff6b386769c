//! GGUF files that are damaged.

use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use models::load::load;
use tempfile::TempDir;

use super::assert_message;
use crate::logits::gguf;

/// A GGUF file that loads, to be damaged.
struct File {
    path: PathBuf,
    bytes: Vec<u8>,
    _folder: TempDir,
}

impl File {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        gguf::write(name, &path);
        load(&path, &Device::flex()).unwrap();
        Self {
            bytes: fs::read(&path).unwrap(),
            path,
            _folder: folder,
        }
    }

    /// Where the bytes of `text` end, the first time.
    fn after(&self, text: &str) -> usize {
        let places = self
            .bytes
            .windows(text.len())
            .position(|window| window == text.as_bytes());
        places.unwrap_or_else(|| panic!("no {text}")) + text.len()
    }

    /// Where the data of the tensors begins.
    fn data(&self) -> usize {
        let last = "token_embd.weight";
        // Dimensions, their number, type and offset follow the name.
        (self.after(last) + 4 + 2 * 8 + 4 + 8).next_multiple_of(32)
    }

    fn assert_refused(&self, what: &str, bytes: &[u8], expected: &str) {
        fs::write(&self.path, bytes).unwrap();
        assert_message(what, load(&self.path, &Device::flex()).map(drop), expected);
    }

    /// The file with other bytes at a place.
    fn with(&self, at: usize, bytes: &[u8]) -> Vec<u8> {
        let mut damaged = self.bytes.clone();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        damaged
    }
}

#[test]
fn truncated_files() {
    let file = File::new("qwen2-tiny");
    let (data, end) = (file.data(), file.bytes.len());
    for len in [0, 3, 4, 12, 24].into_iter().chain((0..data).step_by(173)) {
        let expected = "*tiny.gguf is damaged: *; fetch it again";
        file.assert_refused(&format!("{len} bytes"), &file.bytes[..len], expected);
    }
    for len in [data, (data + end) / 2, end - 1] {
        let expected = format!(
            "*tiny.gguf is damaged: tensor `*` of shape [*] at offset * does not fit into {len} \
             bytes; fetch it again"
        );
        file.assert_refused(&format!("{len} bytes"), &file.bytes[..len], &expected);
    }
}

#[test]
fn flipped_bits_and_bytes() {
    let file = File::new("qwen2-tiny");
    let embedding = file.after("token_embd.weight");
    // Number of dimensions u32, sizes u64 from the innermost, type u32, offset u64.
    let (sizes, kind, offset) = (embedding + 4, embedding + 4 + 16, embedding + 4 + 16 + 4);
    // A value's type is a u32.
    let value = |key: &str| file.after(key) + 4;
    let huge = u64::MAX.to_le_bytes();
    for (what, bytes, expected) in [
        (
            "magic",
            file.with(0, b"GGUG"),
            "*tiny.gguf is damaged: unknown magic 0x*; fetch it again",
        ),
        (
            "version",
            file.with(4, &[77]),
            "*tiny.gguf is damaged: *version*; fetch it again",
        ),
        (
            "number of tensors",
            file.with(8, &huge),
            "*tiny.gguf is damaged: *; fetch it again",
        ),
        (
            "number of keys",
            file.with(16, &huge),
            "*tiny.gguf is damaged: *; fetch it again",
        ),
        (
            "length of a key",
            file.with(24, &huge),
            "*tiny.gguf is damaged: *; fetch it again",
        ),
        (
            "length of a list",
            file.with(value("tokenizer.ggml.tokens") + 4, &huge),
            "*tiny.gguf is damaged: *; fetch it again",
        ),
        (
            "a size",
            file.with(sizes + 8 + 3, &[1]),
            "*tiny.gguf is damaged: tensor `token_embd.weight` of shape [16777312, 64] at offset * \
             does not fit into * bytes; fetch it again",
        ),
        (
            "a type that is not there",
            file.with(kind, &[99]),
            "*tiny.gguf is damaged: unknown dtype for tensor 99; fetch it again",
        ),
        (
            "another type",
            file.with(kind, &[1]),
            "*tiny.gguf is damaged: 12288 bytes between tensor `token_embd.weight` and `end of \
             file` belong to none; fetch it again",
        ),
        (
            "an offset past the end",
            file.with(offset + 3, &[1]),
            "*tiny.gguf is damaged: tensor `token_embd.weight` of shape [96, 64] at offset * does \
             not fit into * bytes; fetch it again",
        ),
        (
            "an offset into another tensor",
            file.with(offset, &[0; 8]),
            "*tiny.gguf is damaged: tensors `*` and `*` overlap; fetch it again",
        ),
        (
            "a tensor's name",
            file.with(embedding - 1, b"s"),
            "*tiny.gguf: the configuration has no `token_embd.weight`; it is needed to build the \
             model",
        ),
        (
            "architecture",
            file.with(value("general.architecture") + 8, b"pwen2"),
            "*tiny.gguf: architecture `pwen2` is not supported; use a qwen3, qwen2 or llama model",
        ),
        (
            "layers",
            file.with(value("qwen2.block_count"), &[3]),
            "*tiny.gguf has no tensor `blk.2.attn_norm.weight`, which its configuration calls for",
        ),
        (
            "width",
            file.with(value("qwen2.embedding_length"), &[65]),
            "tensor `token_embd.weight` has shape [96, 64]; its configuration calls for [96, 65]",
        ),
        (
            "KV heads",
            file.with(value("qwen2.attention.head_count_kv"), &[0]),
            "*tiny.gguf: `num_key_value_heads` is 0, which must be from 1 to 4096",
        ),
        (
            "a word twice",
            file.with(file.after("<10") - 1, b"1"),
            "*tiny.gguf: the vocabulary is damaged: a token occurs twice",
        ),
        (
            "end token",
            file.with(value("tokenizer.ggml.eos_token_id"), &[0, 1]),
            "*tiny.gguf: the vocabulary is damaged: special token 256 of 96",
        ),
        (
            "kind of tokenizer",
            file.with(value("tokenizer.ggml.model") + 8, b"gpt3"),
            "*tiny.gguf: tokenizer model `gpt3` is not supported; use a GGUF with `gpt2` \
             (byte-level BPE)",
        ),
        (
            "splitting rule",
            file.with(value("tokenizer.ggml.pre") + 8, b"gpt-3"),
            "*tiny.gguf: pre-tokenizer `gpt-3` is not supported; known are *",
        ),
        (
            "a weight",
            file.with(file.data() + 2, &[0xc0, 0x7f]),
            "tensor `*` has NaN at element 0; the checkpoint is damaged",
        ),
    ] {
        file.assert_refused(what, &bytes, expected);
    }
}

/// Whatever bit of the header is flipped, loading ends, in an error or in a model.
#[test]
fn no_flipped_bit_stops_the_program() {
    let file = File::new("llama-tiny");
    let mut refused = 0;
    let places: Vec<usize> = (0..file.data()).step_by(5).collect();
    for &at in &places {
        let bit = 1 << (at / 5 % 8);
        fs::write(&file.path, file.with(at, &[file.bytes[at] ^ bit])).unwrap();
        refused += usize::from(load(&file.path, &Device::flex()).is_err());
    }
    println!("{refused} of {} flips refused", places.len());
    assert!(refused * 3 > places.len(), "{refused} of {}", places.len());
}

/// Truncations of a real file, where there is one.
#[test]
fn a_truncated_real_file() {
    let Some(model) = std::env::var_os("BURN_OSCAR_MODEL") else {
        println!("skipped: BURN_OSCAR_MODEL is not set; `cargo xtask test` sets it");
        return;
    };
    let bytes = fs::read(Path::new(&model)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("truncated.gguf");
    for len in [1000, 1_000_000, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&path, &bytes[..len]).unwrap();
        let expected = "*truncated.gguf is damaged: *; fetch it again";
        assert_message("a part", load(&path, &Device::flex()).map(drop), expected);
    }
}
