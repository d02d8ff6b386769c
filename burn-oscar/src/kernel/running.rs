//! A lane's running result from chunk to chunk.

use cubecl::prelude::*;

use super::spec::PackedSide;
use super::tile::LOWEST;

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
pub const MAX: usize = 0;
/// Running sum of the weights.
pub const TOTAL: usize = 1;
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
    pub fn raise(&mut self, top: f32, #[comptime] value: PackedSide) {
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

/// The largest over the lanes of a head.
#[cube]
pub fn max_rows(x: f32) -> f32 {
    let a = f32::max(x, plane_shuffle_xor(x, 4u32));
    let b = f32::max(a, plane_shuffle_xor(a, 8u32));
    f32::max(b, plane_shuffle_xor(b, 16u32))
}

/// The sum over the lanes of a head.
#[cube]
pub fn sum_rows(x: f32) -> f32 {
    let a = x + plane_shuffle_xor(x, 4u32);
    let b = a + plane_shuffle_xor(a, 8u32);
    b + plane_shuffle_xor(b, 16u32)
}
