//! Gradients: through exact tiers they are those of plain attention, pages are constants.

use burn::tensor::{Device, Distribution, Tensor, activation};
use burn_oscar::{AttentionOptions, KvCacheConfig, Method};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 32;

fn random(heads: usize, tokens: usize, device: &Device) -> Tensor<4> {
    Tensor::random(
        [1, heads, tokens, HEAD_DIM],
        Distribution::Normal(0.0, 1.0),
        device,
    )
}

/// Plain causal attention, `tokens` newest queries over all keys.
fn dense(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Tensor<4> {
    let [_, _, tokens, _] = query.dims();
    let total = key.dims()[2];
    let group = HEADS / KV_HEADS;
    let repeat = |x: Tensor<4>| {
        let parts = (0..HEADS)
            .map(|h| x.clone().narrow(1, h / group, 1))
            .collect();
        Tensor::cat(parts, 1)
    };
    let scores = query.matmul(repeat(key).swap_dims(2, 3)) / (HEAD_DIM as f32).sqrt();
    let mask = Tensor::<2, burn::tensor::Bool>::tril_mask(
        [tokens, total],
        (total - tokens) as i64,
        &scores.device(),
    );
    let scores = scores.mask_fill(mask.unsqueeze(), f32::NEG_INFINITY);
    activation::softmax(scores, 3).matmul(repeat(value))
}

fn assert_close(a: Tensor<4>, b: Tensor<4>, what: &str) {
    let scale: f32 = b.clone().abs().max().into_scalar();
    let difference: f32 = (a - b).abs().max().into_scalar();
    assert!(
        scale > 0.0 && difference < 1e-4 * scale,
        "{what}: {difference} of {scale}"
    );
}

#[test]
fn exact_tiers_have_the_gradients_of_plain_attention() {
    let device = Device::flex().autodiff();
    for method in [Method::exact(), Method::hadamard()] {
        let mut cache = KvCacheConfig::new(1, KV_HEADS, HEAD_DIM)
            .with_method(method)
            .init(&device)
            .unwrap();
        let tensors = [HEADS, KV_HEADS, KV_HEADS].map(|heads| random(heads, 20, &device));
        let weight = random(HEADS, 20, &device);
        let [q, k, v] = tensors.clone().map(|t| t.require_grad());
        let options = AttentionOptions::causal();
        // Two calls: the second also reaches the first one's keys and values.
        let part = |t: &Tensor<4>, start, count| t.clone().narrow(2, start, count);
        let first = cache
            .attend(
                0,
                part(&q, 0, 12),
                part(&k, 0, 12),
                part(&v, 0, 12),
                options.clone(),
            )
            .unwrap();
        let second = cache
            .attend(
                0,
                part(&q, 12, 8),
                part(&k, 12, 8),
                part(&v, 12, 8),
                options,
            )
            .unwrap();
        let grads = (Tensor::cat(vec![first, second], 2) * weight.clone())
            .sum()
            .backward();
        let [dq, dk, dv] = tensors.map(|t| t.require_grad());
        let expected = (dense(dq.clone(), dk.clone(), dv.clone()) * weight)
            .sum()
            .backward();
        for (found, plain, name) in [(&q, &dq, "query"), (&k, &dk, "key"), (&v, &dv, "value")] {
            assert_close(
                found.grad(&grads).unwrap(),
                plain.grad(&expected).unwrap(),
                name,
            );
        }
    }
}

#[test]
fn pages_are_constants_for_the_query() {
    let device = Device::flex().autodiff();
    let mut cache = KvCacheConfig::new(1, KV_HEADS, HEAD_DIM)
        .with_method(Method::hadamard().with_sink(4).with_recent(8))
        .init(&device)
        .unwrap();
    let old = random(KV_HEADS, 140, &device).require_grad();
    let options = AttentionOptions::causal();
    cache
        .attend(
            0,
            random(HEADS, 140, &device),
            old.clone(),
            old.clone(),
            options.clone(),
        )
        .unwrap();
    let [keys, values] = cache
        .dequantize(cache.sequences()[0], 0)
        .unwrap()
        .map(Tensor::detach);

    let [q, k, v] =
        [HEADS, KV_HEADS, KV_HEADS].map(|heads| random(heads, 1, &device).require_grad());
    let output = cache
        .attend(0, q.clone(), k.clone(), v.clone(), options)
        .unwrap();
    let grads = output.sum().backward();

    let [q2, k2, v2] = [&q, &k, &v].map(|t| t.clone().detach().require_grad());
    let all =
        |past: Tensor<3>, new: &Tensor<4>| Tensor::cat(vec![past.unsqueeze(), new.clone()], 2);
    let plain = dense(q2.clone(), all(keys, &k2), all(values, &v2));
    let expected = plain.sum().backward();
    for (found, plain, name) in [(&q, &q2, "query"), (&k, &k2, "key"), (&v, &v2, "value")] {
        assert_close(
            found.grad(&grads).unwrap(),
            plain.grad(&expected).unwrap(),
            name,
        );
    }
    // Of the old tokens, the 4 sinks and those still recent have a gradient, packed ones none.
    let old: Tensor<4> = old.grad(&grads).unwrap();
    let by_token: Vec<f32> = old.abs().sum_dim(3).sum_dim(1).try_into_vec_as().unwrap();
    for (t, gradient) in by_token.iter().enumerate() {
        let exact = !(4..4 + 128).contains(&t);
        assert_eq!(*gradient > 0.0, exact, "token {t}: {gradient}");
    }
}
