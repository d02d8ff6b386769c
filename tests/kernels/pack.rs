//! The kernels that quantise and pack pages against the portable bodies.

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_oscar::backend::{
    Demotion, KvLayer, OptionalTensor, Pages, demote, read_pages, write_pages,
};
use burn_oscar::method::Side;
use burn_oscar::quantizer::{ChannelBits, GroupAxis, Role, Rounding, Segment};
use burn_oscar::{KvCacheConfig, Method};
use capabilities::fixtures::Fixture;
use capabilities::recipes::{Noise, kernel_device, method, methods};

use super::alone;

fn layer(method: &Method, heads: usize, head_dim: usize, dtype: DType, device: &Device) -> Layer {
    let cache = KvCacheConfig::new(1, heads, head_dim)
        .with_method(method.clone().with_sink(3).with_recent(5))
        .with_dtype(dtype)
        .with_max_tokens(6 * method.page_tokens())
        .with_max_sequences(2)
        .with_poison(true)
        .init(device)
        .unwrap();
    cache.layer(0).unwrap().clone()
}

type Layer = KvLayer<Dispatch>;

fn floats<const D: usize>(tensor: DispatchTensor) -> Vec<f32> {
    Tensor::<D>::from_dispatch(tensor)
        .try_into_vec_as()
        .unwrap()
}

/// Everything that a side's pool holds, page by page: words, pairs, norms, means, exact numbers.
struct Held {
    words: Vec<u32>,
    others: [Vec<f32>; 4],
}

fn held(pages: Pages<Dispatch>) -> Held {
    match pages {
        Pages::Exact(held) => Held {
            words: Vec::new(),
            others: [vec![], vec![], vec![], floats::<4>(held)],
        },
        Pages::Packed(packed) => {
            let words = Tensor::<3, Int>::from_dispatch(packed.words);
            let numbers = |tensor, rank| match (tensor, rank) {
                (OptionalTensor::Absent, _) => Vec::new(),
                (OptionalTensor::Present(tensor), 2) => floats::<2>(tensor),
                (OptionalTensor::Present(tensor), _) => floats::<3>(tensor),
            };
            Held {
                words: words.try_into_vec_as().unwrap(),
                others: [
                    numbers(packed.pairs, 3),
                    numbers(packed.norms, 2),
                    numbers(packed.means, 3),
                    vec![],
                ],
            }
        }
    }
}

/// What a side promises: bits that are equal, or nearly all equal where sums come before codes.
fn exact(side: &Side) -> bool {
    side.quantizer.as_ref().is_none_or(|quantizer| {
        quantizer.rounding != Rounding::MidRise && !quantizer.token_norm && !quantizer.page_mean
    })
}

fn same(a: f32, b: f32) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

/// Compares the pools of a side. Returns how many two-bit fields differ, of how many.
fn compare(what: &str, side: &Side, found: Held, expected: Held) -> (usize, usize) {
    let fields = found.words.len() * 16;
    assert_eq!(found.words.len(), expected.words.len());
    let different: usize = (found.words.iter().zip(&expected.words))
        .map(|(f, e)| {
            let bits = f ^ e;
            ((bits | bits >> 1) & 0x5555_5555).count_ones() as usize
        })
        .sum();
    if exact(side) {
        assert_eq!(different, 0, "{what}: of {fields} fields");
    } else {
        assert!(
            different * 500 <= fields,
            "{what}: {different} of {fields} fields"
        );
    }
    for (i, (found, expected)) in found.others.iter().zip(&expected.others).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}: number {i}");
        for (&f, &e) in found.iter().zip(expected) {
            // One bit of f16 where a sum comes first.
            let near = !exact(side) && (f - e).abs() <= e.abs() * 2e-3 + 1e-4;
            assert!(same(f, e) || near, "{what}: number {i}: {f} for {e}");
        }
    }
    (different, fields)
}

/// Squares of the error over squares of the numbers.
fn error(found: &[f32], x: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let noise: f64 = found.iter().zip(x).map(|(f, x)| square(f - x)).sum();
    noise / x.iter().map(|x| square(*x)).sum::<f64>().max(1e-30)
}

