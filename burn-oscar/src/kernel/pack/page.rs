//! The pack kernel: vectors in, pages out, in one launch for a side.
//!
//! A cube packs the chunks of one page and KV head (its z-th share of them). For each chunk of 64
//! tokens: the tokens are read (256 contiguous bytes at head_dim 128 and 16 bits) and coded, codes
//! and parameters meet in shared memory (9 KB and 1 to 2 KB at head_dim 128), and leave as whole
//! words in the page's order, next to each other. Each input element is read once, or twice where
//! means or groups of tokens need a first look, the second time from the cache: 2 bytes in and a
//! quarter of a byte out per value at 16 and 2 bits.
//!
//! Tokens are taken in row order, so that units next to each other code neighbours in the order of
//! the parameters.

use cubecl::prelude::*;
use half::f16;

use super::arithmetic::{Quad, sum_lanes, sum_quad, through_f16};
use super::channel::{code_channels, load, mean_of_page, norm_of, range_of_channels};
use super::recipe::Recipe;
use super::token::{affine_token, clip_token, midrise_token};
use super::words::write_words;

/// The pair of an affine group.
pub type Pair = Vector<f16, Const<2>>;

/// Packs page n of `x` (`[n, kv_heads, tokens, head_dim]`) into page `ids[n]`; with `slots`, the
/// tokens of slot `ids[count + n]` of an exact tier from `start` on.
///
/// Cubes: pages, KV heads, shares of the chunks of a page.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn pack_pages<F: Float, I: Int>(
    x: &Tensor<Vector<F, Const<4>>>,
    ids: &[I],
    words: &mut Tensor<u32>,
    pairs: ComptimeOption<&mut Tensor<Pair>>,
    norms: ComptimeOption<&Tensor<f16>>,
    means: ComptimeOption<&mut Tensor<f16>>,
    start: usize,
    #[comptime] slots: bool,
    #[comptime] recipe: Recipe,
    #[define(F, I)] _dtypes: [ElemType; 2],
) {
    let n = CUBE_POS_X as usize;
    let head = CUBE_POS_Y as usize;
    let count = CUBE_COUNT_X as usize;
    let page = usize::cast_from(ids[n]);
    let source = if comptime!(slots) {
        usize::cast_from(ids[count + n])
    } else {
        n
    };
    // Ids are data: what is outside the pool is not written.
    if page >= words.shape(0) || source >= x.shape(0) {
        terminate!();
    }

    let origin = (source * x.stride(0) + head * x.stride(1) + start * x.stride(2)) / 4;
    let share = comptime!(recipe.chunks()) / CUBE_COUNT_Z as usize;
    pack_page::<F>(
        x,
        origin,
        words,
        pairs,
        norms,
        means,
        page,
        head,
        CUBE_POS_Z as usize * share,
        share,
        recipe,
    );
}

/// Packs `count` chunks from `first` on of the page that begins at `origin` of `x`, in vectors,
/// into a KV head of a page of the pool.
#[allow(
    clippy::collapsible_if,
    reason = "one is decided when the kernel is compiled"
)]
#[cube]
pub fn pack_page<F: Float>(
    x: &Tensor<Vector<F, Const<4>>>,
    origin: usize,
    words: &mut Tensor<u32>,
    mut pairs: ComptimeOption<&mut Tensor<Pair>>,
    norms: ComptimeOption<&Tensor<f16>>,
    means: ComptimeOption<&mut Tensor<f16>>,
    page: usize,
    head: usize,
    first: usize,
    count: usize,
    #[comptime] recipe: Recipe,
) {
    let lanes = comptime!(recipe.lanes);
    let quads = comptime!(recipe.quads);
    let step = x.stride(2) / 4;

    let mut tile = Shared::<[u32]>::new_slice(comptime!(64 * recipe.stride()));
    let mut parameters = Shared::<[u32]>::new_slice(comptime!(recipe.parameters()));
    let mut low = Shared::<[Quad]>::new_slice(comptime!(recipe.partials()));
    let mut high = Shared::<[Quad]>::new_slice(comptime!(recipe.partials()));
    let mut mean =
        Shared::<[Quad]>::new_slice(comptime!(if recipe.page_mean { quads } else { 1usize }));
    let mut norm =
        Shared::<[f32]>::new_slice(comptime!(if recipe.token_norm { 64usize } else { 1usize }));

    if comptime!(recipe.page_mean) {
        mean_of_page::<F>(x, origin, step, &mut low, &mut mean, recipe.clone());
    }
    #[comptime]
    if let ComptimeOption::Some(means) = means {
        if first == 0 {
            let base = page * means.stride(0) + head * means.stride(1);
            let mut quad = UNIT_POS as usize;
            while quad < quads {
                let value = mean[quad];
                #[unroll]
                for i in 0..4usize {
                    means[base + quad * 4 + i] = f16::cast_from(value.extract(i));
                }
                quad += CUBE_DIM as usize;
            }
        }
    }

    for chunk in first..first + count {
        let base = origin + chunk * 64 * step;
        #[comptime]
        if let ComptimeOption::Some(norms) = &norms {
            let mut token = UNIT_POS as usize;
            while token < 64 {
                let at = page * norms.stride(0) + chunk * 64 + token;
                norm[token] = f32::cast_from(norms[at]);
                token += CUBE_DIM as usize;
            }
            sync_cube();
        }
        if comptime!(recipe.along_channel()) {
            let r = comptime!(recipe.clone());
            range_of_channels::<F>(x, base, step, &norm, &mean, &mut low, &mut high, r);
            sync_cube();
            let r = comptime!(recipe.clone());
            code_channels::<F>(
                x,
                base,
                step,
                &norm,
                &mean,
                &low,
                &high,
                &mut tile,
                &mut parameters,
                r,
            );
        } else {
            // As many rounds for all units, so that shuffles meet: lanes share tokens out evenly.
            let lane = UNIT_POS as usize % lanes;
            let groups = CUBE_DIM as usize / lanes;
            for round in 0..(63 + groups) / groups {
                let slot = round * groups + UNIT_POS as usize / lanes;
                if comptime!(lanes > 1) || slot < 64 {
                    let r = comptime!(recipe.clone());
                    pack_token::<F>(
                        x,
                        base,
                        step,
                        slot,
                        lane,
                        &norm,
                        &mean,
                        &mut tile,
                        &mut parameters,
                        r,
                    );
                }
            }
        }
        sync_cube();

        let row = page * words.stride(0) + head * words.stride(1);
        let at = row + chunk * comptime!(recipe.chunk_words);
        write_words(&tile, words, at, recipe.clone());
        if comptime!(recipe.midrise()) {
            // A segment's 64 bytes are 16 words.
            let mut i = UNIT_POS as usize;
            while i < comptime!(recipe.groups.len() * 16) {
                let four = parameters[i * 4]
                    | (parameters[i * 4 + 1] << 8u32)
                    | (parameters[i * 4 + 2] << 16u32)
                    | (parameters[i * 4 + 3] << 24u32);
                let segment = i / 16 * comptime!(recipe.page_tokens / 4);
                let at = row + comptime!(recipe.code_words) + segment + chunk * 16 + i % 16;
                words[at] = four;
                i += CUBE_DIM as usize;
            }
        }
        #[comptime]
        if let ComptimeOption::Some(pairs) = &mut pairs {
            let numbers = comptime!(recipe.parameters());
            let base = (page * pairs.stride(0) + head * pairs.stride(1)) / 2 + chunk * numbers;
            let mut i = UNIT_POS as usize;
            while i < numbers {
                pairs[base + i] = Pair::reinterpret(parameters[i]);
                i += CUBE_DIM as usize;
            }
        }
        sync_cube();
    }
}

