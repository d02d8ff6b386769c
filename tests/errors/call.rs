//! Calls on a cache that fail, and leave it as it was.

use burn::tensor::{DType, Tensor};
use burn_oscar::{AttentionOptions, Method};

use super::assert_message;
use super::unchanged::{
    HEAD_DIM, Snapshot, attend, attend_rows, cache, check, first, foreign, key, key_of, key_with,
    query, vectors, work_on,
};

#[test]
fn tensors_of_wrong_shapes_and_dtypes() {
    check(
        Method::kivi(),
        &[
            (
                "query heads no multiple",
                |cache| attend(cache, query(3, 1), key(1), key(1)),
                "3 query heads over 2 KV heads: the query heads must be a multiple, with at most \
                 16 per KV head",
            ),
            (
                "too many query heads",
                |cache| attend(cache, query(34, 1), key(1), key(1)),
                "34 query heads over 2 KV heads: the query heads must be a multiple, with at most \
                 16 per KV head",
            ),
            (
                "fewer rows than sequences",
                |cache| attend(cache, query(4, 1).narrow(0, 0, 1), key(1), key(1)),
                "query has shape [1, 4, 1, 64], expected [2 sequences, query heads, at least 1 \
                 token, 64 channels]",
            ),
            (
                "another head_dim",
                |cache| attend(cache, query(4, 1).narrow(3, 0, 48), key(1), key(1)),
                "query has shape [2, 4, 1, 48], expected [2 sequences, query heads, at least 1 \
                 token, 64 channels]",
            ),
            (
                "no tokens",
                |cache| attend(cache, query(4, 0), key(0), key(0)),
                "query has shape [2, 4, 0, 64], expected [2 sequences, query heads, at least 1 \
                 token, 64 channels]",
            ),
            (
                "more keys than queries",
                |cache| attend(cache, query(4, 1), key(2), key(2)),
                "key has shape [2, 2, 2, 64], expected [2, 2 KV heads, 1, 64] as the query and \
                 the cache, at least 1 of each",
            ),
            (
                "other KV heads",
                |cache| attend(cache, query(4, 1), key(1), vectors(1, [2, 4, 1, HEAD_DIM])),
                "value has shape [2, 4, 1, 64], expected [2, 2 KV heads, 1, 64] as the query and \
                 the cache, at least 1 of each",
            ),
            (
                "queries of another dtype",
                |cache| attend(cache, query(4, 1).cast(DType::F16), key(1), key(1)),
                "query has dtype F16, the cache holds F32: cast it, or set \
                 KvCacheConfig::with_dtype",
            ),
            (
                "keys of another dtype",
                |cache| attend(cache, query(4, 1), key(1).cast(DType::BF16), key(1)),
                "key has dtype BF16, the cache holds F32: cast it, or set \
                 KvCacheConfig::with_dtype",
            ),
            (
                "values of another dtype",
                |cache| attend(cache, query(4, 1), key(1), key(1).cast(DType::F16)),
                "value has dtype F16, the cache holds F32: cast it, or set \
                 KvCacheConfig::with_dtype",
            ),
            (
                "scale",
                |cache| {
                    let options = AttentionOptions::causal().with_scale(f64::NAN);
                    cache
                        .attend(0, query(4, 1), key(1), key(1), options)
                        .map(drop)
                },
                "scale NaN: scores are multiplied by a finite number",
            ),
        ],
    );
}

#[test]
fn layers_and_sequences_that_are_not_there() {
    const UNKNOWN: &str =
        "sequence 8 is not in the cache: it was freed, or belongs to another cache";
    const NO_LAYER: &str = "layer 2 does not exist: the cache was made for 2 layers (0 to 1)";
    const FULL: &str = "the cache holds 2 sequences, its limit: free one, or raise KvCacheConfig::with_max_sequences";
    check(
        Method::hadamard(),
        &[
            (
                "attend to a layer past the end",
                |cache| {
                    let options = AttentionOptions::causal();
                    cache
                        .attend(2, query(4, 1), key(1), key(1), options)
                        .map(drop)
                },
                NO_LAYER,
            ),
            (
                "dequantize",
                |cache| cache.dequantize(first(cache), 2).map(drop),
                NO_LAYER,
            ),
            (
                "packed_words",
                |cache| cache.packed_words(first(cache), 2).map(drop),
                NO_LAYER,
            ),
            ("transform", |cache| cache.transform(2).map(drop), NO_LAYER),
            (
                "attend to an unknown sequence",
                |cache| attend_rows(cache, &[foreign()]),
                UNKNOWN,
            ),
            ("len", |cache| cache.len(foreign()).map(drop), UNKNOWN),
            ("truncate", |cache| cache.truncate(foreign(), 1), UNKNOWN),
            ("fork", |cache| cache.fork(foreign()).map(drop), UNKNOWN),
            ("free", |cache| cache.free(foreign()), UNKNOWN),
            (
                "reorder",
                |cache| cache.reorder(&[first(cache), foreign()]).map(drop),
                UNKNOWN,
            ),
            (
                "dequantize",
                |cache| cache.dequantize(foreign(), 0).map(drop),
                UNKNOWN,
            ),
            (
                "packed_words",
                |cache| cache.packed_words(foreign(), 0).map(drop),
                UNKNOWN,
            ),
            (
                "one sequence twice",
                |cache| attend_rows(cache, &[first(cache), first(cache)]),
                "sequence 0 is named twice in one call: fork it first",
            ),
            (
                "a third sequence",
                |cache| cache.add_sequence().map(drop),
                FULL,
            ),
            (
                "a third by fork",
                |cache| cache.fork(first(cache)).map(drop),
                FULL,
            ),
            (
                "a third by reorder",
                |cache| cache.reorder(&[first(cache); 3]).map(drop),
                FULL,
            ),
            (
                "truncate beyond the end",
                |cache| cache.truncate(first(cache), 151),
                "cannot truncate sequence 0 to 151 tokens: it holds 150",
            ),
        ],
    );
}

