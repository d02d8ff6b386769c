//! The query's side of the tensor-core kernel: bytes, their sums, and scores of a chunk.

use cubecl::cmma::MmaDefinition;
use cubecl::prelude::*;

use super::bytes::{FINE, Four, ROUND, power_of, rest};
use super::chunk::{SCALE8_UNIT, W4, code_loads, half2, pair, scales};
use super::fragments::{KeyProducts, key_products};
use super::shape::Heads;
use super::spec::{PackedSide, Parameters, PartSide};

pub type F4 = Vector<f32, Const<4>>;

/// The largest 16-bit magnitude whose high byte still fits after rounding.
const TOP: f32 = 32512.0;

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

    /// Scores of the lane's eight tokens for head `lane % 4`, with one scale per token and part.
    pub fn scores_per_token(
        &self,
        loaded: &Array<W4>,
        bytes: &Array<u32>,
        rest: &Array<u32>,
        scores: &mut Array<f32>,
        slot: usize,
        lane: usize,
        #[comptime] key: PackedSide,
    ) {
        let head = slot * 4 + lane % 4;
        let parts = comptime!(key.parts.len());
        let is_scales = comptime!(key.parameters == Parameters::Scales);
        let factor = comptime!(if is_scales { SCALE8_UNIT } else { 1.0 });
        let unit = self.unit[head] * factor;
        let mut products = Array::<f32>::new(comptime!(8 * parts));
        #[unroll]
        for f in 0..4u32 {
            field_products(
                loaded,
                bytes,
                rest,
                unit,
                &mut products,
                f,
                self.fine,
                comptime!(key.clone()),
            );
        }
        #[unroll]
        for part in 0..parts {
            let sum = self.sums[head * parts + part];
            let mut terms = Array::<f32>::new(8usize);
            if comptime!(is_scales) {
                let middle =
                    comptime!(((1u32 << key.parts[part].bits) - 1) as f32 / 2.0 * SCALE8_UNIT);
                let offset = sum * middle;
                let mut scale = Array::<f32>::new(8usize);
                scales(loaded, lane, &mut scale, part, comptime!(key.clone()));
                #[unroll]
                for e in 0..8usize {
                    terms[e] = scale[e] * (products[comptime!(part * 8 + e)] - offset);
                }
            } else {
                #[unroll]
                for e in 0..8usize {
                    let (scale, offset) = pair(loaded, e, part, comptime!(key.clone()));
                    terms[e] = scale * products[comptime!(part * 8 + e)] + offset * sum;
                }
            }
            #[unroll]
            for e in 0..8usize {
                scores[e] = if comptime!(part == 0) {
                    terms[e]
                } else {
                    scores[e] + terms[e]
                };
            }
        }
    }

    /// The same with one scale per channel and group of tokens: the scales are folded into the
    /// query, which is rounded to 16 bits again for each group.
    pub fn scores_per_channel(
        &self,
        loaded: &Array<W4>,
        scores: &mut Array<f32>,
        slot: usize,
        lane: usize,
        #[comptime] key: PackedSide,
    ) {
        let tokens = comptime!(match key.parameters {
            Parameters::ChannelPairs { tokens } => tokens,
            _ => 64,
        });
        let products = comptime!(key_products(&key));
        let own_head = slot * 4 + lane / 8;
        // Of the two lanes of a head, the first needs high bytes, the other low ones. Each makes
        // both of half of the channels, and they exchange what the other needs.
        let is_low = (lane / 4) % 2 == 1;
        let halves = comptime!(key.head_dim / 16);
        let made = comptime!(halves / 2);
        let start = own_head * comptime!(key.head_dim / 4 + 1)
            + select(is_low, comptime!(4 * made), 0usize)
            + lane % 4;
        #[unroll]
        for group in 0..comptime!(64 / tokens) {
            let mut folded = Array::<f32>::new(comptime!(4 * made));
            let mut largest = f32::new(0.0);
            let mut offset = f32::new(0.0);
            #[unroll]
            for half in 0..made {
                let four = loaded[comptime!(code_loads(&key) + group * made + half)];
                let queries = self.padded[start + half * 4];
                #[unroll]
                for k in 0..4usize {
                    let q = queries.extract(k);
                    let (scale, shift) = half2(four.extract(k));
                    let x = q * scale;
                    folded[comptime!(half * 4 + k)] = x;
                    largest = f32::max(largest, x.abs());
                    offset += q * shift;
                }
            }
            #[unroll]
            for bit in 0..3u32 {
                largest = f32::max(largest, plane_shuffle_xor(largest, comptime!(1u32 << bit)));
                offset += plane_shuffle_xor(offset, comptime!(1u32 << bit));
            }
            let largest = f32::max(largest, 1e-30);
            let (ratio, unit) = power_of(largest, comptime!(TOP / 2.0));
            let mut quads = Array::<u32>::new(halves);
            let mut rests = Array::<u32>::new(halves);
            #[unroll]
            for half in 0..made {
                let four = Four::rounded(&folded, ratio, comptime!(4 * half), 32768.0f32);
                if comptime!(self.fine) {
                    let own = rest_of(&folded, ratio, comptime!(4 * half));
                    let other = plane_shuffle_xor(own, 4u32);
                    rests[half] = select(is_low, other, 0u32);
                    rests[comptime!(made + half)] = select(is_low, own, 0u32);
                }
                let (high, low) = (four.signed_high(), four.low());
                let own = select(is_low, low, high);
                let other = plane_shuffle_xor(select(is_low, high, low), 4u32);
                quads[half] = select(is_low, other, own);
                quads[comptime!(made + half)] = select(is_low, own, other);
            }
            let mut bytes = Array::<u32>::new(comptime!(2 * products.terms.len()));
            let mut rest = Array::<u32>::new(comptime!(2 * products.terms.len()));
            #[unroll]
            for i in 0..comptime!(products.terms.len()) {
                #[unroll]
                for half in 0..2usize {
                    let at = comptime!(2 * i + half);
                    let start = comptime!(products.terms[i].halves[half]);
                    if comptime!(start.is_some()) {
                        bytes[at] = quads[comptime!(start.unwrap_or(0) / 16)];
                        if comptime!(self.fine) {
                            rest[at] = rests[comptime!(start.unwrap_or(0) / 16)];
                        }
                    } else {
                        bytes[at] = 0u32.runtime();
                        rest[at] = 0u32.runtime();
                    }
                }
            }
            // The lane that owns head h of the products is not the one that made its bytes.
            let source = (8 * (lane % 4)) as u32;
            let unit = plane_shuffle(unit, source);
            let offset = plane_shuffle(offset, source);
            let mut results = Array::<f32>::new(8usize);
            #[unroll]
            for i in 0..comptime!(tokens / 16) {
                let f = comptime!((group * (tokens / 16) + i) as u32);
                field_products(
                    loaded,
                    &bytes,
                    &rest,
                    unit,
                    &mut results,
                    f,
                    self.fine,
                    comptime!(key.clone()),
                );
                #[unroll]
                for k in 0..2usize {
                    let e = comptime!(2 * f as usize + k);
                    scores[e] = results[e] + offset;
                }
            }
        }
    }
}