/// Writes the same vectors on both devices and compares all of both pools.
fn check(name: &str, method: &Method, numbers: &[Vec<f32>; 2], shape: [usize; 4], dtype: DType) {
    let [n, heads, tokens, head_dim] = shape;
    let what = format!("{name} {shape:?} {dtype:?}");
    let ids: Vec<i32> = [4, 1, 3][..n].to_vec();
    let run = |device: &Device| {
        let stored = layer(method, heads, head_dim, dtype, device);
        // Strides as of a slice of a prefill: heads outermost.
        let [key, value] = [0, 1].map(|side| {
            let data = TensorData::new(numbers[side].clone(), [heads, n, tokens, head_dim]);
            Tensor::<4>::from_data(data, (device, dtype)).swap_dims(0, 1)
        });
        let pages = Tensor::<1, Int>::from_data(TensorData::from(&ids[..]), device);
        let stored = write_pages(stored, key.clone(), value.clone(), pages.clone());
        let read = [Role::Key, Role::Value].map(|side| {
            floats::<4>(read_pages(stored.clone(), pages.clone(), side).into_dispatch())
        });
        let x = [key, value].map(|side| floats::<4>(side.into_dispatch()));
        (stored, read, x)
    };
    let (found, found_read, x) = run(&kernel_device());
    let (expected, expected_read, _) = run(&Device::flex());
    let sides = [
        ("key", method.key_side(), found.key, expected.key),
        ("value", method.value_side(), found.value, expected.value),
    ];
    for (i, (role, side, found, expected)) in sides.into_iter().enumerate() {
        let what = format!("{what} {role}");
        let (different, fields) = compare(&what, side, held(found), held(expected));
        let [f, e] = [&found_read, &expected_read].map(|read| error(&read[i], &x[i]));
        assert!(f <= e * 1.002 + 1e-9, "{what}: error {f} after {e}");
        if different > 0 {
            println!("{what}: {different} of {fields} fields differ, error {f:.6} after {e:.6}");
        }
    }
}

fn random(shape: [usize; 4], seed: u64) -> [Vec<f32>; 2] {
    let mut noise = Noise(seed);
    [0, 1].map(|_| noise.numbers(shape.iter().product()))
}

#[test]
fn packed_pages_are_those_of_the_portable_body() {
    let _alone = alone();
    for (name, method) in methods() {
        let tokens = method.page_tokens();
        for (i, (heads, head_dim, dtype)) in [
            (2, 64, DType::F32),
            (1, 128, DType::BF16),
            (3, 128, DType::F16),
        ]
        .into_iter()
        .enumerate()
        {
            let n = 3 - i;
            let shape = [n, heads, tokens, head_dim];
            check(&name, &method, &random(shape, 7 + i as u64), shape, dtype);
        }
    }
}

#[test]
fn other_head_sizes_pack_as_well() {
    let _alone = alone();
    for (name, method) in methods() {
        for head_dim in [80, 96] {
            let shape = [1, 1, method.page_tokens(), head_dim];
            check(&name, &method, &random(shape, 11), shape, DType::F32);
        }
    }
}

#[test]
fn real_activations_pack_alike() {
    let _alone = alone();
    let golden = Fixture::golden();
    for (name, method) in methods() {
        let tokens = method.page_tokens();
        let numbers = ["k", "v"].map(|side| {
            let (shape, numbers) = golden.numbers(&format!("layer20.{side}"));
            let [heads, held, head_dim] = shape[..] else {
                panic!("three dimensions")
            };
            (0..heads)
                .flat_map(|h| numbers[h * held * head_dim..][..tokens * head_dim].to_vec())
                .collect()
        });
        check(&name, &method, &numbers, [1, 3, tokens, 64], DType::F32);
    }
}

