//! Whether a call that failed has left the cache as it was.

use burn::tensor::{Device, Tensor, TensorData};
use burn_oscar::{
    AttentionOptions, KvCache, KvCacheConfig, MemoryReport, Method, Result, SequenceId,
};

use super::assert_message;

pub const LAYERS: usize = 2;
pub const KV_HEADS: usize = 2;
pub const HEAD_DIM: usize = 64;

/// Two sequences of 150 and 100 tokens, one page each.
pub fn cache(method: Method) -> KvCache {
    let mut cache = KvCacheConfig::new(LAYERS, KV_HEADS, HEAD_DIM)
        .with_method(method.with_sink(4).with_recent(32))
        .with_max_tokens(256)
        .with_max_sequences(2)
        .with_poison(true)
        .init(&Device::flex())
        .unwrap();
    let first = cache.sequences()[0];
    let second = cache.add_sequence().unwrap();
    for layer in 0..LAYERS {
        for (id, tokens) in [(first, 150), (second, 100)] {
            let [query, key, value] = [4, KV_HEADS, KV_HEADS]
                .map(|heads| vectors(layer * 1000 + tokens + heads, [1, heads, tokens, HEAD_DIM]));
            let options = AttentionOptions::causal().rows(&[id]);
            cache.attend(layer, query, key, value, options).unwrap();
        }
    }
    assert_eq!(cache.lens(), [150, 100]);
    cache
}

/// Numbers between -1 and 1 that depend on the seed only.
pub fn vectors(seed: usize, shape: [usize; 4]) -> Tensor<4> {
    let mut state = seed as u64 + 1;
    let numbers: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    Tensor::from_data(TensorData::new(numbers, shape), &Device::flex())
}

pub fn query(heads: usize, tokens: usize) -> Tensor<4> {
    vectors(7, [2, heads, tokens, HEAD_DIM])
}

pub fn key(tokens: usize) -> Tensor<4> {
    vectors(8, [2, KV_HEADS, tokens, HEAD_DIM])
}

/// Keys or values of one token of each row, one number replaced.
pub fn key_with(number: f32) -> Tensor<4> {
    key(1).slice_fill([1..2, 1..2, 0..1, 63..64], number)
}

/// All numbers of one token of each row the same.
pub fn key_of(number: f32) -> Tensor<4> {
    Tensor::full([2, KV_HEADS, 1, HEAD_DIM], number, &Device::flex())
}

pub fn attend(
    cache: &mut KvCache,
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
) -> Result<()> {
    cache
        .attend(0, query, key, value, AttentionOptions::causal())
        .map(drop)
}

pub fn attend_rows(cache: &mut KvCache, rows: &[SequenceId]) -> Result<()> {
    let options = AttentionOptions::causal().rows(rows);
    cache
        .attend(0, query(4, 1), key(1), key(1), options)
        .map(drop)
}

pub fn first(cache: &KvCache) -> SequenceId {
    cache.sequences()[0]
}

/// The sequence with the number 8 of another cache.
pub fn foreign() -> SequenceId {
    let config = KvCacheConfig::new(1, 1, 16).with_max_sequences(9);
    let mut other = config.init(&Device::flex()).unwrap();
    (0..8)
        .map(|_| other.add_sequence().unwrap())
        .last()
        .unwrap()
}

/// Everything that can be seen of a cache; floats by their bits.
#[derive(Debug, PartialEq)]
pub struct Snapshot {
    sequences: Vec<SequenceId>,
    lens: Vec<usize>,
    memory: MemoryReport,
    words: Vec<Vec<u32>>,
    vectors: Vec<Vec<u32>>,
}

impl Snapshot {
    pub fn of(cache: &KvCache) -> Self {
        let sequences = cache.sequences();
        let places = || {
            sequences
                .iter()
                .flat_map(|&id| (0..LAYERS).map(move |layer| (id, layer)))
        };
        let words = places()
            .flat_map(|(id, layer)| cache.packed_words(id, layer).unwrap())
            .map(|words| words.map_or(Vec::new(), |words| words.try_into_vec_as().unwrap()))
            .collect();
        let vectors = places()
            .flat_map(|(id, layer)| cache.dequantize(id, layer).unwrap())
            .map(bits)
            .collect();
        Self {
            lens: cache.lens(),
            memory: cache.memory(),
            words,
            vectors,
            sequences,
        }
    }
}

pub fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    let numbers: Vec<f32> = tensor.try_into_vec_as().unwrap();
    numbers.into_iter().map(f32::to_bits).collect()
}

/// Adds 70 tokens to each sequence, which packs a page of each, and then fills the pool.
pub fn work_on(cache: &mut KvCache) -> (Vec<Vec<u32>>, Snapshot, String) {
    let outputs = [1, 69]
        .iter()
        .flat_map(|&tokens| (0..LAYERS).map(move |layer| (tokens, layer)))
        .map(|(tokens, layer)| {
            let options = AttentionOptions::causal();
            bits(
                cache
                    .attend(layer, query(4, tokens), key(tokens), key(tokens), options)
                    .unwrap(),
            )
        })
        .collect();
    let full = attend(cache, query(4, 500), key(500), key(500))
        .unwrap_err()
        .to_string();
    (outputs, Snapshot::of(cache), full)
}

pub type Case = (&'static str, fn(&mut KvCache) -> Result<()>, &'static str);

/// Runs the cases one after the other on one cache, which must behave afterwards like one that
/// has not seen them.
pub fn check(method: Method, cases: &[Case]) {
    let mut spared = cache(method.clone());
    let mut tried = cache(method);
    let before = Snapshot::of(&tried);
    assert_eq!(before, Snapshot::of(&spared));
    for (what, call, expected) in cases {
        assert_message(what, call(&mut tried), expected);
        assert!(Snapshot::of(&tried) == before, "{what}: the cache changed");
    }
    assert!(
        work_on(&mut tried) == work_on(&mut spared),
        "the cache works on differently"
    );
}
