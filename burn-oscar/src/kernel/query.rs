//! A cube's queries in the tensor-core kernel: as bytes, their sums, and as they are.

use cubecl::prelude::*;

use super::bytes::{Four, ROUND, rest};
use super::fragments::KeyProducts;
use super::shape::Heads;
use super::spec::PackedSide;

pub type F4 = Vector<f32, Const<4>>;

/// The largest 16-bit magnitude whose high byte still fits after rounding.
pub const TOP: f32 = 32512.0;

/// What the planes of a cube share of the queries, one for each of its items (`slot`).
#[derive(CubeType)]
pub struct QueryMemory {
    /// Signed bytes `[2 head + low, head_dim]`, four channels in a word.
    pub bytes: Shared<[u32]>,
    /// What rounding left, in the rows of the low bytes; zeros in the others. For f32 alone, whose
    /// precision 16 bits do not reach.
    pub rest: Shared<[u32]>,
    /// What a byte product counts for, by head.
    pub unit: Shared<[f32]>,
    /// Sums of the query over each part's channels: `[4, parts]`.
    pub sums: Shared<[f32]>,
    /// The query of each head as quads of channels, one quad further apart than they are long so
    /// that four heads read from different banks.
    pub padded: Shared<[F4]>,
    #[cube(comptime)]
    pub head_dim: usize,
    /// Whether there is a rest.
    #[cube(comptime)]
    pub fine: bool,
}

#[cube]
impl QueryMemory {
    pub fn new(
        #[comptime] key: PackedSide,
        #[comptime] fine: bool,
        #[comptime] slots: usize,
    ) -> QueryMemory {
        let words = comptime!(8 * key.head_dim / 4 * slots);
        QueryMemory {
            bytes: Shared::<[u32]>::new_slice(words),
            rest: Shared::<[u32]>::new_slice(comptime!(if fine { words } else { 1 })),
            unit: Shared::<[f32]>::new_slice(comptime!(4 * slots)),
            sums: Shared::<[f32]>::new_slice(comptime!(4 * key.parts.len() * slots)),
            padded: Shared::<[F4]>::new_slice(comptime!(4 * (key.head_dim / 4 + 1) * slots)),
            head_dim: comptime!(key.head_dim),
            fine,
        }
    }

    /// The query bytes that the lane multiplies with: two words for each product; and those of the
    /// rest.
    pub fn fragments(
        &self,
        out: &mut Array<u32>,
        rest: &mut Array<u32>,
        slot: usize,
        lane: usize,
        #[comptime] products: KeyProducts,
    ) {
        let row = (slot * 8 + lane / 4) * comptime!(self.head_dim / 4) + lane % 4;
        #[unroll]
        for i in 0..comptime!(products.terms.len()) {
            #[unroll]
            for half in 0..2usize {
                let start = comptime!(products.terms[i].halves[half]);
                if comptime!(start.is_some()) {
                    let at = row + comptime!(start.unwrap_or(0) / 4);
                    out[comptime!(2 * i + half)] = self.bytes[at];
                    if comptime!(self.fine) {
                        rest[comptime!(2 * i + half)] = self.rest[at];
                    }
                } else {
                    out[comptime!(2 * i + half)] = 0u32.runtime();
                    rest[comptime!(2 * i + half)] = 0u32.runtime();
                }
            }
        }
    }
}

/// What rounding by [`Four::rounded`] leaves, in signed bytes.
#[cube]
pub fn rest_of(x: &Array<f32>, ratio: f32, #[comptime] first: usize) -> u32 {
    let mut rounded = Array::<u32>::new(4usize);
    #[unroll]
    for k in 0..4usize {
        let scaled = x[comptime!(first + k)] * ratio;
        let whole = u32::reinterpret(scaled + comptime!(ROUND + 32768.0));
        rounded[k] = rest(scaled, whole, 32768.0);
    }
    Four::new(rounded[0], rounded[1], rounded[2], rounded[3]).low()
}

/// A head's query in a plane, four channels in a lane: a team's plane m has head m % 4. Heads that
/// there are not are zero.
#[derive(CubeType)]
pub struct OwnQuery {
    values: Array<f32>,
    /// The largest magnitude of the head.
    largest: f32,
    /// Sums over the channels of each part.
    sums: Array<f32>,
}

#[cube]
impl OwnQuery {
    pub fn load<F: Float, N: Size>(
        query: &[Vector<F, N>],
        heads: &Heads,
        scale: f32,
        lane: usize,
        member: usize,
        #[comptime] key: PackedSide,
    ) -> OwnQuery {
        let head_dim = comptime!(key.head_dim);
        let quads = comptime!(head_dim / 4);
        let is_held = member % 4 < heads.held;
        let head = select(is_held, member % 4, 0usize.runtime());
        let width = N::value().comptime();
        // No branch, so that all lanes are there for the shuffles.
        let first = heads.first + head * head_dim + 4 * (lane % quads);
        let vector = query[first / width];
        let mut values = Array::<f32>::new(4usize);
        let mut largest = f32::new(0.0);
        #[unroll]
        for k in 0..4usize {
            let x = if comptime!(width == 8) {
                select(
                    lane % 2 == 1,
                    vector.extract(comptime!((k + 4) % width)),
                    vector.extract(k),
                )
            } else {
                vector.extract(k)
            };
            let x = select(is_held && lane < quads, f32::cast_from(x) * scale, 0.0);
            values[k] = x;
            largest = f32::max(largest, x.abs());
        }
        // Largest and sums at a time: each exchange waits for the one before.
        let largest = f32::max(plane_max(largest), 1e-30);
        let quad_sum = values[0] + values[1] + values[2] + values[3];
        let mut sums = Array::<f32>::new(comptime!(key.parts.len()));
        #[unroll]
        for part in 0..comptime!(key.parts.len()) {
            let start = comptime!(key.parts[part].start / 4);
            let end = comptime!(start + key.parts[part].channels / 4);
            sums[part] = plane_sum(select(lane >= start && lane < end, quad_sum, 0.0));
        }
        OwnQuery {
            values,
            largest,
            sums,
        }
    }

    /// Rounds the query to bytes that all planes see: head `place % 4` of slot `place / 4`.
    pub fn share(
        &self,
        out: &mut QueryMemory,
        lane: usize,
        place: usize,
        #[comptime] key: PackedSide,
    ) {
        let quads = comptime!(key.head_dim / 4);
        let ratio = TOP / self.largest;
        let four = Four::rounded(&self.values, ratio, 0usize, 32768.0f32);
        if lane < quads {
            out.bytes[(2 * place) * quads + lane] = four.signed_high();
            out.bytes[(2 * place + 1) * quads + lane] = four.low();
            if comptime!(out.fine) {
                out.rest[(2 * place) * quads + lane] = 0u32;
                out.rest[(2 * place + 1) * quads + lane] = rest_of(&self.values, ratio, 0usize);
            }
            let mut quad = F4::new(0.0);
            #[unroll]
            for k in 0..4usize {
                quad.insert(k, self.values[k]);
            }
            out.padded[place * comptime!(quads + 1) + lane] = quad;
        }
        out.unit[place] = self.largest * comptime!(1.0 / TOP);
        #[unroll]
        for part in 0..comptime!(key.parts.len()) {
            out.sums[place * comptime!(key.parts.len()) + part] = self.sums[part];
        }
    }
}
