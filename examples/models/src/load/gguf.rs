//! A GGUF file: weights, configuration and tokenizer in one.
//!
//! candle-core parses the file and dequantises. It trusts more than it should of a damaged
//! file, so tensor sizes are compared with the file's length, and with each other, before any
//! tensor is read.

use std::fs::File;
use std::io::BufReader;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use candle_core::quantized::gguf_file::{Content, DEFAULT_ALIGNMENT};

use super::assemble::assemble;
use super::gguf_metadata::{DIVISORS, Metadata};
use super::{LoadError, LoadedModel, StoredTensor, Weights, check_vocabulary};
use crate::config::RopeScaling;
use crate::tokenizer::Tokenizer;

/// Loads a file.
pub(super) fn load(path: &Path, device: &Device) -> Result<LoadedModel, LoadError> {
    let mut file = GgufFile::open(path)?;
    let metadata = Metadata::new(&file.content);
    let mut config = metadata.config(path)?;
    let tokenizer = metadata.vocabulary().and_then(Tokenizer::from_gguf);
    let tokenizer = tokenizer.map_err(LoadError::tokenizer(path))?;
    check_vocabulary(&tokenizer, &config)?;

    if file.content.tensor_infos.contains_key(DIVISORS) {
        let divisors = file.read_stored(DIVISORS, &[config.head_dim / 2])?.values;
        config.rope.scaling = RopeScaling::Divisors(divisors.into_iter().map(f64::from).collect());
        config.validate().map_err(LoadError::config(path))?;
    }
    file.permuted_head_dim = (config.architecture == "llama").then_some(config.head_dim);
    let (model, fingerprint) = assemble(&config, &mut file, device)?;
    Ok(LoadedModel {
        config,
        model,
        tokenizer,
        fingerprint,
    })
}

/// An open file whose header has been checked.
struct GgufFile {
    path: PathBuf,
    reader: BufReader<File>,
    content: Content,
    /// Set where query and key rows are in the order of interleaved rotation.
    permuted_head_dim: Option<usize>,
}

impl GgufFile {
    fn open(path: &Path) -> Result<Self, LoadError> {
        let file = File::open(path).map_err(LoadError::io(path))?;
        let length = file.metadata().map_err(LoadError::io(path))?.len();
        let mut reader = BufReader::new(file);
        let content = guarded(path, || Content::read(&mut reader))?;
        check_ranges(&content, length).map_err(|reason| LoadError::corrupt(path, reason))?;
        Ok(Self {
            path: path.to_path_buf(),
            reader,
            content,
            permuted_head_dim: None,
        })
    }

    /// Reads a tensor by the name it has in the file.
    fn read_stored(&mut self, name: &str, shape: &[usize]) -> Result<StoredTensor, LoadError> {
        let missing = || LoadError::MissingTensor {
            path: self.path.clone(),
            name: name.to_string(),
        };
        let info = self.content.tensor_infos.get(name).ok_or_else(missing)?;
        if info.shape.dims() != shape {
            return Err(LoadError::WrongShape {
                name: name.to_string(),
                expected: shape.to_vec(),
                found: info.shape.dims().to_vec(),
            });
        }
        let dtype = format!("{:?}", info.ggml_dtype);
        let values = guarded(&self.path, || {
            let cpu = candle_core::Device::Cpu;
            let tensor = info.read(&mut self.reader, self.content.tensor_data_offset, &cpu)?;
            tensor.dequantize(&cpu)?.flatten_all()?.to_vec1::<f32>()
        })?;
        Ok(StoredTensor {
            name: name.to_string(),
            dtype,
            values,
        })
    }
}

impl Weights for GgufFile {
    fn read(&mut self, name: &str, shape: &[usize]) -> Result<StoredTensor, LoadError> {
        let stored = gguf_name(name).unwrap_or_else(|| name.to_string());
        let mut tensor = self.read_stored(&stored, shape)?;
        let rotated = name.contains("q_proj") || name.contains("k_proj");
        if let Some(head_dim) = self.permuted_head_dim.filter(|_| rotated) {
            tensor.values = half_split(&tensor.values, head_dim, shape[1..].iter().product());
        }
        Ok(tensor)
    }
}

/// Runs a step of candle-core's; its error or panic means a damaged file.
fn guarded<T>(path: &Path, step: impl FnOnce() -> candle_core::Result<T>) -> Result<T, LoadError> {
    match catch_unwind(AssertUnwindSafe(step)) {
        Ok(result) => result.map_err(|error| LoadError::corrupt(path, first_line(&error))),
        Err(_) => Err(LoadError::corrupt(path, "its header makes no sense")),
    }
}

/// The message of an error without the backtrace that candle-core may append.
fn first_line(error: &candle_core::Error) -> String {
    error
        .to_string()
        .lines()
        .next()
        .unwrap_or_default()
        .to_string()
}

