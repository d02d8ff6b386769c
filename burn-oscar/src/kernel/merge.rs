//! Partial results of a row's work items put together.
//!
//! A partial is the weighted sum of values `[head_dim]`, the maximum score and the sum of weights
//! of one query head. A row of one part has none: its cube writes the output.
//!
//! Where cubes of one launch can talk to each other, the cube of a row's last part merges. The
//! others hand it their numbers as single words, each of which is its own message: 0 is a word that
//! has not come, and whoever takes a word leaves 0. So nothing is ordered: no fence, no counter. A
//! waiting cube comes after those that it waits for in the grid, so they have begun, and it cannot
//! keep them from a multiprocessor.
//!
//! Elsewhere a second launch merges. Bytes: (head_dim + 2) f32 per partial, written once and read
//! once, mostly in the L2.

use cubecl::prelude::*;

use super::shape::{Heads, Shape, heads};
use super::steps::{Item, Row, row};
use super::tile::{LOWEST, TileMemory};
use crate::backend::plan::MAX_PARTS;

/// Writes the output where the cube has all of its row; else hands its partial on, or merges.
#[cube]
pub fn finish<F: Float>(
    memory: &mut TileMemory,
    exchange: &[Atomic<u32>],
    partials: &mut [f32],
    out: &mut [F],
    item: &Item,
    row: &Row,
    heads: &Heads,
    #[comptime] shape: Shape,
) {
    let words = comptime!(shape.partial_words());
    let own = (heads.first_partial + item.part) * words;
    if row.parts == 1 {
        let head_dim = comptime!(shape.head_dim);
        let mut i = UNIT_POS as usize;
        while i < heads.held * head_dim {
            out[heads.first + i] = F::cast_from(memory.sums[i] / memory.total[i / head_dim]);
            i += CUBE_DIM as usize;
        }
    } else if comptime!(shape.merge) {
        if item.part + 1 == row.first_part + row.parts {
            let first = (heads.first_partial + row.first_part) * words;
            let others = row.parts - 1;
            receive::<F>(
                memory,
                exchange,
                out,
                first,
                others,
                heads,
                comptime!(shape.clone()),
            );
        } else {
            hand_on(memory, exchange, partials, own, comptime!(shape.clone()));
        }
    } else {
        hand_on(memory, exchange, partials, own, comptime!(shape.clone()));
    }
}

/// Writes the cube's numbers from word `first` on: sums `[heads, head_dim]`, then maximum and total
/// of each head.
#[cube]
fn hand_on(
    memory: &mut TileMemory,
    exchange: &[Atomic<u32>],
    partials: &mut [f32],
    first: usize,
    #[comptime] shape: Shape,
) {
    let merge = comptime!(shape.merge);
    let sums = comptime!(shape.heads * shape.head_dim);
    let mut h = UNIT_POS as usize;
    while h < comptime!(shape.heads) {
        let at = first + sums + 2 * h;
        write(exchange, partials, at, memory.max[h], merge);
        write(exchange, partials, at + 1, memory.total[h], merge);
        h += CUBE_DIM as usize;
    }
    let mut i = UNIT_POS as usize;
    while i < sums {
        write(exchange, partials, first + i, memory.sums[i], merge);
        i += CUBE_DIM as usize;
    }
}

