//! Greedy generation, without a cache and with one.

use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_oscar::{Error, KvCache, Result};

use crate::model::Decoder;

/// Continues `prompt` by `count` bytes: every step computes the whole text again.
///
/// # Errors
/// [`Error::Execution`] where the device fails.
pub fn generate(model: &Decoder, prompt: &[u8], count: usize, device: &Device) -> Result<Vec<u8>> {
    let mut text = prompt.to_vec();
    for _ in 0..count {
        let scores = model.forward(tensor(&text, device));
        text.push(best(scores)?);
    }
    Ok(text.split_off(prompt.len()))
}

/// The same through a cache, which is empty before: every step computes one byte.
///
/// # Errors
/// Those of [`KvCache::attend`], and [`Error::Execution`].
pub fn generate_cached(
    model: &Decoder,
    prompt: &[u8],
    count: usize,
    cache: &mut KvCache,
    device: &Device,
) -> Result<Vec<u8>> {
    let mut new = prompt.to_vec();
    let mut text = Vec::new();
    for _ in 0..count {
        let scores = model.forward_cached(tensor(&new, device), cache)?;
        new = vec![best(scores)?];
        text.extend(&new);
    }
    Ok(text)
}

fn tensor(text: &[u8], device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i64> = text.iter().map(|&byte| i64::from(byte)).collect();
    Tensor::from_data(TensorData::new(ids, [1, text.len()]), device)
}

/// The most likely byte after the last token of scores `[1, tokens, VOCABULARY]`.
fn best(scores: Tensor<3>) -> Result<u8> {
    let tokens = scores.dims()[1];
    let best = scores.narrow(1, tokens - 1, 1).argmax(2);
    let best: Vec<i64> = best
        .try_into_vec_as()
        .map_err(|error| Error::Execution(error.to_string()))?;
    Ok(best[0] as u8)
}

#[cfg(test)]
mod tests {
    use burn_oscar::Method;

    use super::*;
    use crate::model::ModelConfig;

    #[test]
    fn the_same_bytes_with_and_without_a_cache() {
        let device = Device::flex();
        let config = ModelConfig {
            max_tokens: 128,
            ..ModelConfig::default()
        };
        let model = Decoder::new(&config, &device);
        let method = Method::exact().with_sink(3).with_recent(5);
        let mut cache = config.cache(method).init(&device).unwrap();
        let prompt = b"The harbour";
        let expected = generate(&model, prompt, 80, &device).unwrap();
        let found = generate_cached(&model, prompt, 80, &mut cache, &device).unwrap();
        assert_eq!(found, expected);
        // The last byte was not fed back.
        assert_eq!(cache.lens(), [prompt.len() + 79]);
        assert!(cache.memory().page_bytes > 0);
    }
}
