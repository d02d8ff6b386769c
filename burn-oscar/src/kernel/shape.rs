//! What a decode kernel is specialised by, and which heads and exact tokens a cube works on.

use cubecl::prelude::*;

use super::spec::Store;
use super::steps::{Item, Row, item, item_row, near};
use super::tile::ExactPlace;
use crate::backend::plan::partial_words;

/// What a decode kernel is specialised by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub key: Store,
    pub value: Store,
    pub head_dim: usize,
    pub page_tokens: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// Query heads per cube.
    pub heads: usize,
    /// Sink positions of a slot.
    pub sink: usize,
    /// Positions of a slot.
    pub slot_tokens: usize,
    /// Planes of 32 units in a cube; 0 where the device has no plane operations.
    pub planes: usize,
    /// Activations of f32: the tensor-core kernel rounds queries and weights to 24 bits instead of
    /// 16.
    pub fine: bool,
    /// The tensor-core kernel multiplies exact tokens on the tensor cores as well.
    pub products: bool,
    /// Work items that a cube of the tensor-core kernel takes, each by a share of its planes.
    pub slots: usize,
    /// The cube of a row's last part merges; it takes planes.
    pub merge: bool,
}

impl Shape {
    /// Cubes that share a KV head.
    pub fn tiles(&self) -> usize {
        self.group.div_ceil(self.heads)
    }

    /// Numbers of a cube's partial result.
    pub fn partial_words(&self) -> usize {
        self.heads * partial_words(self.head_dim)
    }
}

/// The query heads of this cube.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub struct Heads {
    pub kv_head: usize,
    /// How many there are, at most `shape.heads`.
    pub held: usize,
    /// First element of the query and the output.
    pub first: usize,
    /// First partial of this group of heads.
    pub first_partial: usize,
}

/// The cube's first grid position counts groups of heads, so that cubes of an item begin together,
/// and items without tokens, the last, keep no other waiting.
#[cube]
pub fn heads(row: usize, parts: usize, #[comptime] shape: Shape) -> Heads {
    let tiles = comptime!(shape.tiles());
    let kv_head = CUBE_POS_X as usize / tiles;
    let tile = CUBE_POS_X as usize % tiles;
    let before = tile * comptime!(shape.heads);
    let held = select(
        before + comptime!(shape.heads) <= comptime!(shape.group),
        comptime!(shape.heads).runtime(),
        comptime!(shape.group) - before,
    );
    let head = kv_head * comptime!(shape.group) + before;
    Heads {
        kv_head,
        held,
        first: (row * comptime!(shape.kv_heads * shape.group) + head) * comptime!(shape.head_dim),
        first_partial: CUBE_POS_X as usize * parts,
    }
}

/// The exact tokens of a row and KV head.
#[cube]
pub fn exact_place(
    index: usize,
    row: &Row,
    kv_head: usize,
    #[comptime] shape: Shape,
) -> ExactPlace {
    let head_dim = comptime!(shape.head_dim);
    let kv_heads = comptime!(shape.kv_heads);
    ExactPlace {
        tier: (row.slot * kv_heads + kv_head) * comptime!(shape.slot_tokens) * head_dim,
        own: (index * kv_heads + kv_head) * head_dim,
        sinks: row.sinks,
        held: row.sinks + row.recent,
    }
}

/// An item's words, and the heads of it that are the cube's.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub struct Task {
    /// The lane's share of the item's first pages.
    pub near: u32,
    pub item: Item,
    pub row: Row,
    pub heads: Heads,
}

/// Work item `number` of a plan of `rows` rows.
#[cube]
pub fn task(
    steps: &[u32],
    number: usize,
    rows: u32,
    parts: u32,
    lane: usize,
    #[comptime] shape: Shape,
) -> Task {
    let near = near(steps, number, lane);
    let item = item(steps, number);
    let row = item_row(steps, number);
    // A single row's query is on its way together with the item.
    let mut own_row = 0usize.runtime();
    if rows > 1 {
        own_row = item.row;
    }
    let heads = heads(own_row, parts as usize, shape);
    Task {
        near,
        item,
        row,
        heads,
    }
}
