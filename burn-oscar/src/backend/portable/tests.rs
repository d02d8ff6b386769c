//! Packing against the layout's formulas, and quantisers on what they represent exactly.

use burn::backend::Flex;
use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::tensor::{Int, Shape, Tensor, TensorData};

use super::packing::{pack_chunks, unpack_chunks};
use super::page::{decode, encode};
use super::tensor::{Ints, Real};
use super::{affine, midrise};
use crate::quantizer::layout::{self, CHUNK_TOKENS, key_field, value_field};
use crate::quantizer::{
    ChannelBits, GroupAxis, PageSpec, Quantizer, Role, Rounding, Segment, encode_scale8,
};

type Device = <Flex as burn::backend::BackendTypes>::Device;

fn ints(values: Vec<u32>, shape: &[usize]) -> Ints<Flex> {
    let data = TensorData::new(values, Shape::from(shape.to_vec()));
    Ints(Flex::int_from_data(data, &Device::default()))
}

fn reals(values: Vec<f32>, shape: &[usize]) -> Real<Flex> {
    let data = TensorData::new(values, Shape::from(shape.to_vec()));
    Real(Flex::float_from_data(data, &Device::default()))
}

fn read_ints(tensor: Ints<Flex>) -> Vec<u32> {
    let count = tensor.dims().iter().product();
    Tensor::<1, Int>::from_primitive::<Flex>(tensor.reshape(&[count]).0)
        .try_into_vec_as()
        .unwrap()
}

fn read(tensor: Real<Flex>) -> Vec<f32> {
    let count = tensor.dims().iter().product();
    Tensor::<1>::from_primitive::<Flex>(tensor.reshape(&[count]).0)
        .try_into_vec_as()
        .unwrap()
}

fn spec(bits: ChannelBits, rounding: Rounding, role: Role, head_dim: usize) -> PageSpec {
    let quantizer = Quantizer {
        axis: GroupAxis::Token,
        group_size: None,
        bits,
        rounding,
        clip: None,
        token_norm: false,
        page_mean: false,
    };
    PageSpec::new(&quantizer, role, head_dim, CHUNK_TOKENS)
}

/// A number that looks random and is the same every time.
fn hash(i: usize) -> u32 {
    let x = (i as u32).wrapping_mul(0x9E37_79B9) ^ 0x85EB_CA6B;
    let x = (x ^ x >> 15).wrapping_mul(0x2C1B_3C6D);
    x ^ x >> 12
}

fn noise(i: usize) -> f32 {
    // Two uniform numbers make something bell-shaped enough, with an outlier now and then.
    let u = |i| hash(i) as f32 / u32::MAX as f32 - 0.5;
    let x = u(2 * i) + u(2 * i + 1);
    if hash(i).is_multiple_of(97) {
        6.0 * x
    } else {
        x
    }
}

#[test]
fn packed_words_follow_the_layout() {
    let segments = [
        vec![Segment::new(4, 4), Segment::new(8, 2), Segment::new(4, 0)],
        vec![
            Segment::new(2, 4),
            Segment::new(4, 3),
            Segment::new(2, 2),
            Segment::new(8, 1),
        ],
        vec![Segment::new(3, 0), Segment::new(5, 3), Segment::new(8, 1)],
    ];
    for head_dim in [16, 64, 80, 96, 128, 192, 256] {
        for role in [Role::Key, Role::Value] {
            let uniform = [2, 4, 8].map(ChannelBits::Uniform);
            let cut = segments.clone().map(|s| ChannelBits::Segments(s.into()));
            for bits in uniform.into_iter().chain(cut) {
                check_packing(&spec(bits, Rounding::MidRise, role, head_dim));
            }
        }
    }
}

