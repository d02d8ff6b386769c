//! A cube's result, slice by slice, to the output or to the cube that merges the row's parts.
//!
//! A slice is 64 channels of one query head, the work of one plane, which keeps it in registers:
//! planes need not wait for each other here. A row of one part has no partial results: its cube
//! writes the output.
//!
//! The cube of a row's last part merges. The others hand it their numbers as single words, each of
//! which is its own message: 0 is a word that has not come, and whoever takes a word leaves 0. So
//! nothing is ordered: no fence, no counter. A waiting cube comes after those that it waits for in
//! the grid, so they have begun, and it cannot keep them from a multiprocessor; nor does a plane
//! wait for a slice of its own cube that comes after.
//!
//! Bytes: 66 f32 per slice and part, written once and read once, mostly in the L2.

use cubecl::prelude::*;

use super::shape::{Heads, Shape};
use super::steps::{Item, Row};
use super::tile::LOWEST;
use crate::backend::plan::{MAX_PARTS, PARTS_AT_ONCE as AT_ONCE, SLICE_CHANNELS, SLICE_WORDS};

/// What a unit holds of a slice: two channels of a head.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub struct Slice {
    /// The slice among those of the cube: head, then channels.
    pub number: usize,
    /// The two channels of the unit.
    pub channel_a: usize,
    pub channel_b: usize,
    /// Their weighted sums of values.
    pub sum_a: f32,
    pub sum_b: f32,
    /// The head's maximum score.
    pub max: f32,
    /// The head's sum of weights.
    pub total: f32,
}

/// Slices of a head.
pub fn slices(head_dim: usize) -> usize {
    head_dim / SLICE_CHANNELS
}

/// Writes the output where the cube has all of its row; else hands its slice on, or merges.
#[cube]
pub fn deliver<F: Float>(
    slice: &Slice,
    exchange: &[Atomic<u32>],
    out: &mut [F],
    item: &Item,
    row: &Row,
    heads: &Heads,
    lane: usize,
    plane: usize,
    #[comptime] shape: Shape,
) {
    let words = comptime!(shape.partial_words());
    let first = heads.first_partial * words + slice.number * comptime!(SLICE_WORDS);
    let start =
        heads.first + slice.number / comptime!(slices(shape.head_dim)) * comptime!(shape.head_dim);
    if row.parts == 1 {
        let scale = 1.0 / slice.total;
        out[start + slice.channel_a] = F::cast_from(slice.sum_a * scale);
        out[start + slice.channel_b] = F::cast_from(slice.sum_b * scale);
    } else if item.part + 1 == row.first_part + row.parts {
        let (a, b) = receive(
            slice,
            exchange,
            first + row.first_part * words,
            row.parts - 1,
            lane,
            plane,
            comptime!(shape.clone()),
        );
        out[start + slice.channel_a] = F::cast_from(a);
        out[start + slice.channel_b] = F::cast_from(b);
    } else {
        hand_on(slice, exchange, first + item.part * words, lane);
    }
}

/// Writes a slice's words from `first` on: the sums of the units' first channels, of their second
/// channels, maximum and total. The last two are waited for first, so they come last.
#[cube]
fn hand_on(slice: &Slice, exchange: &[Atomic<u32>], first: usize, lane: usize) {
    write(exchange, first + lane, slice.sum_a);
    write(exchange, first + 32 + lane, slice.sum_b);
    if lane < 2 {
        write(
            exchange,
            first + comptime!(SLICE_CHANNELS) + lane,
            select(lane == 0, slice.max, slice.total),
        );
    }
}

/// A number for another cube of this launch, -0 for 0, which is no message.
#[cube]
fn write(exchange: &[Atomic<u32>], at: usize, x: f32) {
    let bits = u32::reinterpret(x);
    exchange[at].store(select(bits == 0u32, 0x8000_0000u32, bits));
}

