//! Steps by a plan on the device, captured once and replayed, against `attend` a token at a time.

use std::cell::RefCell;

use burn::tensor::{DType, Tensor, TensorData, capture};
use burn_oscar::backend::fused_calls;
use burn_oscar::{AttentionOptions, KvCache, KvCacheConfig};
use capabilities::recipes::{Noise, kernel_device, method};

use super::{alone, error, numbers};

const LAYERS: usize = 2;
const KV_HEADS: usize = 2;
const HEADS: usize = 4;
const HEAD_DIM: usize = 64;
const SINK: usize = 3;
const RECENT: usize = 8;

/// Queries, keys and values of one token per row for each layer, at addresses that stay.
struct Step([[Tensor<4>; 3]; LAYERS]);

impl Step {
    /// Overwrites the numbers in place.
    fn refresh(&mut self, noise: &mut Noise) {
        for tensor in self.0.iter_mut().flatten() {
            let shape = tensor.dims();
            let numbers = noise.numbers(shape.iter().product());
            let new = Tensor::from_data(TensorData::new(numbers, shape), &tensor.device());
            tensor.inplace(|tensor| tensor.slice_assign(shape.map(|size| 0..size), new));
        }
    }
}

/// Caches of two rows of different lengths, one cache as the other.
fn caches(name: &str, lengths: [usize; 2], noise: &mut Noise) -> [KvCache; 2] {
    let device = kernel_device();
    let mut caches = [0, 1].map(|_| {
        let config = KvCacheConfig::new(LAYERS, KV_HEADS, HEAD_DIM)
            .with_method(method(name).with_sink(SINK).with_recent(RECENT))
            .with_max_tokens(1024)
            .with_max_sequences(2)
            .with_poison(true);
        let mut cache = config.init(&device).unwrap();
        cache.add_sequence().unwrap();
        cache
    });
    for layer in 0..LAYERS {
        for (row, tokens) in lengths.into_iter().enumerate() {
            let shape = [1, KV_HEADS, tokens, HEAD_DIM];
            let [key, value] = [0, 1].map(|_| noise.tensor(shape, DType::F32, &device));
            for cache in &mut caches {
                let rows = AttentionOptions::causal().rows(&[cache.sequences()[row]]);
                cache
                    .extend(layer, key.clone(), value.clone(), rows)
                    .unwrap();
            }
        }
    }
    caches
}

/// Decodes `steps` tokens of each row both ways.
fn check(name: &str, lengths: [usize; 2], steps: usize, pages: [usize; 2]) {
    let device = kernel_device();
    let mut noise = Noise(lengths[0] as u64);
    let [cache, mut expected] = caches(name, lengths, &mut noise);
    let cache = RefCell::new(cache);
    let step = RefCell::new(Step([0, 1].map(|_| {
        [HEADS, KV_HEADS, KV_HEADS]
            .map(|heads| noise.tensor([2, heads, 1, HEAD_DIM], DType::F32, &device))
    })));

    let options = AttentionOptions::causal();
    cache.borrow_mut().plan_decode(&options).unwrap();
    let before = fused_calls();
    let mut graph = capture(&device, || {
        let Step(layers) = &*step.borrow();
        let mut cache = cache.borrow_mut();
        layers.each_ref().map(|tensors| {
            let layer = layers.iter().position(|other| std::ptr::eq(other, tensors));
            let [query, key, value] = tensors.clone();
            cache
                .decode(layer.expect("one of them"), query, key, value)
                .unwrap()
        })
    });
    assert!(fused_calls() >= before + LAYERS as u64);
    let on_gpu = std::env::var("BURN_OSCAR_DEVICE").is_ok_and(|name| name == "cuda");
    assert_eq!(graph.is_hardware(), on_gpu, "captured as a graph");

    for at in 0..steps {
        if at > 0 {
            step.borrow_mut().refresh(&mut noise);
            // SAFETY: cache, plan and inputs outlive the graph, and this thread alone uses them.
            #[allow(unsafe_code)]
            unsafe {
                graph.replay();
            }
        }
        for layer in 0..LAYERS {
            let [query, key, value] = step.borrow().0[layer].clone();
            let wanted = expected.attend(layer, query, key, value, options.clone());
            let wanted = numbers(wanted.unwrap());
            let found = numbers(graph.output()[layer].clone());
            let error = error(&found, &wanted);
            assert!(error < 1e-6, "{name}, token {at}, layer {layer}: {error:e}");
        }
        cache.borrow_mut().commit_decode().unwrap();
        assert_eq!(cache.borrow().lens(), expected.lens());
    }

    let cache = cache.borrow();
    for (row, id) in cache.sequences().into_iter().enumerate() {
        for layer in 0..LAYERS {
            let (_, plan) = cache.decode_parts(layer).unwrap();
            assert_eq!(plan.rows[row].pages.len(), pages[row]);
            let [found, wanted] =
                [&cache, &expected].map(|cache| cache.dequantize(id, layer).unwrap().map(numbers));
            assert!(found == wanted, "{name}, row {row}, layer {layer}: stored");
        }
    }
}

#[test]
fn replayed_steps_are_those_of_attend() {
    let _alone = alone();
    // Row 0 packs a page with tokens 2 and 66, row 1 with 5 and 69.
    let [first, second] = [SINK + RECENT + 64 - 2, SINK + RECENT + 2 * 64 - 5];
    check("kivi", [first, second], 70, [2, 3]);
}

#[test]
fn replayed_steps_of_other_recipes() {
    let _alone = alone();
    let length = SINK + RECENT + 64;
    check("oscar_scaled", [length - 1, length - 3], 5, [1, 1]);
    let length = SINK + RECENT + 256;
    check("hadamard_centred", [length - 2, length - 1], 4, [1, 1]);
    check("exact", [1, 2], 4, [0, 0]);
}
