//! The table of presets: one row a method.

use std::borrow::Cow;
use std::sync::LazyLock;

use super::{Side, TransformKind};
use crate::quantizer::{ChannelBits, GroupAxis, Quantizer, Rounding, Segment};

/// One line of the table of presets.
pub(super) struct Row {
    pub name: &'static str,
    pub summary: &'static str,
    pub key: Side,
    pub value: Side,
}

/// The default windows, in tokens: OSCAR's 64 sinks and 256 recent ones.
pub(super) const SINK: usize = 64;
pub(super) const RECENT: usize = 256;

fn affine(axis: GroupAxis, group_size: Option<usize>, rounding: Rounding) -> Quantizer {
    Quantizer {
        axis,
        group_size,
        bits: ChannelBits::Uniform(2),
        rounding,
        clip: None,
        token_norm: false,
        page_mean: false,
    }
}

/// Page means and mid-rise codes, one scale per token.
pub(crate) fn centred() -> Quantizer {
    Quantizer {
        page_mean: true,
        ..affine(GroupAxis::Token, None, Rounding::MidRise)
    }
}

fn packed(transform: TransformKind, quantizer: Quantizer) -> Side {
    Side {
        transform,
        quantizer: Some(quantizer),
    }
}

/// Sixteenths of head_dim, most important channels first: 4 bits for the first quarter, 2 for
/// the next half, none for the last quarter.
pub(crate) const FOUR_TWO_NONE: &[Segment] =
    &[Segment::new(4, 4), Segment::new(8, 2), Segment::new(4, 0)];

use TransformKind::{Calibrated, Hadamard, Identity};

pub(super) static ROWS: LazyLock<[Row; 8]> = LazyLock::new(|| {
    let per_token = || affine(GroupAxis::Token, Some(32), Rounding::HalfEven);
    let whole_token = || affine(GroupAxis::Token, None, Rounding::HalfUp);
    [
        Row {
            name: "exact",
            summary: "keys and values in the activation dtype: the baseline",
            key: Side::EXACT,
            value: Side::EXACT,
        },
        Row {
            name: "round_to_nearest",
            summary: "2 bits per token in groups of 32 channels, nothing else: what not to do",
            key: packed(Identity, per_token()),
            value: packed(Identity, per_token()),
        },
        Row {
            name: "kivi",
            summary: "keys per channel over 32 tokens, values per token in groups of 32 channels",
            key: packed(
                Identity,
                affine(GroupAxis::Channel, Some(32), Rounding::HalfEven),
            ),
            value: packed(Identity, per_token()),
        },
        Row {
            name: "hadamard",
            summary: "Hadamard rotation, one 2-bit group per token",
            key: packed(Hadamard, whole_token()),
            value: packed(Hadamard, whole_token()),
        },
        Row {
            name: "hadamard_centred",
            summary: "mean of each page removed, Hadamard, scale-only codes with gain; no calibration",
            key: packed(Hadamard, centred()),
            value: packed(Hadamard, centred()),
        },
        Row {
            name: "oscar",
            summary: "calibrated rotation, clipped, one 2-bit group per token",
            key: packed(
                Calibrated,
                Quantizer {
                    clip: Some(0.96),
                    ..whole_token()
                },
            ),
            value: packed(
                Calibrated,
                Quantizer {
                    clip: Some(0.92),
                    ..whole_token()
                },
            ),
        },
        Row {
            name: "oscar_scaled",
            summary: "Hadamard, keys divided by the token norm and packed per channel over 32 tokens",
            key: packed(
                Hadamard,
                Quantizer {
                    token_norm: true,
                    ..affine(GroupAxis::Channel, Some(32), Rounding::HalfEvenIntegerZero)
                },
            ),
            value: packed(
                Hadamard,
                affine(GroupAxis::Token, Some(32), Rounding::HalfEvenIntegerZero),
            ),
        },
        Row {
            name: "transform_coded",
            summary: "calibrated eigenbasis, 4/2/0 bits by importance, page means, gain",
            key: packed(
                Calibrated,
                Quantizer {
                    bits: ChannelBits::Segments(Cow::Borrowed(FOUR_TWO_NONE)),
                    ..centred()
                },
            ),
            value: packed(Hadamard, centred()),
        },
    ]
});