/// What rounding by [`Four::rounded`] leaves, in signed bytes.
#[cube]
fn rest_of(x: &Array<f32>, ratio: f32, #[comptime] first: usize) -> u32 {
    let mut rounded = Array::<u32>::new(4usize);
    #[unroll]
    for k in 0..4usize {
        let scaled = x[comptime!(first + k)] * ratio;
        let whole = u32::reinterpret(scaled + comptime!(ROUND + 32768.0));
        rounded[k] = rest(scaled, whole, 32768.0);
    }
    Four::new(rounded[0], rounded[1], rounded[2], rounded[3]).low()
}

/// A head's query in a plane, four channels in a lane: plane w has head w % 4. Heads that there are
/// not are zero.
#[derive(CubeType)]
pub struct OwnQuery {
    values: Array<f32>,
    /// The largest magnitude of the head.
    largest: f32,
}

#[cube]
impl OwnQuery {
    pub fn load<F: Float, N: Size>(
        query: &[Vector<F, N>],
        heads: &Heads,
        scale: f32,
        lane: usize,
        warp: usize,
        #[comptime] head_dim: usize,
    ) -> OwnQuery {
        let quads = comptime!(head_dim / 4);
        let is_held = warp % 4 < heads.held;
        let head = select(is_held, warp % 4, 0usize.runtime());
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
        let largest = f32::max(plane_max(largest), 1e-30);
        OwnQuery { values, largest }
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
        sync_plane();
        let quad_sum = self.values[0] + self.values[1] + self.values[2] + self.values[3];
        #[unroll]
        for part in 0..comptime!(key.parts.len()) {
            let start = comptime!(key.parts[part].start / 4);
            let end = comptime!(start + key.parts[part].channels / 4);
            let sum = plane_sum(select(lane >= start && lane < end, quad_sum, 0.0));
            out.sums[place * comptime!(key.parts.len()) + part] = sum;
        }
    }
}