fn check_packing(spec: &PageSpec) {
    let (n, head_dim) = (3, spec.head_dim);
    let mut codes = vec![0u32; n * CHUNK_TOKENS * head_dim];
    for segment in &spec.segments {
        for row in 0..n * CHUNK_TOKENS {
            for c in segment.start..segment.start + segment.channels {
                codes[row * head_dim + c] = hash(row * head_dim + c) % (1 << segment.bits);
            }
        }
    }
    let packed = pack_chunks(spec, ints(codes.clone(), &[n, CHUNK_TOKENS, head_dim]));
    let row_words = layout::chunk_words(spec.virtual_channels);
    assert_eq!(packed.dims(), [n, row_words]);
    let words = read_ints(packed.clone());
    assert_eq!(read_ints(unpack_chunks(spec, packed)), codes, "{spec:?}");

    // Each plane's fields, one by one.
    let mut first = 0;
    for plane in &spec.planes {
        for chunk in 0..n {
            for t in 0..CHUNK_TOKENS {
                for i in 0..plane.channels {
                    let code = codes[(chunk * CHUNK_TOKENS + t) * head_dim + plane.start + i];
                    let bits = code >> plane.shift & ((1 << plane.width) - 1);
                    let half = plane.virtual_channels();
                    let (channel, low) = match plane.width {
                        2 => (first + i, 0),
                        _ => (first + i % half, i / half),
                    };
                    let field = match spec.role {
                        Role::Key => key_field(t, channel),
                        Role::Value => value_field(spec.virtual_channels, t, channel),
                    };
                    let word = words[chunk * row_words + field.word];
                    assert_eq!(word >> (field.bit + low) & ((1 << plane.width) - 1), bits);
                }
            }
        }
        first += plane.virtual_channels();
    }
}

#[test]
fn rounding_is_half_to_even() {
    assert_eq!(
        read(reals(vec![0.5, 1.5, 2.5, -0.5, -1.5, -7.5], &[6]).round()),
        [0.0, 2.0, 2.0, 0.0, -2.0, -8.0]
    );
}

fn affine_row(rounding: Rounding, bits: u8, row: &[f32]) -> (Vec<u32>, Vec<f32>, Vec<f32>) {
    let mut quantizer = spec(ChannelBits::Uniform(bits), rounding, Role::Key, 16).quantizer;
    quantizer.group_size = Some(row.len());
    let spec = PageSpec::new(&quantizer, Role::Key, 16, CHUNK_TOKENS);
    let repeated: Vec<f32> = row
        .iter()
        .copied()
        .cycle()
        .take(CHUNK_TOKENS * 16)
        .collect();
    let x = reals(repeated, &[1, 1, CHUNK_TOKENS, 16]);
    let (codes, pairs) = affine::encode(&spec, x);
    let decoded = affine::decode(&spec, codes.clone(), pairs.clone());
    let first = |v: Vec<f32>, n| v[..n].to_vec();
    (
        read_ints(codes)[..row.len()].to_vec(),
        first(read(pairs), 2),
        first(read(decoded), row.len()),
    )
}

fn near(found: &[f32], expected: &[f32], tolerance: f32) {
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= tolerance, "{found:?} for {expected:?}");
    }
}

