//! The values' side of the tensor-core kernel: softmax weights, rounded, times codes.

use cubecl::prelude::*;

use super::bytes::{FINE, Four, ROUND, power_of, rest};
use super::chunk::{SCALE8_UNIT, W4, pair, scales};
use super::fragments::value_tiles;
use super::running::{MAX, MEAN_SCORE, PAGE_WEIGHT, Running, TOTAL, max_rows};
use super::scores::multiply;
use super::spec::{PackedSide, Parameters};

/// The largest of a chunk's weights is between this and twice as much when it is rounded.
const HALF_TOP: f32 = 32_767.5;

/// Weighs the chunk's values with its scores and adds them to the running sums. Scores are without
/// the part of the page's mean key, where there is one (`centred`): it is the same for all of them.
#[cube]
pub fn values(
    loaded: &Array<W4>,
    scores: &Array<f32>,
    running: &mut Running,
    lane: usize,
    #[comptime] centred: bool,
    #[comptime] fine: bool,
    #[comptime] value: PackedSide,
) {
    let mut top = scores[0];
    #[unroll]
    for e in 1..8usize {
        top = f32::max(top, scores[e]);
    }
    if comptime!(centred) {
        top += running.state[MEAN_SCORE];
    }
    // The maximum seldom grows after the first chunks.
    if plane_any(top > running.state[MAX]) {
        running.raise(max_rows(top), comptime!(value.clone()));
    }
    let mut max = running.state[MAX];
    if comptime!(centred) {
        max -= running.state[MEAN_SCORE];
    }
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
                multiply::<u8>(
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
                    multiply::<i8>(
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
