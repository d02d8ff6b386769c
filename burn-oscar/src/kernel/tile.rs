//! Attention of one cube over tiles of 64 tokens, through shared memory: scores, softmax, values.
//!
//! The portable kernel works through all its tokens this way; the tensor-core kernel only through
//! the exact ones. A running maximum and sum per query head make tiles independent of order.

use cubecl::prelude::*;

/// Tokens of a tile.
pub const TILE: usize = 64;
/// Below every score.
pub const LOWEST: f32 = -1e30;

/// What the units of a cube share.
#[derive(CubeType)]
pub struct TileMemory {
    /// Queries, scaled: `[heads, head_dim]`.
    pub query: Shared<[f32]>,
    /// Scores, then weights: `[heads, TILE]`.
    pub scores: Shared<[f32]>,
    /// Weighted sums of values: `[heads, head_dim]`.
    pub sums: Shared<[f32]>,
    /// Running maximum of each head.
    pub max: Shared<[f32]>,
    /// Running sum of weights of each head.
    pub total: Shared<[f32]>,
    /// What the last tile multiplies older sums by.
    pub decay: Shared<[f32]>,
}

#[cube]
impl TileMemory {
    pub fn new(#[comptime] heads: usize, #[comptime] head_dim: usize) -> TileMemory {
        TileMemory {
            query: Shared::<[f32]>::new_slice(heads * head_dim),
            scores: Shared::<[f32]>::new_slice(heads * comptime!(TILE)),
            sums: Shared::<[f32]>::new_slice(heads * head_dim),
            max: Shared::<[f32]>::new_slice(heads),
            total: Shared::<[f32]>::new_slice(heads),
            decay: Shared::<[f32]>::new_slice(heads),
        }
    }
}

/// Loads the queries of a cube and empties the sums. Heads past `held` are zero.
#[cube]
pub fn start<F: Float>(
    memory: &mut TileMemory,
    query: &[F],
    first: usize,
    held: usize,
    scale: f32,
    #[comptime] heads: usize,
    #[comptime] head_dim: usize,
) {
    let units = CUBE_DIM as usize;
    let mut i = UNIT_POS as usize;
    while i < heads * head_dim {
        let mut x = f32::new(0.0);
        if i < held * head_dim {
            x = f32::cast_from(query[first + i]) * scale;
        }
        memory.query[i] = x;
        memory.sums[i] = 0.0;
        i += units;
    }
    let mut h = UNIT_POS as usize;
    while h < heads {
        memory.max[h] = f32::new(LOWEST);
        memory.total[h] = 0.0;
        h += units;
    }
}

/// Turns the tile's scores into weights and moves the running maximum and sum on. Tokens from
/// `count` on weigh nothing, whatever stands there.
#[cube]
pub fn softmax(
    memory: &mut TileMemory,
    count: usize,
    #[comptime] heads: usize,
    #[comptime] planes: bool,
) {
    if planes {
        let lane = UNIT_POS as usize % 32;
        let step = CUBE_DIM as usize / 32;
        let mut h = UNIT_POS as usize / 32;
        while h < heads {
            let at = h * comptime!(TILE) + lane;
            let low = f32::new(LOWEST);
            let a = select(lane < count, memory.scores[at], low);
            let b = select(lane + 32 < count, memory.scores[at + 32], low);
            let before = memory.max[h];
            let max = f32::max(before, plane_max(f32::max(a, b)));
            let a = select(lane < count, (a - max).exp(), 0.0);
            let b = select(lane + 32 < count, (b - max).exp(), 0.0);
            memory.scores[at] = a;
            memory.scores[at + 32] = b;
            let sum = plane_sum(a + b);
            if lane == 0 {
                let decay = (before - max).exp();
                memory.decay[h] = decay;
                memory.total[h] = memory.total[h] * decay + sum;
                memory.max[h] = max;
            }
            h += step;
        }
    } else {
        let mut h = UNIT_POS as usize;
        while h < heads {
            let at = h * comptime!(TILE);
            let before = memory.max[h];
            let mut max = before;
            for t in 0..count {
                max = f32::max(max, memory.scores[at + t]);
            }
            let mut sum = f32::new(0.0);
            for t in 0..count {
                let weight = (memory.scores[at + t] - max).exp();
                memory.scores[at + t] = weight;
                sum += weight;
            }
            let decay = (before - max).exp();
            memory.decay[h] = decay;
            memory.total[h] = memory.total[h] * decay + sum;
            memory.max[h] = max;
            h += CUBE_DIM as usize;
        }
    }
}

/// Where the exact tokens of a sequence and KV head stand.
#[derive(CubeType, Clone, Copy)]
pub struct ExactPlace {
    /// First element of the slot and KV head in the tiers.
    pub tier: usize,
    /// First element of the call's own token and KV head.
    pub own: usize,
    /// Sinks held.
    pub sinks: usize,
    /// Sinks and recent tokens held: the token after them is the call's own.
    pub held: usize,
}

/// One tile of exact tokens from `first` on, `count` of them: sinks, recent ones, the call's own.
/// Reads `2 count head_dim` activations.
#[cube]
pub fn exact_tile<F: Float>(
    memory: &mut TileMemory,
    own_key: &[F],
    own_value: &[F],
    key_tier: &[F],
    value_tier: &[F],
    at: &ExactPlace,
    first: usize,
    count: usize,
    #[comptime] sink: usize,
    #[comptime] heads: usize,
    #[comptime] head_dim: usize,
    #[comptime] planes: bool,
) {
    let units = CUBE_DIM as usize;
    let mut t = UNIT_POS as usize;
    while t < count {
        let token = first + t;
        let mut dots = Array::<f32>::new(heads);
        #[unroll]
        for h in 0..heads {
            dots[h] = 0.0;
        }
        if token < at.held {
            let place = select(token < at.sinks, token, token - at.sinks + sink);
            dot::<F>(
                memory,
                &mut dots,
                key_tier,
                at.tier + place * head_dim,
                heads,
                head_dim,
            );
        } else {
            dot::<F>(memory, &mut dots, own_key, at.own, heads, head_dim);
        }
        #[unroll]
        for h in 0..heads {
            memory.scores[h * comptime!(TILE) + t] = dots[h];
        }
        t += units;
    }
    sync_cube();
    softmax(memory, count, heads, planes);
    sync_cube();
    let mut c = UNIT_POS as usize;
    while c < head_dim {
        let mut sums = Array::<f32>::new(heads);
        #[unroll]
        for h in 0..heads {
            sums[h] = memory.sums[h * head_dim + c] * memory.decay[h];
        }
        for t in 0..count {
            let token = first + t;
            let v = if token < at.held {
                let place = select(token < at.sinks, token, token - at.sinks + sink);
                f32::cast_from(value_tier[at.tier + place * head_dim + c])
            } else {
                f32::cast_from(own_value[at.own + c])
            };
            #[unroll]
            for h in 0..heads {
                sums[h] += memory.scores[h * comptime!(TILE) + t] * v;
            }
        }
        #[unroll]
        for h in 0..heads {
            memory.sums[h * head_dim + c] = sums[h];
        }
        c += units;
    }
    sync_cube();
}

/// Adds the products of one key with all queries.
#[cube]
fn dot<F: Float>(
    memory: &mut TileMemory,
    dots: &mut Array<f32>,
    keys: &[F],
    base: usize,
    #[comptime] heads: usize,
    #[comptime] head_dim: usize,
) {
    for c in 0..head_dim {
        let k = f32::cast_from(keys[base + c]);
        #[unroll]
        for h in 0..heads {
            dots[h] += memory.query[h * head_dim + c] * k;
        }
    }
}
