//! A plane's running result, and the values' side of the tensor-core kernel.

use cubecl::cmma::MmaDefinition;
use cubecl::prelude::*;

use super::bytes::{FINE, Four, ROUND, power_of, rest};
use super::chunk::{SCALE8_UNIT, W4, pair, scales};
use super::fragments::value_tiles;
use super::handover::{Slice, slices};
use super::scores::{field_of, multiply};
use super::spec::{PackedSide, Parameters};
use super::tile::LOWEST;
use crate::backend::plan::SLICE_CHANNELS;

/// What a lane carries from chunk to chunk, for head `lane % 4`. Sums over tokens are those of
/// the lane's own tokens; the eight lanes of a head are added up at the end.
#[derive(CubeType)]
pub struct Running {
    /// The numbers named by the constants below.
    pub state: Array<f32>,
    /// Weighted sum of the offsets of each part.
    pub offsets: Array<f32>,
    /// Weighted sums of channels `16 tile + lane / 4` and eight further.
    pub sums: Array<f32>,
}

/// Running maximum of the scores.
const MAX: usize = 0;
/// Running sum of the weights.
const TOTAL: usize = 1;
/// Weights of the current page, for its mean value.
pub const PAGE_WEIGHT: usize = 2;
/// Product of the query and the current page's mean key.
pub const MEAN_SCORE: usize = 3;

#[cube]
impl Running {
    pub fn new(#[comptime] value: PackedSide) -> Running {
        let parts = comptime!(value.parts.len());
        let channels = comptime!(value.head_dim / 8);
        let mut state = Array::<f32>::new(4usize);
        state[MAX] = f32::new(LOWEST);
        state[TOTAL] = f32::new(0.0);
        state[PAGE_WEIGHT] = f32::new(0.0);
        state[MEAN_SCORE] = f32::new(0.0);
        let mut offsets = Array::<f32>::new(parts);
        #[unroll]
        for i in 0..parts {
            offsets[i] = 0.0;
        }
        let mut sums = Array::<f32>::new(channels);
        #[unroll]
        for i in 0..channels {
            sums[i] = 0.0;
        }
        Running {
            state,
            offsets,
            sums,
        }
    }

    /// Makes all sums relative to a maximum of at least `top`.
    fn raise(&mut self, top: f32, #[comptime] value: PackedSide) {
        let max = f32::max(self.state[MAX], top);
        let decay = (self.state[MAX] - max).exp();
        self.state[MAX] = max;
        self.state[TOTAL] *= decay;
        self.state[PAGE_WEIGHT] *= decay;
        #[unroll]
        for part in 0..comptime!(value.parts.len()) {
            self.offsets[part] *= decay;
        }
        #[unroll]
        for i in 0..comptime!(value.head_dim / 8) {
            self.sums[i] *= decay;
        }
    }
}

#[cube]
fn max_rows(x: f32) -> f32 {
    let a = f32::max(x, plane_shuffle_xor(x, 4u32));
    let b = f32::max(a, plane_shuffle_xor(a, 8u32));
    f32::max(b, plane_shuffle_xor(b, 16u32))
}

#[cube]
pub fn sum_rows(x: f32) -> f32 {
    let a = x + plane_shuffle_xor(x, 4u32);
    let b = a + plane_shuffle_xor(a, 8u32);
    b + plane_shuffle_xor(b, 16u32)
}

/// The largest of a chunk's weights is between this and twice as much when it is rounded.
const HALF_TOP: f32 = 32_767.5;