/// Products of one field (16 tokens) of keys: `out[8 part + 2 f ..]` of the lane's two tokens.
#[cube]
fn field_products(
    loaded: &Array<W4>,
    bytes: &Array<u32>,
    rest: &Array<u32>,
    unit: f32,
    out: &mut Array<f32>,
    #[comptime] f: u32,
    #[comptime] fine: bool,
    #[comptime] key: PackedSide,
) {
    let products = comptime!(key_products(&key));
    // A field's codes are 4^f times too large.
    let unit = unit * comptime!(1.0 / (1u32 << (2 * f)) as f32);
    #[unroll]
    for part in 0..comptime!(key.parts.len()) {
        let mut high = Array::<i32>::new(2usize);
        let mut low = Array::<i32>::new(2usize);
        let mut finer = Array::<i32>::new(2usize);
        #[unroll]
        for i in 0..2usize {
            high[i] = 0i32;
            low[i] = 0i32;
            finer[i] = 0i32;
        }
        #[unroll]
        for s in 0..comptime!(products.sums.len()) {
            if comptime!(products.sums[s].part == part) {
                let mut sums = Array::<Vector<i32, Const<2>>>::new(2usize);
                sums[0] = Vector::<i32, Const<2>>::new(0i32);
                sums[1] = Vector::<i32, Const<2>>::new(0i32);
                #[unroll]
                for i in 0..comptime!(products.terms.len()) {
                    if comptime!(products.terms[i].sum == s) {
                        multiply(
                            loaded[comptime!(products.terms[i].step)],
                            f,
                            bytes[comptime!(2 * i)],
                            bytes[comptime!(2 * i + 1)],
                            &mut sums,
                        );
                    }
                }
                let mut rests = Array::<Vector<i32, Const<2>>>::new(2usize);
                rests[0] = Vector::<i32, Const<2>>::new(0i32);
                rests[1] = Vector::<i32, Const<2>>::new(0i32);
                #[unroll]
                for i in 0..comptime!(products.terms.len()) {
                    if comptime!(fine && products.terms[i].sum == s) {
                        multiply(
                            loaded[comptime!(products.terms[i].step)],
                            f,
                            rest[comptime!(2 * i)],
                            rest[comptime!(2 * i + 1)],
                            &mut rests,
                        );
                    }
                }
                let weight = comptime!(1i32 << products.sums[s].shift);
                #[unroll]
                for i in 0..2usize {
                    if comptime!(fine) {
                        finer[i] += rests[i].extract(1usize) * weight;
                    }
                    if comptime!(fits(&key.parts[part])) {
                        let sum = sums[i].extract(0usize) * 256i32 + sums[i].extract(1usize);
                        high[i] += sum * weight;
                    } else {
                        high[i] += sums[i].extract(0usize) * weight;
                        low[i] += sums[i].extract(1usize) * weight;
                    }
                }
            }
        }
        #[unroll]
        for i in 0..2usize {
            let at = comptime!(8 * part + 2 * f as usize + i);
            if comptime!(fits(&key.parts[part])) {
                out[at] = unit * f32::cast_from(high[i]);
            } else {
                out[at] = unit * (f32::cast_from(high[i]) * 256.0 + f32::cast_from(low[i]));
            }
            if comptime!(fine) {
                out[at] += unit * comptime!(1.0 / FINE) * f32::cast_from(finer[i]);
            }
        }
    }
}

/// Whether a part's sum of products, high and low bytes together, fits 32 bits: codes 64 times too
/// large, bytes of 127, 256 for the high ones.
fn fits(part: &PartSide) -> bool {
    let code = (1u64 << part.bits) - 1;
    code * 64 * 128 * 257 * (part.channels as u64) < 1 << 31
}

/// Field `f` of a lane's codes as the first operand of a product, 4^f too large.
#[cube]
pub fn field_of(codes: W4, #[comptime] f: u32) -> Array<Vector<u8, Const<4>>> {
    let mask = comptime!(0x0303_0303u32 << (2 * f));
    let mut a = Array::<Vector<u8, Const<4>>>::new(4usize);
    #[unroll]
    for r in 0..4usize {
        a[r] = Vector::<u8, Const<4>>::reinterpret(codes.extract(r) & mask);
    }
    a
}

/// `sums += (field f of codes) x bytes`, a product of 16 rows, 8 columns and 32 channels.
#[cube]
pub fn multiply(
    codes: W4,
    #[comptime] f: u32,
    b0: u32,
    b1: u32,
    sums: &mut Array<Vector<i32, Const<2>>>,
) {
    let def = MmaDefinition::<u8, i8, i32>::new(16usize, 8usize, 32usize);
    let a = field_of(codes, f);
    let mut b = Array::<Vector<i8, Const<4>>>::new(2usize);
    b[0] = Vector::<i8, Const<4>>::reinterpret(b0);
    b[1] = Vector::<i8, Const<4>>::reinterpret(b1);
    def.execute_inplace(&a, &b, sums);
}
