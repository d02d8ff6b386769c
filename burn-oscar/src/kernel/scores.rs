//! Scores of a chunk of keys in the tensor-core kernel.

use cubecl::cmma::MmaDefinition;
use cubecl::prelude::*;

use super::bytes::{FINE, Four, power_of};
use super::chunk::{SCALE8_UNIT, W4, code_loads, half2, pair, scales};
use super::fragments::key_products;
use super::query::{QueryMemory, QueryMemoryExpand, TOP, rest_of};
use super::spec::{PackedSide, Parameters, PartSide};

#[cube]
impl QueryMemory {
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
                        multiply::<i8>(
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
                        multiply::<i8>(
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
fn field_of(codes: W4, #[comptime] f: u32) -> Array<Vector<u8, Const<4>>> {
    let mask = comptime!(0x0303_0303u32 << (2 * f));
    let mut a = Array::<Vector<u8, Const<4>>>::new(4usize);
    #[unroll]
    for r in 0..4usize {
        a[r] = Vector::<u8, Const<4>>::reinterpret(codes.extract(r) & mask);
    }
    a
}

/// `sums += (field f of codes) x bytes`, a product of 16 rows, 8 columns and 32 channels. Bytes are
/// of `i8` or `u8`.
#[cube]
pub fn multiply<B: Int>(
    codes: W4,
    #[comptime] f: u32,
    b0: u32,
    b1: u32,
    sums: &mut Array<Vector<i32, Const<2>>>,
) {
    let def = MmaDefinition::<u8, B, i32>::new(16usize, 8usize, 32usize);
    let a = field_of(codes, f);
    let mut b = Array::<Vector<B, Const<4>>>::new(2usize);
    b[0] = Vector::<B, Const<4>>::reinterpret(b0);
    b[1] = Vector::<B, Const<4>>::reinterpret(b1);
    def.execute_inplace(&a, &b, sums);
}
