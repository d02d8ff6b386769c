//! A plane's running result, and the values' side of the tensor-core kernel.

use cubecl::cmma::MmaDefinition;
use cubecl::prelude::*;

use super::chunk::{SCALE8_UNIT, W4, half2, pair, scales};
use super::fragments::value_tiles;
use super::query::{QueryMemory, ROUND, TOP, multiply};
use super::spec::{PackedSide, Parameters};
use super::tile::{LOWEST, TileMemory};

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
const PAGE_WEIGHT: usize = 2;
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
}

#[cube]
fn max_rows(x: f32) -> f32 {
    let a = f32::max(x, plane_shuffle_xor(x, 4u32));
    let b = f32::max(a, plane_shuffle_xor(a, 8u32));
    f32::max(b, plane_shuffle_xor(b, 16u32))
}

#[cube]
fn sum_rows(x: f32) -> f32 {
    let a = x + plane_shuffle_xor(x, 4u32);
    let b = a + plane_shuffle_xor(a, 8u32);
    b + plane_shuffle_xor(b, 16u32)
}

#[cube]
fn pack(a: u32, b: u32, c: u32, d: u32) -> u32 {
    (a & 255u32) | ((b & 255u32) << 8u32) | ((c & 255u32) << 16u32) | (d << 24u32)
}