/// Weighs the chunk's values with its scores and adds them to the running sums.
#[cube]
pub fn values(
    loaded: &Array<W4>,
    scores: &Array<f32>,
    running: &mut Running,
    lane: usize,
    #[comptime] fine: bool,
    #[comptime] value: PackedSide,
) {
    let mut top = scores[0];
    #[unroll]
    for e in 1..8usize {
        top = f32::max(top, scores[e]);
    }
    // The maximum seldom grows after the first chunks.
    if plane_any(top > running.state[MAX]) {
        running.raise(max_rows(top), comptime!(value.clone()));
    }
    let max = running.state[MAX];
    let mut weights = Array::<f32>::new(8usize);
    #[unroll]
    for e in 0..8usize {
        weights[e] = (scores[e] - max).exp();
    }
    let mut sum = weights[0];
    #[unroll]
    for e in 1..8usize {
        sum += weights[e];
    }
    running.state[TOTAL] += sum;
    if comptime!(value.means) {
        running.state[PAGE_WEIGHT] += sum;
    }

    let is_scales = comptime!(value.parameters == Parameters::Scales);
    #[unroll]
    for part in 0..comptime!(value.parts.len()) {
        let mut scaled = Array::<f32>::new(8usize);
        if comptime!(is_scales) {
            let middle =
                comptime!(((1u32 << value.parts[part].bits) - 1) as f32 / 2.0 * SCALE8_UNIT);
            scales(loaded, lane, &mut scaled, part, comptime!(value.clone()));
            let mut offset = f32::new(0.0);
            #[unroll]
            for e in 0..8usize {
                scaled[e] *= weights[e];
                offset += scaled[e];
            }
            running.offsets[part] -= offset * middle;
        } else {
            #[unroll]
            for e in 0..8usize {
                let (scale, shift) = pair(loaded, e, part, comptime!(value.clone()));
                scaled[e] = weights[e] * scale;
                running.offsets[part] += weights[e] * shift;
            }
        }
        let mut largest = f32::new(1e-30);
        #[unroll]
        for e in 0..8usize {
            largest = f32::max(largest, scaled[e]);
        }
        let (ratio, unit) = power_of(max_rows(largest), HALF_TOP);
        let mut bytes = Array::<u32>::new(4usize);
        weight_bytes(&scaled, ratio, lane, &mut bytes);
        let mut rest = Array::<u32>::new(4usize);
        if comptime!(fine) {
            weight_rests(&scaled, ratio, lane, &mut rest);
        }
        let back = if comptime!(is_scales) {
            unit * SCALE8_UNIT
        } else {
            unit
        };

        let tiles = comptime!(value_tiles(&value, part));
        #[unroll]
        for i in 0..comptime!(tiles.len()) {
            let tile = comptime!(tiles[i]);
            let mut sums = Array::<Vector<i32, Const<2>>>::new(2usize);
            sums[0] = Vector::<i32, Const<2>>::new(0i32);
            sums[1] = Vector::<i32, Const<2>>::new(0i32);
            #[unroll]
            for s in 0..2usize {
                multiply_weights(
                    loaded[comptime!(tile.load + s)],
                    comptime!(tile.field as u32),
                    bytes[comptime!(2 * s)],
                    bytes[comptime!(2 * s + 1)],
                    &mut sums,
                );
            }
            // Fields are 4^field too large; a further plane counts 4^plane.
            let weight = comptime!((1u32 << tile.shift) as f32 / (1u32 << (2 * tile.field)) as f32);
            let back = back * weight;
            #[unroll]
            for k in 0..2usize {
                let at = comptime!(2 * tile.tile + k);
                let product = sums[k].extract(0usize) * 256i32 + sums[k].extract(1usize);
                running.sums[at] += back * f32::cast_from(product);
            }
            if comptime!(fine) {
                let mut sums = Array::<Vector<i32, Const<2>>>::new(2usize);
                sums[0] = Vector::<i32, Const<2>>::new(0i32);
                sums[1] = Vector::<i32, Const<2>>::new(0i32);
                #[unroll]
                for s in 0..2usize {
                    multiply(
                        loaded[comptime!(tile.load + s)],
                        comptime!(tile.field as u32),
                        rest[comptime!(2 * s)],
                        rest[comptime!(2 * s + 1)],
                        &mut sums,
                    );
                }
                let back = back * comptime!(1.0 / FINE);
                #[unroll]
                for k in 0..2usize {
                    let at = comptime!(2 * tile.tile + k);
                    running.sums[at] += back * f32::cast_from(sums[k].extract(1usize));
                }
            }
        }
    }
}

/// `sums += (field f of codes) x bytes`, with bytes from 0 to 255.
#[cube]
fn multiply_weights(
    codes: W4,
    #[comptime] f: u32,
    b0: u32,
    b1: u32,
    sums: &mut Array<Vector<i32, Const<2>>>,
) {
    let def = MmaDefinition::<u8, u8, i32>::new(16usize, 8usize, 32usize);
    let a = field_of(codes, f);
    let mut b = Array::<Vector<u8, Const<4>>>::new(2usize);
    b[0] = Vector::<u8, Const<4>>::reinterpret(b0);
    b[1] = Vector::<u8, Const<4>>::reinterpret(b1);
    def.execute_inplace(&a, &b, sums);
}

/// Rounds the lane's eight weights to 16 bits and hands the bytes to the lanes that multiply with
/// them: two words for each of two k-steps.
#[cube]
fn weight_bytes(scaled: &Array<f32>, ratio: f32, lane: usize, out: &mut Array<u32>) {
    let a = Four::rounded(scaled, ratio, 0usize, 0.0f32);
    let b = Four::rounded(scaled, ratio, 4usize, 0.0f32);
    let is_low = (lane / 4) % 2 == 1;
    #[unroll]
    for s in 0..2usize {
        let source = (4 * (lane % 4 * 2 + s) + lane / 8) as u32;
        let ha = plane_shuffle(a.high(), source);
        let la = plane_shuffle(a.low(), source);
        let hb = plane_shuffle(b.high(), source);
        let lb = plane_shuffle(b.low(), source);
        out[comptime!(2 * s)] = select(is_low, la, ha);
        out[comptime!(2 * s + 1)] = select(is_low, lb, hb);
    }
}

