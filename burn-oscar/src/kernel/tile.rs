//! Attention of one cube over tiles of 64 tokens, through shared memory: scores, softmax, values.
//!
//! The portable kernel works this way; the tensor-core kernel shares the memory.
//! A running maximum and sum per query head make tiles independent of order.
//!
//! Units that exchange numbers must meet first: a shuffle takes part of those that are there, and
//! after a branch that only some take, the others may be ahead.

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
    /// Sums of each plane `[planes, heads, head_dim]`, where there are planes.
    pub planes: Shared<[f32]>,
}

#[cube]
impl TileMemory {
    pub fn new(
        #[comptime] heads: usize,
        #[comptime] head_dim: usize,
        #[comptime] planes: usize,
    ) -> TileMemory {
        TileMemory {
            query: Shared::<[f32]>::new_slice(heads * head_dim),
            scores: Shared::<[f32]>::new_slice(heads * comptime!(TILE)),
            sums: Shared::<[f32]>::new_slice(heads * head_dim),
            max: Shared::<[f32]>::new_slice(heads),
            total: Shared::<[f32]>::new_slice(heads),
            decay: Shared::<[f32]>::new_slice(heads),
            planes: Shared::<[f32]>::new_slice(comptime!(if planes > 0 {
                planes * heads * head_dim
            } else {
                1
            })),
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
    #[comptime] planes: usize,
) {
    if comptime!(planes > 0) {
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
            sync_plane();
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

/// A held token's position in its slot.
#[cube]
pub fn position(at: &ExactPlace, token: usize, #[comptime] sink: usize) -> usize {
    select(token < at.sinks, token, token - at.sinks + sink)
}

/// One tile of exact tokens from `first` on, `count` of them: sinks, recent ones, the call's own.
/// Reads `2 count head_dim` activations, 16 bytes at a time.
#[cube]
pub fn exact_tile<F: Float, N: Size>(
    memory: &mut TileMemory,
    own_key: &[Vector<F, N>],
    own_value: &[Vector<F, N>],
    key_tier: &[Vector<F, N>],
    value_tier: &[Vector<F, N>],
    at: &ExactPlace,
    first: usize,
    count: usize,
    #[comptime] sink: usize,
    #[comptime] heads: usize,
    #[comptime] head_dim: usize,
    #[comptime] planes: usize,
) {
    let width = N::value().comptime();
    let vectors = comptime!(head_dim / width);
    // Two neighbouring units share a token where they can add their halves up without a barrier.
    let shares = comptime!(if planes > 0 { 2 } else { 1 });
    let own_vectors = comptime!(vectors / shares);
    let mut i = UNIT_POS as usize;
    // All units take part in every round, since they exchange halves in it.
    let rounds = (count * shares).div_ceil(CUBE_DIM as usize);
    for _ in 0..rounds {
        let t = i / shares;
        let share = i % shares;
        let token = first + t;
        let mut dots = Array::<f32>::new(heads);
        #[unroll]
        for h in 0..heads {
            dots[h] = 0.0;
        }
        if t < count {
            let begin = share * own_vectors;
            if token < at.held {
                let place = position(at, token, sink);
                let base = (at.tier + place * head_dim) / width + begin;
                dot::<F, N>(
                    memory,
                    &mut dots,
                    key_tier,
                    base,
                    begin,
                    own_vectors,
                    heads,
                    head_dim,
                    planes,
                );
            } else {
                let base = at.own / width + begin;
                dot::<F, N>(
                    memory,
                    &mut dots,
                    own_key,
                    base,
                    begin,
                    own_vectors,
                    heads,
                    head_dim,
                    planes,
                );
            }
        }
        if comptime!(planes > 0) {
            sync_plane();
        }
        #[unroll]
        for h in 0..heads {
            let mut score = dots[h];
            if comptime!(planes > 0) {
                score += plane_shuffle_xor(score, 1u32);
            }
            if t < count {
                memory.scores[h * comptime!(TILE) + t] = score;
            }
        }
        i += CUBE_DIM as usize;
    }
    sync_cube();
    softmax(memory, count, heads, planes);
    sync_cube();
    if comptime!(planes > 0) {
        exact_values::<F, N>(
            memory, own_value, value_tier, at, first, count, sink, heads, head_dim, planes,
        );
    } else {
        let mut v = UNIT_POS as usize;
        while v < vectors {
            #[unroll]
            for h in 0..heads {
                #[unroll]
                for k in 0..width {
                    memory.sums[h * head_dim + v * width + k] *= memory.decay[h];
                }
            }
            for t in 0..count {
                let token = first + t;
                let vector = if token < at.held {
                    let place = position(at, token, sink);
                    value_tier[(at.tier + place * head_dim) / width + v]
                } else {
                    own_value[at.own / width + v]
                };
                #[unroll]
                for h in 0..heads {
                    let weight = memory.scores[h * comptime!(TILE) + t];
                    #[unroll]
                    for k in 0..width {
                        memory.sums[h * head_dim + v * width + k] +=
                            weight * f32::cast_from(vector.extract(k));
                    }
                }
            }
            v += CUBE_DIM as usize;
        }
    }
    sync_cube();
}

/// Adds the products of part of one key with all queries: vectors `begin .. begin + count` of the
/// head, the first of them at `base` of the array.
#[cube]
fn dot<F: Float, N: Size>(
    memory: &mut TileMemory,
    dots: &mut Array<f32>,
    keys: &[Vector<F, N>],
    base: usize,
    begin: usize,
    #[comptime] count: usize,
    #[comptime] heads: usize,
    #[comptime] head_dim: usize,
    #[comptime] planes: usize,
) {
    let width = N::value().comptime();
    // On a GPU all loads are in flight before the first is used.
    let batch = comptime!(if planes > 0 {
        if count < 8 { count } else { 8 }
    } else {
        1
    });
    for b in 0..comptime!(count / batch) {
        let mut loaded = Array::<Vector<F, N>>::new(batch);
        #[unroll]
        for j in 0..batch {
            loaded[j] = keys[base + b * batch + j];
        }
        #[unroll]
        for j in 0..batch {
            let c = (begin + b * batch + j) * width;
            #[unroll]
            for k in 0..width {
                let x = f32::cast_from(loaded[j].extract(k));
                #[unroll]
                for h in 0..heads {
                    dots[h] += memory.query[h * head_dim + c + k] * x;
                }
            }
        }
    }
}

/// The values of a tile with plane operations: a unit adds up one vector of channels of every n-th
/// token, a plane's units are added up by shuffles and the planes through shared memory.
#[cube]
fn exact_values<F: Float, N: Size>(
    memory: &mut TileMemory,
    own_value: &[Vector<F, N>],
    value_tier: &[Vector<F, N>],
    at: &ExactPlace,
    first: usize,
    count: usize,
    #[comptime] sink: usize,
    #[comptime] heads: usize,
    #[comptime] head_dim: usize,
    #[comptime] planes: usize,
) {
    let width = N::value().comptime();
    let vectors = comptime!(head_dim / width);
    // Tokens of a plane at a time.
    let rows = comptime!(32 / vectors);
    let lane = UNIT_POS as usize % 32;
    let plane = UNIT_POS as usize / 32;
    let vector = lane % vectors;
    let group = plane * rows + lane / vectors;
    let groups = comptime!(planes * rows);
    let mut sums = Array::<f32>::new(comptime!(heads * width));
    #[unroll]
    for i in 0..comptime!(heads * width) {
        sums[i] = 0.0;
    }
    let batch = comptime!(if TILE / groups < 8 { TILE / groups } else { 8 });
    #[unroll]
    for b in 0..comptime!(TILE / groups / batch) {
        let mut loaded = Array::<Vector<F, N>>::new(batch);
        #[unroll]
        for j in 0..batch {
            let t = group + comptime!((b * batch + j) * groups);
            let token = first + t;
            loaded[j] = Vector::<F, N>::new(F::new(0.0));
            if t < count {
                if token < at.held {
                    let place = position(at, token, sink);
                    loaded[j] = value_tier[(at.tier + place * head_dim) / width + vector];
                } else {
                    loaded[j] = own_value[at.own / width + vector];
                }
            }
        }
        #[unroll]
        for j in 0..batch {
            let t = group + comptime!((b * batch + j) * groups);
            #[unroll]
            for h in 0..heads {
                // Zero for tokens past the last.
                let weight = memory.scores[h * comptime!(TILE) + t];
                #[unroll]
                for k in 0..width {
                    sums[h * width + k] += weight * f32::cast_from(loaded[j].extract(k));
                }
            }
        }
    }
    sync_plane();
    #[unroll]
    for i in 0..comptime!(heads * width) {
        let mut sum = sums[i];
        #[unroll]
        for j in 0..comptime!(rows.trailing_zeros() as usize) {
            sum += plane_shuffle_xor(sum, comptime!((vectors << j) as u32));
        }
        if lane < vectors {
            let h = comptime!(i / width);
            let k = comptime!(i % width);
            memory.planes
                [plane * comptime!(heads * head_dim) + h * head_dim + vector * width + k] = sum;
        }
    }
    sync_cube();
    let mut i = UNIT_POS as usize;
    while i < comptime!(heads * head_dim) {
        let mut sum = memory.sums[i] * memory.decay[i / head_dim];
        #[unroll]
        for p in 0..planes {
            sum += memory.planes[p * comptime!(heads * head_dim) + i];
        }
        memory.sums[i] = sum;
        i += CUBE_DIM as usize;
    }
}
