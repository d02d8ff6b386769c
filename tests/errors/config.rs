//! Caches and methods that cannot be made.

use burn::tensor::{DType, Device};
use burn_oscar::method::{Side, TransformKind};
use burn_oscar::quantizer::{ChannelBits, GroupAxis, Quantizer, Rounding, Segment};
use burn_oscar::{KvCacheConfig, Method};
use capabilities::golden::golden_calibration;

use super::assert_message;

fn assert_refused(what: &str, config: KvCacheConfig, expected: &str) {
    assert_message(what, config.init(&Device::flex()).map(drop), expected);
}

#[test]
fn sizes() {
    let sized = KvCacheConfig::new;
    let good = || sized(2, 2, 64);
    for (what, config, expected) in [
        (
            "head_dim 72",
            sized(2, 2, 72),
            "head_dim 72 is not supported: it must be a multiple of 16 between 16 and 256",
        ),
        (
            "head_dim 0",
            sized(2, 2, 0),
            "head_dim 0 is not supported: it must be a multiple of 16 between 16 and 256",
        ),
        (
            "head_dim 512",
            sized(2, 2, 512),
            "head_dim 512 is not supported: it must be a multiple of 16 between 16 and 256",
        ),
        (
            "no KV heads",
            sized(2, 0, 64),
            "n_kv_heads is 0: give at least 1",
        ),
        (
            "no layers",
            sized(0, 2, 64),
            "n_layers is 0: give at least 1",
        ),
        (
            "no tokens",
            good().with_max_tokens(0),
            "max_tokens is 0: give at least 1",
        ),
        (
            "no sequences",
            good().with_max_sequences(0),
            "max_sequences is 0: give at least 1",
        ),
        (
            "dtype",
            good().with_dtype(DType::F64),
            "dtype F64: activations are F32, F16 or BF16",
        ),
    ] {
        assert_refused(what, config, expected);
    }
}

#[test]
fn names_and_bits() {
    let names = "exact, round_to_nearest, kivi, hadamard, hadamard_centred, oscar, oscar_scaled, \
                 transform_coded";
    let calibration = golden_calibration("oscar", 2);
    let unknown = format!("no method is called `kivy`; there are {names}");
    assert_message("preset", Method::preset("kivy"), &unknown);
    assert_message(
        "calibrated",
        Method::calibrated("kivy", &calibration),
        &unknown,
    );
    for name in ["oscar", "transform_coded"] {
        assert_message(
            name,
            Method::preset(name),
            &format!(
                "method `{name}` is calibrated: load an artifact with Calibration::load and use \
                 Method::calibrated"
            ),
        );
    }
    for bits in [0, 1, 3, 16] {
        assert_message(
            "bits",
            Method::kivi().with_bits(bits),
            &format!("bits {bits}: codes have 2, 4 or 8 bits"),
        );
    }
    let coded = Method::transform_coded(&golden_calibration("transform_coded", 2)).unwrap();
    assert_message(
        "bits of segments",
        coded.with_bits(4),
        "method `transform_coded`: its bits are given per channel: choose them in the artifact",
    );
}

/// KIVI's keys, to be spoilt.
fn keys() -> Quantizer {
    Quantizer {
        axis: GroupAxis::Channel,
        group_size: Some(32),
        bits: ChannelBits::Uniform(2),
        rounding: Rounding::HalfEven,
        clip: None,
        token_norm: false,
        page_mean: false,
    }
}

#[test]
fn sides_whose_parts_do_not_fit() {
    let mid_rise = Quantizer {
        axis: GroupAxis::Token,
        group_size: None,
        rounding: Rounding::MidRise,
        ..keys()
    };
    let segments = |lengths: &[(usize, u8)]| {
        let segments = lengths
            .iter()
            .map(|&(length, bits)| Segment::new(length, bits));
        ChannelBits::Segments(segments.collect::<Vec<_>>().into())
    };
    for (quantizer, expected) in [
        (
            Quantizer {
                bits: ChannelBits::Uniform(3),
                ..keys()
            },
            "method `kivi`: 3 bits per channel: codes have 2, 4 or 8 bits",
        ),
        (
            Quantizer {
                bits: segments(&[(16, 2)]),
                ..keys()
            },
            "method `kivi`: segments of channels need mid-rise codes",
        ),
        (
            Quantizer {
                bits: segments(&[(8, 2), (4, 1)]),
                ..mid_rise.clone()
            },
            "method `kivi`: segments *: they must add up to 16 sixteenths of head_dim, each of 0 \
             to 4 bits",
        ),
        (
            Quantizer {
                bits: segments(&[(8, 5), (8, 1)]),
                ..mid_rise.clone()
            },
            "method `kivi`: segments *: they must add up to 16 sixteenths of head_dim, each of 0 \
             to 4 bits",
        ),
        (
            Quantizer {
                group_size: Some(32),
                ..mid_rise
            },
            "method `kivi`: mid-rise codes have one group per token and segment",
        ),
        (
            Quantizer {
                group_size: Some(48),
                ..keys()
            },
            "method `kivi`: groups of *48* tokens: 16, 32 or 64 divide a page",
        ),
        (
            Quantizer {
                axis: GroupAxis::Token,
                group_size: Some(0),
                ..keys()
            },
            "method `kivi`: groups of 0 channels: give at least 1",
        ),
        (
            Quantizer {
                clip: Some(1.5),
                ..keys()
            },
            "method `kivi`: clip 1.5: a quantile lies between 0 and 1",
        ),
    ] {
        let side = Side {
            transform: TransformKind::Identity,
            quantizer: Some(quantizer),
        };
        let keys = Method::kivi().with_key_side(side.clone());
        assert_refused(
            "keys",
            KvCacheConfig::new(2, 2, 64).with_method(keys),
            expected,
        );
        let values = Method::kivi().with_value_side(side);
        assert_refused(
            "values",
            KvCacheConfig::new(2, 2, 64).with_method(values),
            expected,
        );
    }
}