/// What rounding by [`weight_bytes`] left, as signed bytes where the low ones are.
#[cube]
fn weight_rests(scaled: &Array<f32>, ratio: f32, lane: usize, out: &mut Array<u32>) {
    let mut rounded = Array::<u32>::new(8usize);
    #[unroll]
    for e in 0..8usize {
        let scaled = scaled[e] * ratio;
        rounded[e] = rest(scaled, u32::reinterpret(scaled + ROUND), 0.0);
    }
    let a = Four::new(rounded[0], rounded[1], rounded[2], rounded[3]).low();
    let b = Four::new(rounded[4], rounded[5], rounded[6], rounded[7]).low();
    let is_low = (lane / 4) % 2 == 1;
    #[unroll]
    for s in 0..2usize {
        let source = (4 * (lane % 4 * 2 + s) + lane / 8) as u32;
        let a = plane_shuffle(a, source);
        let b = plane_shuffle(b, source);
        out[comptime!(2 * s)] = select(is_low, a, 0u32);
        out[comptime!(2 * s + 1)] = select(is_low, b, 0u32);
    }
}

/// The planes' results side by side.
#[derive(CubeType)]
pub struct WarpMemory {
    /// `[planes, 4]`.
    pub max: Shared<[f32]>,
    /// `[planes, 4]`.
    pub total: Shared<[f32]>,
    /// `[planes, 4]` rows of weighted sums of values, see [`place_of`].
    pub sums: Shared<[f32]>,
}

/// Numbers from one row of sums to the next: heads begin in different banks.
pub fn row_words(head_dim: usize) -> usize {
    head_dim + 8
}

/// Where a channel stands in its row, and which channel stands at a place. Lanes write every eighth
/// or every sixteenth channel, and read neighbours: neither should meet in one bank.
#[cube]
pub fn place_of(channel: usize) -> usize {
    channel ^ (channel / 16 % 8)
}

#[cube]
impl WarpMemory {
    pub fn new(#[comptime] planes: usize, #[comptime] head_dim: usize) -> WarpMemory {
        WarpMemory {
            max: Shared::<[f32]>::new_slice(comptime!(planes * 4)),
            total: Shared::<[f32]>::new_slice(comptime!(planes * 4)),
            sums: Shared::<[f32]>::new_slice(comptime!(planes * 4 * row_words(head_dim))),
        }
    }

    /// Puts a plane's result at its place, together with that of its exact
    /// tokens, where it had any and left them there.
    pub fn store(
        &mut self,
        running: &Running,
        has_exact: bool,
        lane: usize,
        place: usize,
        #[comptime] value: PackedSide,
    ) {
        let head_dim = comptime!(value.head_dim);
        let head = lane % 4;
        let total = sum_rows(running.state[TOTAL]);
        let mut max = running.state[MAX];
        let mut exact = f32::new(0.0);
        let mut exact_total = f32::new(0.0);
        if has_exact {
            let exact_max = self.max[place * 4 + head];
            exact_total = self.total[place * 4 + head];
            let before = max;
            max = f32::max(before, exact_max);
            exact = (exact_max - max).exp();
        }
        let weight = (running.state[MAX] - max).exp();
        let mut offsets = Array::<f32>::new(comptime!(value.parts.len()));
        #[unroll]
        for part in 0..comptime!(value.parts.len()) {
            offsets[part] = sum_rows(running.offsets[part]);
        }
        let row = (place * 4 + head) * comptime!(row_words(head_dim));
        #[unroll]
        for i in 0..comptime!(head_dim / 8) {
            let at = row + place_of(comptime!(8 * i) + lane / 4);
            let mut sum = running.sums[i];
            let part = comptime!(
                value
                    .parts
                    .iter()
                    .position(|part| (part.start..part.start + part.channels).contains(&(8 * i)))
            );
            if comptime!(part.is_some()) {
                sum += offsets[comptime!(part.unwrap_or(0))];
            }
            sum *= weight;
            if has_exact {
                sum += self.sums[at] * exact;
            }
            self.sums[at] = sum;
        }
        sync_plane();
        if lane < 4 {
            self.max[place * 4 + lane] = max;
            self.total[place * 4 + lane] = total * weight + exact_total * exact;
        }
    }

    /// A slice of the results of a slot's planes added up, by one plane.
    pub fn combine(
        &self,
        slot: usize,
        number: usize,
        lane: usize,
        #[comptime] head_dim: usize,
        #[comptime] team: usize,
    ) -> Slice {
        let of_head = comptime!(slices(head_dim));
        let head = number / of_head;
        // Planes that there are not weigh nothing.
        let there = lane < team;
        let of_lane = (slot * team + select(there, lane, 0usize.runtime())) * 4 + head;
        let max = self.max[of_lane];
        let top = plane_max(max);
        let weight = select(there, (max - top).exp(), 0.0);
        let total = plane_sum(self.total[of_lane] * weight);
        let place = number % of_head * comptime!(SLICE_CHANNELS) + lane;
        let first = (slot * team * 4 + head) * comptime!(row_words(head_dim)) + place;
        let mut sum_a = f32::new(0.0);
        let mut sum_b = f32::new(0.0);
        #[unroll]
        for w in 0..team {
            let weight = plane_shuffle(weight, w as u32);
            let at = first + comptime!(w * 4 * row_words(head_dim));
            sum_a += self.sums[at] * weight;
            sum_b += self.sums[at + 32] * weight;
        }
        Slice {
            number,
            channel_a: place_of(place),
            channel_b: place_of(place + 32),
            sum_a,
            sum_b,
            max: top,
            total,
        }
    }
}