/// A number for another cube of this launch, -0 for 0, which is no message; or for the second launch.
#[cube]
fn write(
    exchange: &[Atomic<u32>],
    partials: &mut [f32],
    at: usize,
    x: f32,
    #[comptime] merge: bool,
) {
    if comptime!(merge) {
        let bits = u32::reinterpret(x);
        exchange[at].store(select(bits == 0u32, 0x8000_0000u32, bits));
    } else {
        partials[at] = x;
    }
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

/// Words that a unit waits for at a time.
const INBOX: usize = 32;

/// Merges the partials of `others` other cubes, from word `first` on, with the cube's own.
#[cube]
fn receive<F: Float>(
    memory: &mut TileMemory,
    exchange: &[Atomic<u32>],
    out: &mut [F],
    first: usize,
    others: usize,
    heads: &Heads,
    #[comptime] shape: Shape,
) {
    let head_dim = comptime!(shape.head_dim);
    let sums = comptime!(shape.heads * head_dim);
    // A unit has some channels of all partials; those of the first partials are on their way before
    // the weights are known.
    let units = comptime!(32 * shape.planes);
    let columns = comptime!(sums.div_ceil(units));
    let parts = comptime!(if columns < INBOX { INBOX / columns } else { 1 });
    let unit = UNIT_POS as usize;
    let mut inbox = Inbox::new(comptime!(parts * columns));
    if unit < sums {
        ask_for(
            &mut inbox,
            first,
            0usize,
            others,
            parts,
            comptime!(shape.clone()),
        );
        inbox.look(exchange);
    }

    let mut weights = Shared::<[f32]>::new_slice(comptime!(shape.heads * MAX_PARTS));
    let mut h = unit / 32;
    while h < comptime!(shape.heads) {
        weigh(
            memory,
            exchange,
            &mut weights,
            first,
            others,
            h,
            comptime!(shape.clone()),
        );
        h += comptime!(shape.planes);
    }
    sync_cube();

    if unit < sums {
        let mut merged = Array::<f32>::new(columns);
        #[unroll]
        for column in 0..columns {
            merged[column] = 0.0;
            let i = unit + comptime!(column * units);
            if i < sums {
                merged[column] = memory.sums[i] * memory.decay[i / head_dim];
            }
        }
        let mut before = 0usize.runtime();
        while before < others {
            inbox.wait(exchange);
            #[unroll]
            for column in 0..columns {
                let i = unit + comptime!(column * units);
                let head = select(i < sums, i, unit) / head_dim;
                #[unroll]
                for part in 0..parts {
                    let index =
                        head * comptime!(MAX_PARTS) + (before + part) % comptime!(MAX_PARTS);
                    let weight = select(before + part < others, weights[index], 0.0);
                    merged[column] += weight * inbox.number(comptime!(column * parts + part));
                }
            }
            before += parts;
            if before < others {
                ask_for(
                    &mut inbox,
                    first,
                    before,
                    others,
                    parts,
                    comptime!(shape.clone()),
                );
                inbox.look(exchange);
            }
        }
        #[unroll]
        for column in 0..columns {
            let i = unit + comptime!(column * units);
            if i < heads.held * head_dim {
                out[heads.first + i] = F::cast_from(merged[column]);
            }
        }
    }
}

/// Asks for a unit's channels of some partials, from number `before` on. Where there is none, for
/// one that the unit asks for anyway.
#[cube]
fn ask_for(
    inbox: &mut Inbox,
    first: usize,
    before: usize,
    others: usize,
    #[comptime] parts: usize,
    #[comptime] shape: Shape,
) {
    let words = comptime!(shape.partial_words());
    let sums = comptime!(shape.heads * shape.head_dim);
    let units = comptime!(32 * shape.planes);
    let unit = UNIT_POS as usize;
    #[unroll]
    for column in 0..comptime!(sums.div_ceil(units)) {
        let i = unit + comptime!(column * units);
        let i = select(i < sums, i, unit);
        #[unroll]
        for part in 0..parts {
            let part_number = select(before + part < others, before + part, before);
            inbox.places[comptime!(column * parts + part)] = first + part_number * words + i;
        }
    }
}

/// The weights of all partials of a head, the division by their sum included; the own partial's
/// into `memory.decay`. By one plane, whose lanes each wait for what is theirs.
#[cube]
fn weigh(
    memory: &mut TileMemory,
    exchange: &[Atomic<u32>],
    weights: &mut Shared<[f32]>,
    first: usize,
    others: usize,
    head: usize,
    #[comptime] shape: Shape,
) {
    let lane = UNIT_POS as usize % 32;
    let held = comptime!(MAX_PARTS / 32);
    let words = comptime!(shape.partial_words());
    let start = first + comptime!(shape.heads * shape.head_dim) + 2 * head;
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
            inbox.places[comptime!(2 * k)] = start + part * words;
            inbox.places[comptime!(2 * k + 1)] = start + part * words + 1;
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
    let own = memory.max[head];
    let mut max = own;
    #[unroll]
    for k in 0..held {
        max = f32::max(max, maxima[k]);
    }
    let max = plane_max(max);
    let own = (own - max).exp();
    let mut total = select(lane == 0, memory.total[head] * own, 0.0);
    #[unroll]
    for k in 0..held {
        maxima[k] = (maxima[k] - max).exp();
        total += shares[k] * maxima[k];
    }
    let scale = 1.0 / plane_sum(total);
    #[unroll]
    for k in 0..held {
        let part = lane + comptime!(32 * k);
        if part < others {
            weights[head * comptime!(MAX_PARTS) + part] = maxima[k] * scale;
        }
    }
    memory.decay[head] = own * scale;
}

/// The second launch; grid: groups of heads x rows.
#[cube(launch_unchecked)]
pub fn merge_rows<F: Float>(
    partials: &[f32],
    steps: &[u32],
    out: &mut [F],
    items: u32,
    parts: u32,
    #[comptime] shape: Shape,
    #[define(F)] _dtype: ElemType,
) {
    let index = CUBE_POS_Y as usize;
    let row = row(steps, items as usize, index);
    if row.parts == 1 {
        terminate!();
    }
    let heads = heads(index, parts as usize, comptime!(shape.clone()));
    let head_dim = comptime!(shape.head_dim);
    let words = comptime!(shape.partial_words());
    let first = (heads.first_partial + row.first_part) * words;
    let stats = first + comptime!(shape.heads * head_dim);
    let mut weights = Shared::<[f32]>::new_slice(comptime!(shape.heads * MAX_PARTS));
    let mut h = UNIT_POS as usize;
    while h < comptime!(shape.heads) {
        let mut max = f32::new(LOWEST);
        for p in 0..row.parts {
            max = f32::max(max, partials[stats + p * words + 2 * h]);
        }
        let mut total = f32::new(0.0);
        for p in 0..row.parts {
            let at = stats + p * words + 2 * h;
            let weight = (partials[at] - max).exp();
            total += partials[at + 1] * weight;
            weights[h * comptime!(MAX_PARTS) + p] = weight;
        }
        for p in 0..row.parts {
            weights[h * comptime!(MAX_PARTS) + p] /= total;
        }
        h += CUBE_DIM as usize;
    }
    sync_cube();
    let mut i = UNIT_POS as usize;
    while i < heads.held * head_dim {
        let mut sum = f32::new(0.0);
        for p in 0..row.parts {
            let weight = weights[i / head_dim * comptime!(MAX_PARTS) + p];
            sum += weight * partials[first + p * words + i];
        }
        out[heads.first + i] = F::cast_from(sum);
        i += CUBE_DIM as usize;
    }
}
