//! The results of a cube's planes in shared memory, and how they are added up.

use cubecl::prelude::*;

use super::handover::{Slice, slices};
use super::running::{MAX, Running, TOTAL, sum_rows};
use super::spec::PackedSide;
use crate::backend::plan::SLICE_CHANNELS;

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

    /// Puts a plane's result at its place, together with that of its exact tokens, where it had any
    /// and left them there.
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