#[test]
fn golden_vectors_of_both_papers() {
    let row = [0.10, -0.40, 0.75, -1.20, 2.00, 0.05, -0.30, 0.60];
    let (codes, pairs, decoded) = affine_row(Rounding::HalfUp, 2, &row);
    // -0.4 lies on a tie (0.99999... or 1.0 by the precision), so its code may be 0 or 1.
    assert_eq!([&codes[..1], &codes[2..]].concat(), [1, 2, 0, 3, 1, 1, 2]);
    near(&pairs, &[1.066_666_7, -1.2], 1e-3);
    let golden = [
        -0.133_33, -0.133_33, 0.933_33, -1.2, 2.0, -0.133_33, -0.133_33, 0.933_33,
    ];
    near(&decoded[2..], &golden[2..], 2e-3);

    let scaled = |row: &[f32]| affine_row(Rounding::HalfEvenIntegerZero, 2, row);
    let (codes, pairs, decoded) = scaled(&[0.10, -0.40, 0.75, -1.20]);
    assert_eq!(codes, [2, 1, 3, 0]);
    near(&pairs, &[0.65, -1.3], 1e-3);
    near(&decoded, &[0.0, -0.65, 0.65, -1.3], 2e-3);
    // All but the first code lie on ties here.
    let (codes, pairs, _) = scaled(&[1.0, 1.4, 1.1, 1.25]);
    assert_eq!(codes[0], 0);
    near(&pairs, &[0.133_333, 1.066_667], 1e-3);
    let (codes, _, decoded) = scaled(&[0.0; 4]);
    assert_eq!((codes, decoded), (vec![2; 4], vec![0.0; 4]));
    let (codes, pairs, decoded) = scaled(&[0.7; 4]);
    assert_eq!((codes, pairs[0]), (vec![0; 4], 0.0));
    near(&decoded, &[0.7; 4], 1e-3);
}

#[test]
fn scales_are_stored_to_the_nearest_byte() {
    let scales: Vec<f32> = (0..500)
        .map(|i| 2f32.powf(-13.0 + i as f32 * 0.043))
        .collect();
    let (bytes, decoded) = midrise::scale8(reals(scales.clone(), &[500]));
    for (i, (byte, decoded)) in read_ints(bytes).into_iter().zip(read(decoded)).enumerate() {
        let expected = crate::quantizer::decode_scale8(encode_scale8(scales[i]));
        // A tie may fall either way.
        assert!(
            (decoded - expected).abs() <= expected * 0.07,
            "{} -> {byte}",
            scales[i]
        );
        let error = |s: f32| (s - scales[i]).abs();
        assert!(
            error(decoded) <= error(expected) * 1.001 + 1e-9,
            "{} -> {byte}",
            scales[i]
        );
    }
}

#[test]
fn parameters_of_tokens_are_in_row_order() {
    let (tokens, d) = (2 * CHUNK_TOKENS, 16);
    // Token t is coded exactly with scale t.
    let x = (0..tokens * d).map(|i| (i / d) as f32 * ((i % 4) as f32 - 1.5));
    let x: Vec<f32> = x.collect();
    for rounding in [Rounding::HalfUp, Rounding::MidRise] {
        let mut spec = spec(ChannelBits::Uniform(2), rounding, Role::Key, d);
        spec.page_tokens = tokens;
        let parts = encode::<Flex>(&spec, reals(x.clone(), &[1, 1, tokens, d]));
        let pairs = parts.pairs.map(read);
        let words = read_ints(parts.words);
        for t in 0..tokens {
            let slot = t / CHUNK_TOKENS * CHUNK_TOKENS + layout::token_slot(t % CHUNK_TOKENS);
            let scale = match &pairs {
                Some(pairs) => pairs[2 * slot],
                None => {
                    let word = words[spec.code_words() + slot / 4];
                    let byte = word >> (8 * (slot % 4)) & 255;
                    crate::quantizer::decode_scale8(byte as u8)
                }
            };
            let t = t as f32;
            assert!((scale - t).abs() <= 0.04 * t + 1e-6, "token {t}: {scale}");
        }
    }
}

