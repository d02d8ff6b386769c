//! The fused decode kernels against attention in f64 over what the pages hold.

use burn::tensor::{DType, Device, Int, Tensor};
use burn_oscar::backend::{self, Pages, fused_calls, read_pages};
use burn_oscar::quantizer::Role;
use burn_oscar::{AttentionOptions, KvCache, KvCacheConfig, Method};
use capabilities::recipes::{Noise, kernel_device, method, methods};

use super::{alone, error, numbers};

/// What a call is made of.
#[derive(Clone, Copy, Debug)]
struct Case {
    head_dim: usize,
    kv_heads: usize,
    group: usize,
    dtype: DType,
    rows: usize,
    /// Tokens of every other row, and of those between.
    lengths: [usize; 2],
    sink: usize,
    recent: usize,
    /// The first row is cut back to this many tokens.
    cut: Option<usize>,
}

const CASE: Case = Case {
    head_dim: 64,
    kv_heads: 2,
    group: 2,
    dtype: DType::F32,
    rows: 2,
    lengths: [700, 330],
    sink: 3,
    recent: 20,
    cut: None,
};

fn filled(method: &Method, case: &Case, noise: &mut Noise, device: &Device) -> KvCache {
    let mut cache = KvCacheConfig::new(1, case.kv_heads, case.head_dim)
        .with_method(method.clone().with_sink(case.sink).with_recent(case.recent))
        .with_max_tokens(case.lengths[0].max(1024))
        .with_max_sequences(case.rows)
        .with_dtype(case.dtype)
        .with_poison(true)
        .init(device)
        .unwrap();
    for _ in 1..case.rows {
        cache.add_sequence().unwrap();
    }
    let ids = cache.sequences();
    for (&id, length) in ids.iter().zip(case.lengths.into_iter().cycle()) {
        let shape = [1, case.kv_heads, length, case.head_dim];
        let [key, value] = [0, 1].map(|_| noise.tensor(shape, case.dtype, device));
        if length > 0 {
            let rows = AttentionOptions::causal().rows(&[id]);
            cache.extend(0, key, value, rows).unwrap();
        }
    }
    if let Some(len) = case.cut {
        cache.truncate(ids[0], len).unwrap();
    }
    cache
}

/// Attention in f64 of a row over its sinks, pages, recent tokens and own token, all as stored.
fn reference(
    cache: &KvCache,
    case: &Case,
    row: usize,
    query: &[f64],
    own: [&[f64]; 2],
) -> Vec<f64> {
    let (layer, plan) = cache.decode_parts(0).unwrap();
    let plan_row = &plan.rows[row];
    let d = case.head_dim;
    let side = |role: Role, own: &[f64]| -> Vec<Vec<f64>> {
        let tier = match role {
            Role::Key => &layer.key_tier,
            Role::Value => &layer.value_tier,
        };
        let tier = Tensor::<4>::from_dispatch(tier.clone());
        let [_, _, slot_tokens, _] = tier.dims();
        let tier = numbers(tier.narrow(0, plan_row.slot, 1));
        let ids: Vec<i64> = plan_row
            .pages
            .iter()
            .map(|page| i64::from(page.0))
            .collect();
        let page_tokens = match &layer.key {
            Pages::Packed(packed) => packed.spec.page_tokens,
            Pages::Exact(_) => cache.page_tokens(),
        };
        let pages = match ids.is_empty() {
            true => Vec::new(),
            false => {
                let ids = Tensor::<1, Int>::from_data(ids.as_slice(), cache.device());
                numbers(read_pages(layer.clone(), ids, role))
            }
        };
        (0..case.kv_heads)
            .map(|head| {
                let exact = |start: usize, count: usize| {
                    tier[(head * slot_tokens + start) * d..][..count * d].to_vec()
                };
                let mut all = exact(0, plan_row.sinks);
                for (i, &(_, tokens)) in plan_row.pages.iter().enumerate() {
                    let at = (i * case.kv_heads + head) * page_tokens * d;
                    all.extend(&pages[at..][..tokens * d]);
                }
                all.extend(exact(layer.sink, plan_row.recent));
                all.extend(&own[head * d..][..d]);
                all
            })
            .collect()
    };
    let (keys, values) = (side(Role::Key, own[0]), side(Role::Value, own[1]));
    let mut out = Vec::new();
    for head in 0..case.kv_heads * case.group {
        let (keys, values) = (&keys[head / case.group], &values[head / case.group]);
        let query = &query[head * d..][..d];
        let scores: Vec<f64> = keys
            .chunks(d)
            .map(|key| plan.scale * key.iter().zip(query).map(|(k, q)| k * q).sum::<f64>())
            .collect();
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let total: f64 = weights.iter().sum();
        out.extend((0..d).map(|c| {
            let sum: f64 = weights
                .iter()
                .zip(values.chunks(d))
                .map(|(w, v)| w * v[c])
                .sum();
            sum / total
        }));
    }
    out
}

