//! Decoding by a plan: when a plan holds, when it is refused, and what then.

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_oscar::{AttentionOptions, Error, KvCache, KvCacheConfig, Method};

const LAYERS: usize = 2;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const PAGE: usize = 64;

fn vectors(seed: usize, shape: [usize; 4]) -> Tensor<4> {
    let number = |i| ((seed * 31 + i) as f32 * 0.7391).sin();
    let numbers: Vec<f32> = (0..shape.iter().product()).map(number).collect();
    Tensor::from_data(TensorData::new(numbers, shape), &Device::flex())
}

/// Two sequences of so many tokens.
fn cache(lengths: [usize; 2], max_tokens: usize) -> KvCache {
    let mut cache = KvCacheConfig::new(LAYERS, KV_HEADS, HEAD_DIM)
        .with_method(Method::oscar_scaled().with_sink(3).with_recent(8))
        .with_max_tokens(max_tokens)
        .with_max_sequences(4)
        .with_poison(true)
        .init(&Device::flex())
        .unwrap();
    cache.add_sequence().unwrap();
    for (row, tokens) in lengths.into_iter().enumerate() {
        let rows = AttentionOptions::causal().rows(&[cache.sequences()[row]]);
        extend(&mut cache, 1, tokens, rows);
    }
    cache
}

fn extend(cache: &mut KvCache, rows: usize, tokens: usize, options: AttentionOptions) {
    for layer in 0..LAYERS {
        let [key, value] =
            [1, 2].map(|seed| vectors(seed + layer, [rows, KV_HEADS, tokens, HEAD_DIM]));
        cache.extend(layer, key, value, options.clone()).unwrap();
    }
}

fn token(seed: usize, rows: usize) -> [Tensor<4>; 3] {
    [4, KV_HEADS, KV_HEADS].map(|heads| vectors(seed + heads, [rows, heads, 1, HEAD_DIM]))
}

fn decode(cache: &mut KvCache, seed: usize) -> Result<Vec<Tensor<4>>, Error> {
    (0..LAYERS)
        .map(|layer| {
            let [query, key, value] = token(seed + layer, 2);
            cache.decode(layer, query, key, value)
        })
        .collect()
}

fn attend(cache: &mut KvCache, seed: usize) -> Vec<Tensor<4>> {
    (0..LAYERS)
        .map(|layer| {
            let [query, key, value] = token(seed + layer, 2);
            let options = AttentionOptions::causal();
            cache.attend(layer, query, key, value, options).unwrap()
        })
        .collect()
}

fn plan(cache: &mut KvCache) {
    cache.plan_decode(&AttentionOptions::causal()).unwrap();
}

fn bits(tensors: &[Tensor<4>]) -> Vec<Vec<f32>> {
    let numbers = |tensor: &Tensor<4>| tensor.clone().try_into_vec_as().unwrap();
    tensors.iter().map(numbers).collect()
}

fn is_refused<T>(result: Result<T, Error>) -> bool {
    matches!(
        result,
        Err(Error::Option {
            option: "decode",
            ..
        })
    )
}

#[test]
fn planned_tokens_are_those_of_attend() {
    let lengths = [3 + 8 + PAGE - 2, 40];
    let [mut planned, mut expected] = [(); 2].map(|()| cache(lengths, 256));
    plan(&mut planned);
    for at in 0..PAGE + 4 {
        let found = decode(&mut planned, at).unwrap();
        planned.commit_decode().unwrap();
        let wanted = attend(&mut expected, at);
        assert_eq!(bits(&found), bits(&wanted), "token {at}");
    }
    assert_eq!(planned.lens(), expected.lens());
    assert_eq!(planned.memory(), expected.memory());
    assert!(planned.memory().page_bytes > 0);
}

#[test]
fn a_token_decoded_again_is_the_same_token() {
    let mut cache = cache([20, 90], 256);
    plan(&mut cache);
    let first = decode(&mut cache, 5).unwrap();
    decode(&mut cache, 6).unwrap();
    let again = decode(&mut cache, 5).unwrap();
    assert_eq!(bits(&first), bits(&again));
    assert_eq!(cache.lens(), [20, 90]);
    cache.commit_decode().unwrap();
    assert_eq!(cache.lens(), [21, 91]);
}