#[test]
fn prompts_longer_than_the_pool() {
    const FULL: &str = "layer 0: 9 more pages of 64 tokens are needed and 6 of 8 are free: shorten \
        the prompt, free sequences, or raise KvCacheConfig::with_max_tokens";
    check(
        Method::oscar_scaled(),
        &[
            (
                "in one call",
                |cache| attend(cache, query(4, 300), key(300), key(300)),
                FULL,
            ),
            (
                "as a stream",
                |cache| {
                    let options = AttentionOptions::causal().streaming();
                    cache
                        .attend(0, query(4, 300), key(300), key(300), options)
                        .map(drop)
                },
                FULL,
            ),
        ],
    );
}

#[test]
fn numbers_that_are_not_finite() {
    const KEY: &str = "layer 0: the key holds NaN or an infinity, which would spoil every later \
        token; nothing was stored";
    const VALUE: &str = "layer 0: the value holds NaN or an infinity, which would spoil every \
        later token; nothing was stored";
    for method in [Method::exact(), Method::kivi(), Method::oscar_scaled()] {
        check(
            method,
            &[
                (
                    "NaN key",
                    |c| attend(c, query(4, 1), key_with(f32::NAN), key(1)),
                    KEY,
                ),
                (
                    "infinite key",
                    |c| attend(c, query(4, 1), key_with(f32::INFINITY), key(1)),
                    KEY,
                ),
                (
                    "NaN value",
                    |c| attend(c, query(4, 1), key(1), key_with(f32::NAN)),
                    VALUE,
                ),
                (
                    "infinite value",
                    |c| attend(c, query(4, 1), key(1), key_with(f32::NEG_INFINITY)),
                    VALUE,
                ),
                (
                    "NaN in a long prompt",
                    |c| {
                        let spoilt = Tensor::cat(vec![key(99), key_with(f32::NAN)], 2);
                        attend(c, query(4, 100), key(100), spoilt)
                    },
                    VALUE,
                ),
            ],
        );
    }
}

#[test]
fn magnitudes_beyond_what_parameters_hold() {
    check(
        Method::kivi(),
        &[
            (
                "key",
                |cache| attend(cache, query(4, 1), key_with(-1e5), key(1)),
                "layer 0: the key reaches 1e5 after its transform, and f16 parameters hold at \
                 most 6.5504e4: scale the activations, or keep this side exact",
            ),
            (
                "value",
                |cache| attend(cache, query(4, 1), key(1), key_with(7e4)),
                "layer 0: the value reaches 7e4 after its transform, and f16 parameters hold at \
                 most 6.5504e4: scale the activations, or keep this side exact",
            ),
        ],
    );
    // The rotation makes one channel of 64 equal ones, 8 times as large.
    check(
        Method::hadamard(),
        &[(
            "key",
            |cache| attend(cache, query(4, 1), key_of(1e4), key(1)),
            "layer 0: the key reaches 8e4 after its transform, and f16 parameters hold at most \
             6.5504e4: scale the activations, or keep this side exact",
        )],
    );
    check(
        Method::oscar_scaled(),
        &[(
            "key",
            |cache| attend(cache, query(4, 1), key_of(1e3), key(1)),
            "layer 0: the key reaches 8e3 after its transform, and f16 token norms hold at most \
             5.78*e3: scale the activations, or keep this side exact",
        )],
    );
    check(
        Method::hadamard_centred(),
        &[(
            "value",
            |cache| attend(cache, query(4, 1), key(1), key_of(100.0)),
            "layer 0: the value reaches 8e2 after its transform, and 8-bit scales hold at most \
             *e2: scale the activations, or keep this side exact",
        )],
    );
    // Exact pages hold whatever the activations do.
    let mut exact = cache(Method::exact());
    attend(&mut exact, query(4, 1), key_with(1e30), key_with(1e30)).unwrap();
}

/// A model whose second layer refuses leaves its first layer one step ahead.
#[test]
fn a_step_that_fails_half_way_is_undone_by_truncation() {
    for method in [Method::exact(), Method::kivi(), Method::oscar_scaled()] {
        let mut spared = cache(method.clone());
        let mut tried = cache(method);
        let before = Snapshot::of(&tried);
        let [id, other] = tried.sequences()[..] else {
            panic!("two sequences")
        };
        attend(&mut tried, query(4, 1), key(1), key(1)).unwrap();
        let options = AttentionOptions::causal();
        let refused = tried.attend(1, query(4, 1), key_with(f32::NAN), key(1), options);
        assert_message(
            "the second layer",
            refused,
            "layer 1: the key holds NaN or an infinity, which would spoil every later token; \
             nothing was stored",
        );
        assert_eq!(tried.lens(), [150, 100]);
        const UNEVEN: &str = "sequence 0 is in the middle of a step: its layers hold 150 to 151 \
            tokens; finish the step, or truncate to 150";
        tried.free(other).unwrap();
        assert_message("fork", tried.fork(id), UNEVEN);
        assert_message("reorder", tried.reorder(&[id, id]), UNEVEN);

        let mut tried = cache(spared.config().method().clone());
        attend(&mut tried, query(4, 1), key(1), key(1)).unwrap();
        for (id, len) in tried.sequences().into_iter().zip(tried.lens()) {
            tried.truncate(id, len).unwrap();
        }
        assert!(Snapshot::of(&tried) == before);
        assert!(work_on(&mut tried) == work_on(&mut spared));
    }
}