/// Decodes one token per row with the kernel, and compares.
fn check(name: &str, method: &Method, case: Case) {
    let device = kernel_device();
    let mut noise = Noise(case.head_dim as u64 * 31 + case.group as u64);
    let mut cache = filled(method, &case, &mut noise, &device);
    cache.plan_decode(&AttentionOptions::causal()).unwrap();
    let (rows, heads, d) = (case.rows, case.kv_heads * case.group, case.head_dim);
    let query = noise.query([rows, heads, 1, d], case.dtype, &device);
    let own = [0, 1].map(|_| noise.tensor([rows, case.kv_heads, 1, d], case.dtype, &device));
    let (layer, plan) = cache.decode_parts(0).unwrap();
    let before = fused_calls();
    let [key, value] = own.clone();
    let found = numbers(backend::attend(query.clone(), key, value, layer, plan));
    assert!(fused_calls() > before, "{name}: the kernel did not serve");
    let query = numbers(query);
    let own = own.map(numbers);
    let expected: Vec<f64> = (0..rows)
        .flat_map(|row| {
            let of =
                |side: &'_ [f64]| side[row * case.kv_heads * d..][..case.kv_heads * d].to_vec();
            let (key, value) = (of(&own[0]), of(&own[1]));
            reference(
                &cache,
                &case,
                row,
                &query[row * heads * d..][..heads * d],
                [&key, &value],
            )
        })
        .collect();
    let error = error(&found, &expected);
    println!(
        "{name} head_dim {d} group {} {:?}: error {error:.2e}",
        case.group, case.dtype
    );
    // The tensor-core kernel rounds queries and weights to 16 bits of their largest, or 24, which
    // costs the more the larger that is: some numbers here are ten times the others.
    let limit = match case.dtype {
        DType::F32 => 1e-5,
        DType::F16 => 6e-4,
        _ => 2e-3,
    };
    assert!(error < limit, "{name} {case:?}: {error:e}");
}

const GROUPS: [usize; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 16];
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Every recipe with the group and the dtype that stand so many places on in their lists, and with
/// several lengths, for which one compiled kernel serves. The three tests together have every
/// recipe with every dtype, and every group with every dtype and head size.
fn every_recipe(groups_on: usize, dtypes_on: usize, case: Case, lengths: &[Lengths]) {
    for (i, (name, method)) in methods().iter().enumerate() {
        for &(lengths, cut) in lengths {
            let case = Case {
                group: GROUPS[(i + groups_on) % GROUPS.len()],
                dtype: DTYPES[(i + dtypes_on) % DTYPES.len()],
                lengths,
                cut,
                ..case
            };
            check(name, method, case);
        }
    }
}

/// Tokens of the rows, and how many of the first row's are left.
type Lengths = ([usize; 2], Option<usize>);

#[test]
fn heads_of_64_channels() {
    let _alone = alone();
    let lengths = [([700, 330], None), ([700, 90], Some(400)), ([1, 2], None)];
    every_recipe(0, 0, CASE, &lengths);
}

#[test]
fn heads_of_128_channels() {
    let _alone = alone();
    let case = Case {
        head_dim: 128,
        ..CASE
    };
    every_recipe(4, 2, case, &[([700, 330], None), ([3, 90], None)]);
}

#[test]
fn no_windows() {
    let _alone = alone();
    let case = Case {
        sink: 0,
        recent: 0,
        ..CASE
    };
    every_recipe(8, 1, case, &[([700, 20], Some(290)), ([256, 0], None)]);
}

/// A plane of the portable kernel has several heads, one after the other: its units must meet
/// again after what only one of them does.
#[test]
fn more_heads_than_planes() {
    let _alone = alone();
    for (name, group) in [("exact", 7), ("exact values", 8), ("exact values", 5)] {
        let case = Case {
            group,
            lengths: [180, 20],
            ..CASE
        };
        check(name, &method(name), case);
    }
}

/// One KV head on a GPU is cut into as many parts as there are multiprocessors, 35 here: more than a
/// plane has units, and more than a merging unit asks for at a time.
#[test]
fn more_parts_than_units_of_a_plane() {
    let _alone = alone();
    for name in ["hadamard", "exact"] {
        let case = Case {
            kv_heads: 1,
            lengths: [9000, 100],
            ..CASE
        };
        check(name, &method(name), case);
    }
}

/// More rows than a GPU has multiprocessors for: its cubes take two, one after the other, the last of
/// them one.
#[test]
fn more_rows_than_cubes() {
    let _alone = alone();
    for (name, dtype) in [("oscar", DType::BF16), ("transform_coded", DType::F32)] {
        let case = Case {
            dtype,
            rows: 79,
            lengths: [330, 290],
            ..CASE
        };
        check(name, &method(name), case);
    }
}