#[test]
fn a_plan_is_needed_and_serves_one_token() {
    let mut cache = cache([20, 90], 256);
    assert!(is_refused(decode(&mut cache, 0)));
    assert!(is_refused(cache.commit_decode()));
    plan(&mut cache);
    let [query, key, value] =
        [4, KV_HEADS, KV_HEADS].map(|heads| vectors(0, [2, heads, 2, HEAD_DIM]));
    let two = cache.decode(0, query, key, value);
    assert!(matches!(
        two,
        Err(Error::Shape {
            tensor: "query",
            ..
        })
    ));
    let [query, key, value] = token(0, 1);
    let row = cache.decode(0, query, key, value);
    assert!(matches!(row, Err(Error::Shape { .. })));
    let [query, key, value] = token(0, 2);
    let other = cache.decode(0, query.cast(DType::F16), key, value);
    assert!(matches!(other, Err(Error::Dtype { .. })));
    let [query, key, value] = token(0, 2);
    let layer = cache.decode(LAYERS, query, key, value);
    assert!(matches!(layer, Err(Error::Layer { .. })));
    decode(&mut cache, 0).unwrap();
    cache.commit_decode().unwrap();
    assert_eq!(cache.lens(), [21, 91]);
}

/// A call that changes the sequences, and its name.
type Change = (&'static str, fn(&mut KvCache));

#[test]
fn a_plan_ends_where_sequences_change() {
    let changes: [Change; 9] = [
        ("attend", |cache| drop(attend(cache, 9))),
        ("extend", |cache| {
            extend(cache, 2, 1, AttentionOptions::causal());
        }),
        ("truncate", |cache| {
            cache.truncate(cache.sequences()[0], 70).unwrap();
        }),
        ("truncate by one, and back", |cache| {
            let id = cache.sequences()[0];
            cache.truncate(id, cache.lens()[0] - 1).unwrap();
            let rows = AttentionOptions::causal().rows(&[id]);
            extend(cache, 1, 1, rows);
        }),
        ("fork", |cache| {
            cache.fork(cache.sequences()[0]).unwrap();
        }),
        ("add", |cache| {
            cache.add_sequence().unwrap();
        }),
        ("free", |cache| cache.free(cache.sequences()[0]).unwrap()),
        ("reorder", |cache| {
            let ids = cache.sequences();
            cache.reorder(&[ids[1], ids[0]]).unwrap();
        }),
        ("reset", |cache| {
            cache.reset();
        }),
    ];
    for (name, change) in changes {
        let [mut cache, mut expected] = [(); 2].map(|()| cache([90, 20], 256));
        plan(&mut cache);
        decode(&mut cache, 0).unwrap();
        cache.commit_decode().unwrap();
        attend(&mut expected, 0);
        change(&mut cache);
        change(&mut expected);
        let lens = cache.lens();
        assert!(is_refused(decode(&mut cache, 1)), "{name}: decode");
        assert!(is_refused(cache.commit_decode()), "{name}: commit_decode");
        assert!(is_refused(cache.decode_parts(0)), "{name}: decode_parts");
        assert_eq!(cache.lens(), lens, "{name}");

        // A new plan decodes what `attend` gives.
        for cache in [&mut cache, &mut expected] {
            match cache.sequences()[..] {
                [_] => _ = cache.add_sequence().unwrap(),
                [_, _, third] => cache.free(third).unwrap(),
                _ => {}
            }
        }
        plan(&mut cache);
        let found = decode(&mut cache, 1).unwrap();
        cache.commit_decode().unwrap();
        let wanted = attend(&mut expected, 1);
        assert_eq!(bits(&found), bits(&wanted), "{name}");
        assert_eq!(cache.lens(), expected.lens(), "{name}");
    }
}

#[test]
fn an_exhausted_pool_keeps_the_tokens() {
    // Four pages: room for one of each of four sequences.
    let full = 3 + 8 + PAGE;
    let mut cache = cache([full - 1, full + 2 * PAGE - 2], full);
    plan(&mut cache);
    let page = cache.memory().page_bytes / 2;
    decode(&mut cache, 0).unwrap();
    cache.commit_decode().unwrap();
    assert_eq!(cache.memory().page_bytes, 3 * page);
    decode(&mut cache, 1).unwrap();
    cache.commit_decode().unwrap();
    assert_eq!(cache.memory().page_bytes, 4 * page);
    let mut held = cache.lens();
    let error = loop {
        decode(&mut cache, 2).unwrap();
        let committed = cache.commit_decode();
        held = held.into_iter().map(|len| len + 1).collect();
        assert_eq!(cache.lens(), held);
        if let Err(error) = committed {
            break error;
        }
    };
    assert!(matches!(error, Error::PoolExhausted { .. }), "{error}");
    assert!(is_refused(decode(&mut cache, 3)));
    assert!(is_refused(cache.commit_decode()));
    assert!(cache.plan_decode(&AttentionOptions::causal()).is_err());
    assert_eq!(cache.lens(), held);
    let ids = cache.sequences();
    cache.truncate(ids[0], 2).unwrap();
    plan(&mut cache);
    decode(&mut cache, 4).unwrap();
    cache.commit_decode().unwrap();
    assert_eq!(cache.lens(), [3, held[1] + 1]);
}