/// A name and the numbers by (token, channel).
type Kind = (&'static str, fn(usize, usize) -> f32);

#[test]
fn degenerate_groups_pack_alike() {
    let _alone = alone();
    let kinds: [Kind; 7] = [
        ("zero", |_, _| 0.0),
        ("constant", |_, _| 0.75),
        ("constant per channel", |_, c| c as f32 * 0.125 - 4.0),
        ("one ulp apart", |t, c| {
            f32::from_bits(1f32.to_bits() + ((t + c) % 2) as u32)
        }),
        ("denormal", |t, c| f32::from_bits(((t * 7 + c) % 5) as u32)),
        ("huge", |t, c| 100.0 * ((t * 7 + c) % 5) as f32 - 200.0),
        (
            "one outlier",
            |t, c| if t == 3 && c == 9 { 100.0 } else { 0.0 },
        ),
    ];
    for (name, method) in methods() {
        let shape = [1, 2, method.page_tokens(), 64];
        for (kind, number) in kinds {
            let numbers: Vec<f32> = (0..shape.iter().product::<usize>())
                .map(|i| number(i / 64 % shape[2], i % 64))
                .collect();
            let what = format!("{name} {kind}");
            check(
                &what,
                &method,
                &[numbers.clone(), numbers],
                shape,
                DType::F32,
            );
        }
    }
}

#[test]
fn demoted_tokens_are_those_of_the_portable_body() {
    let _alone = alone();
    let mut noise = Noise(3);
    for (name, method) in methods() {
        let (heads, head_dim, page) = (2, 64, method.page_tokens());
        let length = 3 + 5 + page;
        let numbers = random([2, heads, length, head_dim], 5);
        // Slots in turn: alone, with nothing left over, and both at once.
        let rounds: Vec<Vec<Demotion>> = (0..3)
            .map(|round| {
                let slots = if round == 2 { vec![1, 0] } else { vec![round] };
                (slots.into_iter())
                    .map(|slot| Demotion {
                        slot,
                        page: 2 * round as u32 + slot as u32,
                        recent: page + noise.bits() as usize % 6,
                    })
                    .collect()
            })
            .collect();
        let run = |device: &Device| {
            let mut stored = layer(&method, heads, head_dim, DType::F32, device);
            let [key, value] = [0, 1].map(|side| {
                let data = TensorData::new(numbers[side].clone(), [2, heads, length, head_dim]);
                Tensor::<4>::from_data(data, device).into_dispatch()
            });
            (stored.key_tier, stored.value_tier) = (key, value);
            for moves in &rounds {
                stored = demote(stored, moves.clone());
            }
            let tiers = [stored.key_tier, stored.value_tier].map(floats::<4>);
            (held(stored.key), held(stored.value), tiers)
        };
        let found = run(&kernel_device());
        let expected = run(&Device::flex());
        assert_eq!(found.2, expected.2, "{name}: tiers");
        compare(&name, method.key_side(), found.0, expected.0);
        compare(&name, method.value_side(), found.1, expected.1);
    }
}

/// A pool that somebody else holds is copied, not overwritten; and no order of the input's
/// dimensions matters.
#[test]
fn held_pools_stay_and_strides_do_not_matter() {
    let _alone = alone();
    let (heads, head_dim, method) = (2, 64, method("oscar_scaled"));
    let tokens = method.page_tokens();
    let device = kernel_device();
    let [numbers, _] = random([1, heads, head_dim, tokens], 9);
    let data = TensorData::new(numbers, [1, heads, head_dim, tokens]);
    // Channels are not next to each other.
    let x = Tensor::<4>::from_data(data, &device).swap_dims(2, 3);
    let plain = Tensor::<4>::from_data(x.clone().into_data(), &device);
    let page = Tensor::<1, Int>::from_data(TensorData::from([2i32]), &device);
    let empty = || layer(&method, heads, head_dim, DType::F32, &device);

    let before = empty();
    let strided = write_pages(before.clone(), x.clone(), x, page.clone());
    let packed = write_pages(empty(), plain.clone(), plain, page);
    assert_ne!(
        held(strided.key.clone()).words,
        held(before.key.clone()).words
    );
    assert_eq!(held(strided.key).words, held(packed.key).words);
    assert_eq!(held(strided.value).words, held(packed.value).words);
    assert!(held(before.key).words.iter().all(|word| *word == u32::MAX));
}

/// What the kernels do not cover falls back to the portable body and is right all the same.
#[test]
fn odd_bits_fall_back() {
    let _alone = alone();
    let mut side = Method::hadamard_centred().key_side().clone();
    let mut clipped = Method::kivi().key_side().clone();
    if let (Some(odd), Some(clipped)) = (&mut side.quantizer, &mut clipped.quantizer) {
        odd.bits = ChannelBits::Segments(vec![Segment::new(3, 3), Segment::new(13, 1)].into());
        clipped.clip = Some(0.9);
        assert_eq!(clipped.axis, GroupAxis::Channel);
    }
    let method = Method::exact().with_key_side(side).with_value_side(clipped);
    let shape = [1, 1, method.page_tokens(), 64];
    check("odd", &method, &random(shape, 2), shape, DType::F32);
}
