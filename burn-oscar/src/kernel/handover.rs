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
use crate::backend::plan::{MAX_PARTS, SLICE_CHANNELS, SLICE_WORDS};

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
    if item.part + 1 == row.first_part + row.parts {
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
/// channels, maximum and total.
#[cube]
fn hand_on(slice: &Slice, exchange: &[Atomic<u32>], first: usize, lane: usize) {
    if lane < 2 {
        write(
            exchange,
            first + comptime!(SLICE_CHANNELS) + lane,
            select(lane == 0, slice.max, slice.total),
        );
    }
    write(exchange, first + lane, slice.sum_a);
    write(exchange, first + 32 + lane, slice.sum_b);
}

/// A number for another cube of this launch, -0 for 0, which is no message.
#[cube]
fn write(exchange: &[Atomic<u32>], at: usize, x: f32) {
    let bits = u32::reinterpret(x);
    exchange[at].store(select(bits == 0u32, 0x8000_0000u32, bits));
}

/// Words that a unit waits for, 0 while they have not come. Each is read by this unit alone.
#[derive(CubeType)]
struct Inbox {
    words: Array<u32>,
    places: Array<usize>,
    #[cube(comptime)]
    count: usize,
}

#[cube]
impl Inbox {
    fn new(#[comptime] count: usize) -> Inbox {
        Inbox {
            words: Array::new(count),
            places: Array::new(count),
            count,
        }
    }

    /// Looks at all places at once. No branches: a branch for every word takes longer than the
    /// trip.
    fn look(&mut self, exchange: &[Atomic<u32>]) {
        let count = comptime!(self.count);
        #[unroll]
        for n in 0..count {
            self.words[n] = exchange[self.places[n]].load();
        }
    }

    /// Waits until all have come, from a first look on, and leaves their places empty.
    fn wait(&mut self, exchange: &[Atomic<u32>]) {
        let count = comptime!(self.count);
        let mut least = 0u32.runtime();
        while least == 0u32 {
            least = self.words[0];
            #[unroll]
            for n in 1..count {
                least = u32::min(least, self.words[n]);
            }
            if least == 0u32 {
                self.look(exchange);
            }
        }
        #[unroll]
        for n in 0..count {
            exchange[self.places[n]].store(0u32);
        }
    }

    fn number(&self, #[comptime] n: usize) -> f32 {
        f32::reinterpret(self.words[n])
    }
}

/// Partials whose channels a unit waits for at a time.
const AT_ONCE: usize = 16;

/// A slice of `others` other cubes, from word `first` on, merged with the cube's own: the sums of
/// the unit's channels, divided by the total.
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
    let mut a = slice.sum_a;
    let mut b = slice.sum_b;
    if others == 0 {
        a /= slice.total;
        b /= slice.total;
    } else {
        // The first channels are on their way before the weights are known.
        let mut inbox = Inbox::new(comptime!(2 * AT_ONCE));
        ask_for(&mut inbox, first + lane, 0usize.runtime(), others, words);
        inbox.look(exchange);
        let mut weights = Shared::<[f32]>::new_slice(comptime!(shape.planes * MAX_PARTS));
        let weight = weigh(
            slice,
            exchange,
            &mut weights,
            first + comptime!(SLICE_CHANNELS),
            others,
            lane,
            plane,
            words,
        );
        sync_plane();
        a *= weight;
        b *= weight;
        let mut before = 0usize.runtime();
        while before < others {
            inbox.wait(exchange);
            #[unroll]
            for part in 0..AT_ONCE {
                let index = plane * comptime!(MAX_PARTS) + before + part;
                let weight = select(before + part < others, weights[index], 0.0);
                a += weight * inbox.number(comptime!(2 * part));
                b += weight * inbox.number(comptime!(2 * part + 1));
            }
            before += AT_ONCE;
            if before < others {
                ask_for(&mut inbox, first + lane, before, others, words);
                inbox.look(exchange);
            }
        }
        // The next slice's weights take the place of these.
        sync_plane();
    }
    (a, b)
}

/// Asks for a unit's channels of some partials, from number `before` on. Where there is none, for
/// one that the unit asks for anyway.
#[cube]
fn ask_for(
    inbox: &mut Inbox,
    first: usize,
    before: usize,
    others: usize,
    #[comptime] words: usize,
) {
    #[unroll]
    for part in 0..AT_ONCE {
        let number = select(before + part < others, before + part, before);
        inbox.places[comptime!(2 * part)] = first + number * words;
        inbox.places[comptime!(2 * part + 1)] = first + number * words + 32;
    }
}

/// The weights of a head's partials, the division by their sum included, into `weights`; the own
/// partial's is returned. Each lane waits for the maxima and totals that are its own.
#[cube]
fn weigh(
    slice: &Slice,
    exchange: &[Atomic<u32>],
    weights: &mut Shared<[f32]>,
    first: usize,
    others: usize,
    lane: usize,
    plane: usize,
    #[comptime] words: usize,
) -> f32 {
    let held = comptime!(MAX_PARTS / 32);
    let mut maxima = Array::<f32>::new(held);
    let mut shares = Array::<f32>::new(held);
    #[unroll]
    for k in 0..held {
        maxima[k] = f32::new(LOWEST);
        shares[k] = 0.0;
    }
    if lane < others {
        let mut inbox = Inbox::new(comptime!(2 * held));
        #[unroll]
        for k in 0..held {
            let part = lane + comptime!(32 * k);
            let part = select(part < others, part, lane);
            inbox.places[comptime!(2 * k)] = first + part * words;
            inbox.places[comptime!(2 * k + 1)] = first + part * words + 1;
        }
        inbox.look(exchange);
        inbox.wait(exchange);
        #[unroll]
        for k in 0..held {
            if lane + comptime!(32 * k) < others {
                maxima[k] = inbox.number(comptime!(2 * k));
                shares[k] = inbox.number(comptime!(2 * k + 1));
            }
        }
    }
    sync_plane();
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
        maxima[k] = (maxima[k] - max).exp();
        total += shares[k] * maxima[k];
    }
    let scale = 1.0 / plane_sum(total);
    #[unroll]
    for k in 0..held {
        weights[plane * comptime!(MAX_PARTS) + comptime!(32 * k) + lane] = maxima[k] * scale;
    }
    own * scale
}
