//! Adapters and padded calls that are refused, and leave the cache as it was.

use burn::nn::attention::{
    CrossAttentionConfig, MultiHeadAttention, MultiHeadAttentionConfig,
    generate_autoregressive_mask,
};
use burn::nn::transformer::TransformerDecoderConfig;
use burn::tensor::{Bool, DType, Device, Tensor};
use burn_oscar::module::{
    CachedAttention, CachedCrossAttention, CachedTransformerDecoder, DecoderCache,
    check_causal_mask,
};
use burn_oscar::{AttentionOptions, KvCache, Method, Padding, Result};

use super::assert_message;
use super::unchanged::{HEAD_DIM, KV_HEADS, check, key, query, vectors};
use crate::module::mask;

const D_MODEL: usize = KV_HEADS * HEAD_DIM;

fn trained() -> MultiHeadAttention {
    MultiHeadAttentionConfig::new(D_MODEL, KV_HEADS).init(&Device::flex())
}

fn x(batch: usize, tokens: usize, width: usize) -> Tensor<3> {
    vectors(3, [1, batch, tokens, width]).reshape([batch, tokens, width])
}

/// Of rows with the given `(start, tokens)`.
fn padding(rows: &[(usize, usize)], width: usize) -> AttentionOptions {
    let padding = Padding::from_mask(mask(rows, width, &Device::flex())).unwrap();
    AttentionOptions::causal().padding(&padding)
}

fn forward(cache: &mut KvCache, x: Tensor<3>, options: AttentionOptions) -> Result<()> {
    let attention = CachedAttention::new(&trained())?;
    attention.forward(cache, 1, x, options).map(drop)
}

fn attend(cache: &mut KvCache, side: Tensor<4>, options: AttentionOptions) -> Result<()> {
    let query = query(4, side.dims()[2]);
    cache
        .attend(1, query, side.clone(), side, options)
        .map(drop)
}

#[test]
fn calls_of_adapters() {
    check(
        Method::kivi(),
        &[
            (
                "another width",
                |cache| forward(cache, x(2, 1, 64), AttentionOptions::causal()),
                "x has shape [2, 1, 64], expected [at least 1 row, at least 1 token, 128]",
            ),
            (
                "no tokens",
                |cache| {
                    let nothing = Tensor::zeros([2, 0, D_MODEL], &Device::flex());
                    forward(cache, nothing, AttentionOptions::causal())
                },
                "x has shape [2, 0, 128], expected [at least 1 row, at least 1 token, 128]",
            ),
            (
                "another batch",
                |cache| forward(cache, x(1, 1, D_MODEL), AttentionOptions::causal()),
                "query has shape [1, 2, 1, 64], expected [2 sequences, query heads, at least 1 \
                 token, 64 channels]",
            ),
            (
                "another dtype",
                |cache| {
                    let x = x(2, 1, D_MODEL).cast(DType::F16);
                    forward(cache, x, AttentionOptions::causal())
                },
                "x has dtype F16, the cache holds F32: cast it, or set KvCacheConfig::with_dtype",
            ),
            (
                "padding of another width",
                |cache| forward(cache, x(2, 4, D_MODEL), padding(&[(0, 3), (1, 2)], 3)),
                "mask_pad has shape [2, 3], expected [2, 4] as the batch and the tokens of this \
                 call",
            ),
            (
                "NaN in the second length of a padded batch",
                |cache| {
                    let side = key(5).slice_fill([1..2, 0..1, 3..4, 7..8], f32::NAN);
                    attend(cache, side, padding(&[(0, 5), (3, 2)], 5))
                },
                "layer 1: the key holds NaN or an infinity, which would spoil every later token; \
                 nothing was stored",
            ),
            (
                "room for one length of a padded batch only",
                |cache| attend(cache, key(500), padding(&[(0, 300), (200, 290)], 500)),
                "layer 1: * more pages of 64 tokens are needed and * of * are free: shorten the \
                 prompt, free sequences, or raise KvCacheConfig::with_max_tokens",
            ),
            (
                "the same in extend",
                |cache| {
                    let options = padding(&[(0, 300), (200, 290)], 500);
                    cache.extend(1, key(500), key(500), options)
                },
                "layer 1: * more pages of 64 tokens are needed and * of * are free: shorten the \
                 prompt, free sequences, or raise KvCacheConfig::with_max_tokens",
            ),
            (
                "padding where nothing is appended",
                |cache| {
                    let options = padding(&[(0, 1), (0, 1)], 1);
                    cache.attend_only(1, query(4, 1), options).map(drop)
                },
                "padding in attend_only: padding is left out where tokens are appended, by \
                 `attend` and `extend`",
            ),
            (
                "padding in a plan",
                |cache| cache.plan_decode(&padding(&[(0, 1), (0, 1)], 1)),
                "padding in plan_decode: padding is left out where tokens are appended, by \
                 `attend` and `extend`",
            ),
            (
                "a memory row of padding",
                |cache| {
                    let cross = CachedCrossAttention::from_multi_head(&trained())?;
                    cross.encode(cache, 1, x(2, 4, D_MODEL), padding(&[(0, 4), (0, 0)], 4))
                },
                "mask_pad of row 1: all of it is padding, and a decoder has to attend to \
                 something: leave the row out",
            ),
        ],
    );
}

