//! What the tensor-core kernel multiplies with what, worked out from the recipe before a kernel is
//! compiled.
//!
//! A product `mma.m16n8k32` takes 32 virtual channels of keys at a time (a *step*). A step belongs
//! to one part (the channels of one scale) and one plane, or, where planes are 16 channels long,
//! its halves belong to two: then it is multiplied twice, with zeros in the query's other half.

use super::spec::{PackedSide, Parameters, PartSide, PlaneSide};

/// A product of a step of keys with query bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyTerm {
    pub step: usize,
    /// First channel of each half of 16; `None` multiplies with zeros.
    pub halves: [Option<usize>; 2],
    /// Index into the sums.
    pub sum: usize,
}

/// Integer sums that a scale applies to: one plane of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeySum {
    pub part: usize,
    pub shift: usize,
}

/// The products of a chunk of keys, for each field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyProducts {
    pub terms: Vec<KeyTerm>,
    pub sums: Vec<KeySum>,
}

/// Sixteen channels of values, one plane: a product of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValueTile {
    /// Which 16-byte load of the lane, first of two k-steps.
    pub load: usize,
    pub field: usize,
    /// Channels `16 tile ..`.
    pub tile: usize,
    pub shift: usize,
}

fn plane_of(side: &PackedSide, virtual_channel: usize) -> Option<&PlaneSide> {
    side.planes
        .iter()
        .find(|plane| (plane.first..plane.first + plane.channels).contains(&virtual_channel))
}

fn part_of(side: &PackedSide, channel: usize) -> usize {
    let holds = |part: &PartSide| (part.start..part.start + part.channels).contains(&channel);
    side.parts.iter().position(holds).unwrap_or(0)
}

/// The products of a side of keys.
pub fn key_products(side: &PackedSide) -> KeyProducts {
    let (mut terms, mut sums) = (Vec::<KeyTerm>::new(), Vec::<KeySum>::new());
    for step in 0..side.virtual_channels / 32 {
        for half in 0..2 {
            let channel = 32 * step + 16 * half;
            let Some(plane) = plane_of(side, channel) else {
                continue;
            };
            let start = plane.start + channel - plane.first;
            let sum = KeySum {
                part: part_of(side, start),
                shift: plane.shift,
            };
            let known = sums.iter().position(|&other| other == sum);
            let sum = known.unwrap_or_else(|| {
                sums.push(sum);
                sums.len() - 1
            });
            match terms.last_mut() {
                Some(term) if term.step == step && term.sum == sum => {
                    term.halves[half] = Some(start);
                }
                _ => {
                    let mut halves = [None; 2];
                    halves[half] = Some(start);
                    terms.push(KeyTerm { step, halves, sum });
                }
            }
        }
    }
    KeyProducts { terms, sums }
}

/// The products of one part of a side of values.
pub fn value_tiles(side: &PackedSide, part: usize) -> Vec<ValueTile> {
    let mut tiles = Vec::new();
    for tile in 0..side.virtual_channels / 16 {
        let channel = 16 * tile;
        let Some(plane) = plane_of(side, channel) else {
            continue;
        };
        let start = plane.start + channel - plane.first;
        if part_of(side, start) == part {
            tiles.push(ValueTile {
                load: tile / 4 * 2,
                field: tile % 4,
                tile: start / 16,
                shift: plane.shift,
            });
        }
    }
    tiles
}

/// Why the tensor-core kernel cannot read such pages, if it cannot.
pub fn unsupported(side: &PackedSide) -> Option<&'static str> {
    let sixteens = |start: usize, channels: usize| start % 16 == 0 && channels % 16 == 0;
    if ![64, 128].contains(&side.head_dim) {
        Some("head_dim other than 64 and 128")
    } else if side.planes.iter().any(|plane| {
        plane.width != 2 || plane.first % 16 != 0 || !sixteens(plane.start, plane.channels)
    }) {
        Some("planes of one bit, or not of whole sixteens of channels")
    } else if !side
        .parts
        .iter()
        .all(|part| sixteens(part.start, part.channels))
    {
        Some("channel groups that are no multiple of 16")
    } else if side.is_key {
        None
    } else if side.norms {
        Some("token norms of values")
    } else if matches!(side.parameters, Parameters::ChannelPairs { .. }) {
        Some("values per channel")
    } else if side.virtual_channels % 64 != 0 {
        Some("values of an odd number of half blocks")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::Method;
    use crate::quantizer::{ChannelBits, PageSpec, Quantizer, Role, Segment};

    fn keys(quantizer: &Quantizer, head_dim: usize) -> PackedSide {
        PackedSide::new(&PageSpec::new(quantizer, Role::Key, head_dim, 256))
    }

    fn coded() -> Quantizer {
        const PATTERN: &[Segment] = &[Segment::new(4, 4), Segment::new(8, 2), Segment::new(4, 0)];
        let method = Method::hadamard_centred();
        Quantizer {
            bits: ChannelBits::Segments(PATTERN.into()),
            ..method.key_side().quantizer.clone().unwrap()
        }
    }

    #[test]
    fn one_group_is_one_sum() {
        let method = Method::hadamard();
        let products = key_products(&keys(method.key_side().quantizer.as_ref().unwrap(), 128));
        assert_eq!(products.sums, [KeySum { part: 0, shift: 0 }]);
        assert_eq!(products.terms.len(), 4);
        assert!(
            products
                .terms
                .iter()
                .all(|term| term.halves.iter().all(Option::is_some))
        );
    }

    #[test]
    fn planes_of_half_a_step_are_multiplied_apart() {
        for head_dim in [64, 128] {
            let products = key_products(&keys(&coded(), head_dim));
            assert_eq!(products.sums.len(), 3);
            // Every stored channel is met once in each of its planes.
            let mut met = vec![0; head_dim];
            for term in &products.terms {
                for start in term.halves.iter().flatten() {
                    met[*start..start + 16].iter_mut().for_each(|n| *n += 1);
                }
            }
            let expected = (0..head_dim).map(|c| [2, 1, 1, 0][4 * c / head_dim]);
            assert_eq!(met, expected.collect::<Vec<_>>());
        }
        let small = key_products(&keys(&coded(), 64));
        assert_eq!(small.terms[0].halves, [Some(0), None]);
        assert_eq!(small.terms[1].halves, [None, Some(0)]);
    }

    #[test]
    fn tiles_cover_the_channels_of_their_part() {
        let method = Method::kivi().with_bits(4).unwrap();
        let quantizer = method.value_side().quantizer.clone().unwrap();
        let side = PackedSide::new(&PageSpec::new(&quantizer, Role::Value, 128, 64));
        for part in 0..4 {
            let tiles = value_tiles(&side, part);
            let found: Vec<_> = tiles.iter().map(|t| (t.tile, t.shift)).collect();
            let first = 2 * part;
            assert_eq!(
                found,
                [(first, 0), (first + 1, 0), (first, 2), (first + 1, 2)]
            );
        }
    }
}