/// Weighs the chunk's values with its scores and adds them to the running sums.
#[cube]
pub fn values(
    loaded: &Array<W4>,
    scores: &Array<f32>,
    running: &mut Running,
    limit: i32,
    lane: usize,
    #[comptime] value: PackedSide,
) {
    let mut max = f32::new(LOWEST);
    #[unroll]
    for e in 0..8usize {
        max = f32::max(max, scores[e]);
    }
    let max = max_rows(max);
    let mut weights = Array::<f32>::new(8usize);
    #[unroll]
    for e in 0..8usize {
        weights[e] = (scores[e] - max).exp();
    }
    if limit < 64 {
        #[unroll]
        for e in 0..8usize {
            let inside = ((8 * e + lane / 4) as i32) < limit;
            weights[e] = select(inside, weights[e], 0.0);
        }
    }
    let mut sum = f32::new(0.0);
    #[unroll]
    for e in 0..8usize {
        sum += weights[e];
    }
    let max_new = f32::max(running.state[MAX], max);
    let decay = (running.state[MAX] - max_new).exp();
    let fresh = (max - max_new).exp();
    running.state[MAX] = max_new;
    running.state[TOTAL] = running.state[TOTAL] * decay + sum * fresh;
    if comptime!(value.means) {
        running.state[PAGE_WEIGHT] = running.state[PAGE_WEIGHT] * decay + sum * fresh;
    }

    let def = MmaDefinition::<u8, i8, i32>::new(16usize, 8usize, 32usize);
    let is_scales = comptime!(value.parameters == Parameters::Scales);
    let unit = comptime!(if is_scales {
        SCALE8_UNIT / TOP
    } else {
        1.0 / TOP
    });
    #[unroll]
    for part in 0..comptime!(value.parts.len()) {
        let mut scaled = Array::<f32>::new(8usize);
        let mut offset = f32::new(0.0);
        if comptime!(is_scales) {
            let middle =
                comptime!(((1u32 << value.parts[part].bits) - 1) as f32 / 2.0 * SCALE8_UNIT);
            scales(loaded, lane, &mut scaled, part, comptime!(value.clone()));
            #[unroll]
            for e in 0..8usize {
                scaled[e] *= weights[e];
                offset -= scaled[e];
            }
            offset *= middle;
        } else {
            #[unroll]
            for e in 0..8usize {
                let (scale, shift) = pair(loaded, e, part, comptime!(value.clone()));
                scaled[e] = weights[e] * scale;
                offset += weights[e] * shift;
            }
        }
        running.offsets[part] = running.offsets[part] * decay + offset * fresh;
        let mut largest = f32::new(1e-30);
        #[unroll]
        for e in 0..8usize {
            largest = f32::max(largest, scaled[e]);
        }
        let largest = max_rows(largest);
        let mut bytes = Array::<u32>::new(4usize);
        weight_bytes(&scaled, TOP / largest, lane, &mut bytes);
        let back = largest * fresh * unit;

        let tiles = comptime!(value_tiles(&value, part));
        #[unroll]
        for i in 0..comptime!(tiles.len()) {
            let tile = comptime!(tiles[i]);
            let mut sums = Array::<Vector<i32, Const<2>>>::new(2usize);
            sums[0] = Vector::<i32, Const<2>>::new(0i32);
            sums[1] = Vector::<i32, Const<2>>::new(0i32);
            #[unroll]
            for s in 0..2usize {
                multiply(
                    &def,
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
                let before = if comptime!(tile.shift == 0) {
                    running.sums[at] * decay
                } else {
                    running.sums[at]
                };
                running.sums[at] = before + back * f32::cast_from(product);
            }
        }
    }
}

/// Rounds the lane's eight weights to 16 bits and hands the bytes to the lanes that multiply with
/// them: two words for each of two k-steps.
#[cube]
fn weight_bytes(scaled: &Array<f32>, ratio: f32, lane: usize, out: &mut Array<u32>) {
    let mut low = Array::<u32>::new(8usize);
    let mut high = Array::<u32>::new(8usize);
    #[unroll]
    for e in 0..8usize {
        let x = u32::reinterpret(scaled[e] * ratio + ROUND);
        low[e] = x;
        high[e] = (x + 128u32) >> 8u32;
    }
    let high_a = pack(high[0], high[1], high[2], high[3]);
    let high_b = pack(high[4], high[5], high[6], high[7]);
    let low_a = pack(low[0], low[1], low[2], low[3]);
    let low_b = pack(low[4], low[5], low[6], low[7]);
    let is_low = (lane / 4) % 2 == 1;
    #[unroll]
    for s in 0..2usize {
        let source = (4 * (lane % 4 * 2 + s) + lane / 8) as u32;
        let ha = plane_shuffle(high_a, source);
        let la = plane_shuffle(low_a, source);
        let hb = plane_shuffle(high_b, source);
        let lb = plane_shuffle(low_b, source);
        out[comptime!(2 * s)] = select(is_low, la, ha);
        out[comptime!(2 * s + 1)] = select(is_low, lb, hb);
    }
}

/// Begins a page that has a mean key: its product with the query is part of every score.
#[cube]
pub fn new_page(
    query: &QueryMemory,
    means: &[u32],
    row: usize,
    lane: usize,
    running: &mut Running,
    #[comptime] head_dim: usize,
) {
    let mut mean = Array::<f32>::new(4usize);
    #[unroll]
    for k in 0..2usize {
        // No branch, so that all lanes are there for the shuffles.
        let word = means[(row * head_dim) / 2 + 2 * (lane % comptime!(head_dim / 4)) + k];
        let (a, b) = half2(word);
        mean[comptime!(2 * k)] = a;
        mean[comptime!(2 * k + 1)] = b;
    }
    let mut own = f32::new(0.0);
    #[unroll]
    for h in 0..4usize {
        let mut product = f32::new(0.0);
        let four = query.padded[h * comptime!(head_dim / 4 + 1) + lane % comptime!(head_dim / 4)];
        #[unroll]
        for k in 0..4usize {
            product += mean[k] * four.extract(k);
        }
        let product = plane_sum(select(lane < comptime!(head_dim / 4), product, 0.0));
        own = select(lane % 4 == h, product, own);
    }
    running.state[MEAN_SCORE] = own;
}

/// Ends a page that has a mean value: it counts as often as its tokens weighed.
#[cube]
pub fn flush_page(
    means: &[u32],
    row: usize,
    lane: usize,
    running: &mut Running,
    #[comptime] head_dim: usize,
) {
    let weight = sum_rows(running.state[PAGE_WEIGHT]);
    let odd = (lane / 4) % 2 == 1;
    #[unroll]
    for i in 0..comptime!(head_dim / 8) {
        let channel = 8 * i + lane / 4;
        let (a, b) = half2(means[(row * head_dim + channel) / 2]);
        running.sums[i] += weight * select(odd, b, a);
    }
    running.state[PAGE_WEIGHT] = 0.0;
}

/// The planes' maxima and sums of weights side by side; their sums of values are in
/// [`TileMemory::planes`].
#[derive(CubeType)]
pub struct WarpMemory {
    /// `[planes, 4]`.
    pub max: Shared<[f32]>,
    /// `[planes, 4]`.
    pub total: Shared<[f32]>,
}

#[cube]
impl WarpMemory {
    pub fn new(#[comptime] planes: usize) -> WarpMemory {
        WarpMemory {
            max: Shared::<[f32]>::new_slice(planes * 4),
            total: Shared::<[f32]>::new_slice(planes * 4),
        }
    }
}

/// Puts a plane's result into shared memory, together with that of its exact tokens, where it had
/// any and left them there.
#[cube]
pub fn store_warp(
    out: &mut WarpMemory,
    memory: &mut TileMemory,
    running: &Running,
    has_exact: bool,
    lane: usize,
    warp: usize,
    #[comptime] value: PackedSide,
) {
    let head_dim = comptime!(value.head_dim);
    let head = lane % 4;
    let total = sum_rows(running.state[TOTAL]);
    let mut max = running.state[MAX];
    let mut exact = f32::new(0.0);
    let mut exact_total = f32::new(0.0);
    if has_exact {
        let exact_max = out.max[warp * 4 + head];
        exact_total = out.total[warp * 4 + head];
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
    let base = (warp * 4 + head) * head_dim + lane / 4;
    #[unroll]
    for i in 0..comptime!(head_dim / 8) {
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
            sum += memory.planes[base + 8 * i] * exact;
        }
        memory.planes[base + 8 * i] = sum;
    }
    sync_plane();
    if lane < 4 {
        out.max[warp * 4 + lane] = max;
        out.total[warp * 4 + lane] = total * weight + exact_total * exact;
    }
}

/// Adds the planes' results up, in the cube's memory.
#[cube]
pub fn combine(
    warps: &WarpMemory,
    memory: &mut TileMemory,
    #[comptime] head_dim: usize,
    #[comptime] planes: usize,
) {
    let mut i = UNIT_POS as usize;
    while i < comptime!(4 * head_dim) {
        let h = i / head_dim;
        let mut max = f32::new(LOWEST);
        #[unroll]
        for w in 0..planes {
            max = f32::max(max, warps.max[w * 4 + h]);
        }
        let mut sum = f32::new(0.0);
        let mut total = f32::new(0.0);
        #[unroll]
        for w in 0..planes {
            let weight = (warps.max[w * 4 + h] - max).exp();
            sum += memory.planes[w * comptime!(4 * head_dim) + i] * weight;
            total += warps.total[w * 4 + h] * weight;
        }
        memory.sums[i] = sum;
        if i % head_dim == 0 {
            memory.max[h] = max;
            memory.total[h] = total;
        }
        i += CUBE_DIM as usize;
    }
}