#[test]
fn masks_with_holes_and_other_masks() {
    let device = Device::flex();
    let holes = Tensor::<2, Bool>::from_data(
        [[false, false, false, false], [true, false, true, false]],
        &device,
    );
    assert_message(
        "holes",
        Padding::from_mask(holes),
        "mask_pad of row 1: padding lies between tokens: only padding before and after a row's \
         tokens can be left out, so move the tokens together",
    );
    let causal = generate_autoregressive_mask(2, 3, &device);
    check_causal_mask(causal.clone()).unwrap();
    let window = Tensor::<3, Bool>::from_data(
        [[
            [false, true, true],
            [false, false, true],
            [true, false, false],
        ]],
        &device,
    );
    assert_message(
        "a window",
        check_causal_mask(Tensor::cat(vec![causal.narrow(0, 0, 1), window], 0)),
        "mask_attn of row 1: it masks token 0 for token 2, and only the causal mask is served: \
         give padding as mask_pad, and drop other masks or attend densely",
    );
    assert_message(
        "everything visible",
        check_causal_mask(Tensor::<3, Bool>::from_data([[[false, false]; 2]], &device)),
        "mask_attn of row 0: it shows token 1 for token 0, and only the causal mask is served: \
         give padding as mask_pad, and drop other masks or attend densely",
    );
}

#[test]
fn trained_modules_that_do_not_fit() {
    let device = Device::flex();
    let quiet = |module: &str| {
        format!(
            "{module}: quiet_softmax is true; the cache's attention weights add up to 1: train \
             with the plain softmax, or attend densely"
        )
    };
    let mha = MultiHeadAttentionConfig::new(D_MODEL, 2)
        .with_quiet_softmax(true)
        .init(&device);
    let expected = quiet("MultiHeadAttention");
    assert_message("attention", CachedAttention::new(&mha), &expected);
    assert_message(
        "cross",
        CachedCrossAttention::from_multi_head(&mha),
        &expected,
    );
    let decoder = TransformerDecoderConfig::new(D_MODEL, 32, 2, 1)
        .with_quiet_softmax(true)
        .init(&device);
    assert_message(
        "decoder",
        CachedTransformerDecoder::new(&decoder),
        &expected,
    );

    let config = CrossAttentionConfig::new(64, 64, 2, 2, 32);
    let cross = config.init(&device);
    assert_message(
        "CrossAttention",
        CachedCrossAttention::new(&cross, &config.clone().with_quiet_softmax(true)),
        &quiet("CrossAttention"),
    );
    assert_message(
        "another configuration",
        CachedCrossAttention::new(&cross, &CrossAttentionConfig::new(64, 48, 2, 2, 32)),
        "CrossAttention: record is refused (*); give the configuration that the module was \
         trained with",
    );
    let mut wrong = trained();
    wrong.n_heads = 3;
    assert_message(
        "heads",
        CachedAttention::new(&wrong),
        "query weight has shape [128, 128], expected [128, 192], and a bias of [192] or none",
    );
}

#[test]
fn a_decoder_that_fails_leaves_its_cache_as_it_was() {
    let device = Device::flex();
    let trained = TransformerDecoderConfig::new(D_MODEL, 32, 2, 2).init(&device);
    let decoder = CachedTransformerDecoder::new(&trained).unwrap();
    let config = decoder.cache_config().with_max_tokens(64);
    let mut cache = DecoderCache::new(config.clone(), config, 2, &device).unwrap();
    assert_message(
        "nothing encoded",
        decoder.forward(&mut cache, x(2, 1, D_MODEL), None),
        "layer 0 of sequence 0 holds no tokens to attend to: encode or append some first",
    );
    decoder.encode(&mut cache, x(2, 5, D_MODEL), None).unwrap();
    decoder.forward(&mut cache, x(2, 7, D_MODEL), None).unwrap();
    let call = |cache: &mut DecoderCache, x| decoder.forward(cache, x, None);
    assert_message(
        "another batch",
        call(&mut cache, x(1, 1, D_MODEL)),
        "target has shape [1], expected [2] rows, one for each sequence of the memory",
    );
    assert_message(
        "NaN",
        call(
            &mut cache,
            x(2, 3, D_MODEL).slice_fill([0..1, 2..3, 0..1], f32::NAN),
        ),
        "layer 0: the key holds NaN or an infinity, which would spoil every later token; nothing \
         was stored",
    );
    // The first layer's scores are fine, and what it adds to its input is not.
    let mut broken = trained.clone();
    let outer = &mut broken.layers[0].pwff.linear_outer;
    outer.weight = outer.weight.clone().map(|weight| weight * f32::INFINITY);
    let broken = CachedTransformerDecoder::new(&broken).unwrap();
    assert_message(
        "in the second layer",
        broken.forward(&mut cache, x(2, 3, D_MODEL), None),
        "layer 1: the key holds NaN or an infinity, which would spoil every later token; nothing \
         was stored",
    );
    assert_eq!(
        (cache.target.lens(), cache.memory.lens()),
        (vec![7; 2], vec![5; 2])
    );
    let again = |mut cache: DecoderCache| {
        let out = decoder.forward(&mut cache, x(2, 1, D_MODEL), None).unwrap();
        out.try_into_vec_as::<f32>().unwrap()
    };
    let config = decoder.cache_config().with_max_tokens(64);
    let mut spared = DecoderCache::new(config.clone(), config, 2, &device).unwrap();
    decoder.encode(&mut spared, x(2, 5, D_MODEL), None).unwrap();
    decoder
        .forward(&mut spared, x(2, 7, D_MODEL), None)
        .unwrap();
    assert_eq!(again(cache), again(spared));
}