/// A slice of `others` other cubes, from word `first` on, merged with the cube's own: the sums of
/// the unit's channels, divided by the total.
///
/// Most cubes end at about the same time, so the time from the last message to the output counts:
/// few words are waited for, and channels are on their way while those become weights.
#[cube]
fn receive(
    slice: &Slice,
    exchange: &[Atomic<u32>],
    first: usize,
    others: usize,
    lane: usize,
    plane: usize,
    #[comptime] shape: Shape,
) -> (f32, f32) {
    let words = comptime!(shape.partial_words());
    let held = comptime!(MAX_PARTS / 32);
    // Maxima and totals: a lane has those of every 32nd part.
    let mut maxima = Array::<f32>::new(held);
    let mut totals = Array::<f32>::new(held);
    #[unroll]
    for k in 0..held {
        maxima[k] = f32::new(LOWEST);
        totals[k] = 0.0;
        if comptime!(32 * k) < others {
            let part = lane + comptime!(32 * k);
            let is_own = part < others;
            let at = first + usize::min(part, others - 1) * words + comptime!(SLICE_CHANNELS);
            let mut max = 0u32.runtime();
            let mut total = 0u32.runtime();
            while plane_any(max == 0u32 || total == 0u32) {
                max = exchange[at].load();
                total = exchange[at + 1].load();
            }
            maxima[k] = select(is_own, f32::reinterpret(max), f32::new(LOWEST));
            totals[k] = select(is_own, f32::reinterpret(total), 0.0);
            // All lanes have seen them: some wait for the last part, too, which is not theirs.
            exchange[at].store(0u32);
            exchange[at + 1].store(0u32);
        }
    }
    let mut inbox = Inbox::new();
    inbox.look(exchange, first + lane, words);

    let mut weights = Shared::<[f32]>::new_slice(comptime!(shape.planes * MAX_PARTS));
    let mut max = slice.max;
    #[unroll]
    for k in 0..held {
        max = f32::max(max, maxima[k]);
    }
    let max = plane_max(max);
    let own = (slice.max - max).exp();
    let mut total = select(lane == 0, slice.total * own, 0.0);
    #[unroll]
    for k in 0..held {
        if comptime!(32 * k) < others {
            maxima[k] = (maxima[k] - max).exp();
            total += totals[k] * maxima[k];
            weights[plane * comptime!(MAX_PARTS) + comptime!(32 * k) + lane] = maxima[k];
        }
    }
    let scale = 1.0 / plane_sum(total);
    sync_plane();

    let mut a = slice.sum_a * own;
    let mut b = slice.sum_b * own;
    let mut before = 0usize.runtime();
    while before < others {
        while plane_any(!inbox.has(others - before)) {
            inbox.look(exchange, first + before * words + lane, words);
        }
        #[unroll]
        for part in 0..AT_ONCE {
            if before + part < others {
                let at = first + (before + part) * words + lane;
                exchange[at].store(0u32);
                exchange[at + 32].store(0u32);
                let weight = weights[plane * comptime!(MAX_PARTS) + before + part];
                a += weight * f32::reinterpret(inbox.a[part]);
                b += weight * f32::reinterpret(inbox.b[part]);
            }
        }
        before += AT_ONCE;
        if before < others {
            inbox.look(exchange, first + before * words + lane, words);
        }
    }
    // The next slice's weights take the place of these.
    sync_plane();
    (a * scale, b * scale)
}

/// A unit's channels of some partials, one after the other; 0 where they have not come.
#[derive(CubeType)]
struct Inbox {
    a: Array<u32>,
    b: Array<u32>,
}

#[cube]
impl Inbox {
    fn new() -> Inbox {
        Inbox {
            a: Array::new(AT_ONCE),
            b: Array::new(AT_ONCE),
        }
    }

    /// Looks at all of them, of the partial at `first` and those behind it, at places that are known
    /// without looking how many there are: there is room for some more behind the last.
    fn look(&mut self, exchange: &[Atomic<u32>], first: usize, #[comptime] words: usize) {
        #[unroll]
        for part in 0..AT_ONCE {
            self.a[part] = exchange[first + comptime!(part * words)].load();
            self.b[part] = exchange[first + comptime!(part * words + 32)].load();
        }
    }

    /// Whether the first `count` have come.
    fn has(&self, count: usize) -> bool {
        let mut least = 1u32.runtime();
        #[unroll]
        for part in 0..AT_ONCE {
            let both = u32::min(self.a[part], self.b[part]);
            least = select(part < count, u32::min(least, both), least);
        }
        least != 0u32
    }
}