/// Checks that all tensors lie inside the file, side by side.
fn check_ranges(content: &Content, length: u64) -> Result<(), String> {
    let declared = content.metadata.get("general.alignment");
    let declared = declared.and_then(|value| value.to_u64().ok());
    let alignment = declared.unwrap_or(DEFAULT_ALIGNMENT);
    let mut ranges = Vec::with_capacity(content.tensor_infos.len());
    for (name, info) in &content.tensor_infos {
        let count = |product: u64, &size: &usize| product.checked_mul(size as u64);
        let elements = info.shape.dims().iter().try_fold(1, count);
        let block = info.ggml_dtype.block_size() as u64;
        let range = elements.and_then(|elements| {
            let bytes = elements
                .div_ceil(block)
                .checked_mul(info.ggml_dtype.type_size() as u64)?;
            let start = content.tensor_data_offset.checked_add(info.offset)?;
            Some((start, start.checked_add(bytes)?))
        });
        match range {
            Some((start, end)) if end <= length => ranges.push((start, end, name)),
            _ => {
                return Err(format!(
                    "tensor `{name}` of shape {:?} at offset {} does not fit into {length} bytes",
                    info.shape.dims(),
                    info.offset
                ));
            }
        }
    }
    ranges.sort();
    // Tensors lie side by side but for alignment, so a wrong type, size or offset shows as an
    // overlap or as a hole.
    let ends = ranges.iter().map(|&(_, end, name)| (end, name));
    let starts = ranges
        .iter()
        .skip(1)
        .map(|&(start, _, name)| (start, name.as_str()));
    for ((end, name), (start, next)) in ends.zip(starts.chain([(length, "end of file")])) {
        if end > start {
            return Err(format!("tensors `{name}` and `{next}` overlap"));
        }
        if start - end >= alignment {
            let hole = start - end;
            return Err(format!(
                "{hole} bytes between tensor `{name}` and `{next}` belong to none"
            ));
        }
    }
    Ok(())
}

/// Undoes the order of rows that a `llama` file has for queries and keys.
///
/// Such a file pairs neighbouring channels for rotation, `(x0, x1), (x2, x3), ...`; here
/// channel `i` of the first half is paired with channel `i` of the second.
fn half_split(values: &[f32], head_dim: usize, row: usize) -> Vec<f32> {
    let half = head_dim / 2;
    let mut rows = Vec::with_capacity(values.len());
    for head in values.chunks_exact(head_dim * row) {
        for part in 0..2 {
            for pair in 0..half {
                let start = (2 * pair + part) * row;
                rows.extend_from_slice(&head[start..start + row]);
            }
        }
    }
    rows
}

/// The name in a GGUF file of a tensor that Hugging Face calls `name`.
fn gguf_name(name: &str) -> Option<String> {
    let (module, kind) = name.rsplit_once('.')?;
    let place = match module {
        "model.embed_tokens" => "token_embd".to_string(),
        "model.norm" => "output_norm".to_string(),
        "lm_head" => "output".to_string(),
        _ => {
            let (layer, part) = module.strip_prefix("model.layers.")?.split_once('.')?;
            let part = match part {
                "input_layernorm" => "attn_norm",
                "self_attn.q_proj" => "attn_q",
                "self_attn.k_proj" => "attn_k",
                "self_attn.v_proj" => "attn_v",
                "self_attn.o_proj" => "attn_output",
                "self_attn.q_norm" => "attn_q_norm",
                "self_attn.k_norm" => "attn_k_norm",
                "post_attention_layernorm" => "ffn_norm",
                "mlp.gate_proj" => "ffn_gate",
                "mlp.up_proj" => "ffn_up",
                "mlp.down_proj" => "ffn_down",
                _ => return None,
            };
            format!("blk.{layer}.{part}")
        }
    };
    Some(format!("{place}.{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rows_are_split_in_halves() {
        // Two heads of 4 channels, rows of 2 values; a row holds its channel's number.
        let channel = |head: usize, channel: usize| [(10 * head + channel) as f32; 2];
        let stored: Vec<f32> = (0..2)
            .flat_map(|head| [0, 2, 1, 3].map(|c| channel(head, c)))
            .flatten()
            .collect();
        let expected: Vec<f32> = (0..2)
            .flat_map(|head| [0, 1, 2, 3].map(|c| channel(head, c)))
            .flatten()
            .collect();
        assert_eq!(half_split(&stored, 4, 2), expected);
    }

    #[test]
    fn every_tensor_of_the_model_has_a_name() {
        let name = |name: &str| gguf_name(name).expect("a name");
        assert_eq!(name("model.embed_tokens.weight"), "token_embd.weight");
        assert_eq!(name("lm_head.weight"), "output.weight");
        assert_eq!(
            name("model.layers.12.self_attn.k_proj.bias"),
            "blk.12.attn_k.bias"
        );
        assert_eq!(gguf_name("model.layers.1.mlp.experts.weight"), None);
    }
}