/// Reads and codes the token of a slot.
#[cube]
fn pack_token<F: Float>(
    x: &Tensor<Vector<F, Const<4>>>,
    base: usize,
    step: usize,
    slot: usize,
    lane: usize,
    norms: &Shared<[f32]>,
    mean: &Shared<[Quad]>,
    tile: &mut Shared<[u32]>,
    parameters: &mut Shared<[u32]>,
    #[comptime] recipe: Recipe,
) {
    let lanes = comptime!(recipe.lanes);
    let quads = comptime!(recipe.quads);
    let token = slot % 8 * 8 + slot / 8;
    let divisor = norm_of(norms, token, recipe.clone());
    let mut y = Array::<Quad>::new(comptime!(recipe.share()));
    #[unroll(comptime!(lanes > 1))]
    for j in 0..comptime!(recipe.share()) {
        let quad = j * lanes + lane;
        y[j] = Quad::new(0.0f32);
        if comptime!(quads % lanes == 0) || quad < quads {
            y[j] = load::<F>(
                x,
                base + token * step + quad,
                mean,
                quad,
                divisor,
                recipe.clone(),
            );
        }
    }
    if comptime!(recipe.clip.is_some()) {
        clip_token(&mut y, lane, recipe.clone());
    }
    let r = comptime!(recipe.clone());
    if comptime!(recipe.midrise()) {
        midrise_token(&y, lane, token, slot, tile, parameters, r);
    } else {
        affine_token(&y, lane, token, slot, tile, parameters, r);
    }
}

/// Norms of tokens over all KV heads into the pool's `norms`; the arguments are those of
/// [`pack_pages`]. Cubes: pages, chunks.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn token_norms<F: Float, I: Int>(
    x: &Tensor<Vector<F, Const<4>>>,
    ids: &[I],
    norms: &mut Tensor<f16>,
    start: usize,
    #[comptime] slots: bool,
    #[comptime] recipe: Recipe,
    #[define(F, I)] _dtypes: [ElemType; 2],
) {
    let n = CUBE_POS_X as usize;
    let count = CUBE_COUNT_X as usize;
    let page = usize::cast_from(ids[n]);
    let source = if comptime!(slots) {
        usize::cast_from(ids[count + n])
    } else {
        n
    };
    if page >= norms.shape(0) || source >= x.shape(0) {
        terminate!();
    }
    let lanes = comptime!(recipe.lanes);
    let lane = UNIT_POS as usize % lanes;
    let groups = CUBE_DIM as usize / lanes;
    for round in 0..(63 + groups) / groups {
        let inside = round * groups + UNIT_POS as usize / lanes;
        if comptime!(lanes > 1) || inside < 64 {
            let token = CUBE_POS_Y as usize * 64 + inside;
            let row = source * x.stride(0) + (start + token) * x.stride(2);
            let mut sum = Quad::new(0.0f32);
            for head in 0..x.shape(1) {
                let base = (row + head * x.stride(1)) / 4;
                let mut quad = lane;
                while quad < comptime!(recipe.quads) {
                    let y = Quad::cast_from(x[base + quad]);
                    sum += y * y;
                    quad += lanes;
                }
            }
            let norm = through_f16(sum_lanes(sum_quad(sum), lanes).sqrt());
            // By all lanes, since a branch could keep one from the next shuffle.
            let norm = select(norm > 0.0f32, norm, 1.0f32);
            let at = page * norms.stride(0) + token;
            norms[at] = f16::cast_from(norm);
        }
    }
}