#[test]
fn the_error_shrinks_with_the_bits() {
    let shape = [2, 2, 256, 64];
    let x: Vec<f32> = (0..shape.iter().product()).map(noise).collect();
    let energy: f32 = x.iter().map(|x| x * x).sum();
    for (rounding, axis) in [
        (Rounding::HalfUp, GroupAxis::Token),
        (Rounding::HalfEven, GroupAxis::Channel),
        (Rounding::HalfEvenIntegerZero, GroupAxis::Channel),
        (Rounding::MidRise, GroupAxis::Token),
    ] {
        for page_mean in [false, true] {
            let mut last = f32::MAX;
            for bits in [2, 4, 8] {
                let quantizer = Quantizer {
                    axis,
                    group_size: (rounding != Rounding::MidRise).then_some(32),
                    bits: ChannelBits::Uniform(bits),
                    rounding,
                    clip: None,
                    token_norm: axis == GroupAxis::Channel,
                    page_mean,
                };
                let spec = PageSpec::new(&quantizer, Role::Value, 64, 256);
                let parts = encode::<Flex>(&spec, reals(x.clone(), &shape));
                let decoded = read(decode(&spec, parts));
                let error: f32 = x.iter().zip(&decoded).map(|(a, b)| (a - b).powi(2)).sum();
                let relative = error / energy;
                assert!(
                    relative < last * 0.3,
                    "{quantizer:?}: {relative} after {last}"
                );
                last = relative;
            }
            assert!(last < 2e-4, "{rounding:?} at 8 bits: {last}");
        }
    }
}

/// The grid of the golden data: powers of 2^(1/16).
fn log_grid(scale: Real<Flex>) -> (Ints<Flex>, Real<Flex>) {
    let exponents: Vec<f32> = read(scale.clone())
        .into_iter()
        .map(|s| (16.0 * s.log2()).round_ties_even() / 16.0)
        .collect();
    let shape = scale.dims();
    let scales = exponents.iter().map(|e| e.exp2()).collect();
    (reals(exponents, &shape).into_u32(), reals(scales, &shape))
}

/// Codes and scales of real keys and values, as an independent program computed them.
#[test]
fn golden_midrise_codes() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/golden.safetensors"
    );
    let file = std::fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&file).unwrap();
    let numbers = |name: &str| -> Vec<f32> {
        let view = file.tensor(name).unwrap();
        match view.dtype() {
            safetensors::Dtype::U8 => view.data().iter().map(|&b| f32::from(b)).collect(),
            safetensors::Dtype::F16 => (view.data().chunks_exact(2))
                .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect(),
            _ => (view.data().chunks_exact(4))
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
        }
    };
    let (heads, tokens, d) = (3, CHUNK_TOKENS, 64);
    for layer in [3, 20] {
        let centred = |side: &str| {
            let x = reals(numbers(&format!("layer{layer}.{side}")), &[heads, 320, d]);
            let mean = numbers(&format!("tc.layer{layer}.{side}.mean"));
            x.narrow(1, 0, tokens).sub(reals(mean, &[heads, 1, d]))
        };
        let a = reals(numbers(&format!("tc.layer{layer}.k.A")), &[heads, d, d]);
        let h = reals(crate::rotation::hadamard(d), &[1, d, d]);
        let key = centred("k").matmul(a);
        let value = centred("v").matmul(h);
        let pattern = [Segment::new(4, 4), Segment::new(8, 2), Segment::new(4, 0)];
        let sides = [
            (
                "k",
                key,
                ChannelBits::Segments(pattern.to_vec().into()),
                vec![(0, 16), (16, 48)],
            ),
            ("v", value, ChannelBits::Uniform(2), vec![(0, 64)]),
        ];
        for (side, y, bits, segments) in sides {
            let spec = spec(bits, Rounding::MidRise, Role::Key, d);
            let (codes, _) = midrise::encode(&spec, y.reshape(&[1, heads, tokens, d]), log_grid);
            for (start, end) in segments {
                let found = read_ints(codes.clone().narrow(3, start, end - start));
                let golden = numbers(&format!("tc.layer{layer}.{side}.codes_{start}_{end}"));
                let different = (found.iter().zip(&golden))
                    .filter(|&(&f, &g)| f as f32 != g)
                    .count();
                // Products of matrices round differently; a number on a border may fall over.
                assert!(
                    different * 1000 <= golden.len(),
                    "layer {layer} {side} {start}: {different} of {}",
                    golden.len()
                );
            }
        }
    }
}
