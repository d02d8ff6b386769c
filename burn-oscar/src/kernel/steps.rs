//! The plan of a step as words on the device, and how a cube reads its own part.
//!
//! ```text
//! steps   items x [row, first chunk, chunks, part, first exact token, exact tokens, row's place,
//!                  the table's entries of its first 32 pages]
//!         rows  x [row's place, next, 0]
//!         a row's place: [slot, sinks, recent, parts, first part, table]
//! table   page + tokens << 22, for each row from its `table` on
//! ```
//!
//! The host writes it once per step, to the same addresses: a captured step is replayed while
//! lengths grow. An item without tokens ends at once. The entries beside an item spare its cube one
//! of the trips to cold memory, each of which waits for the one before: pages are on their way
//! together with the query.

use cubecl::prelude::*;

use crate::backend::plan::{ITEM_WORDS, NEAR_AT, NEAR_PAGES, PAGE_BITS, ROW_WORDS};

/// One cube's work.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub struct Item {
    pub row: usize,
    /// Chunks of history.
    pub first: usize,
    pub count: usize,
    pub part: usize,
    /// Exact tokens.
    pub exact_first: usize,
    pub exact_count: usize,
}

#[cube]
pub fn item(steps: &[u32], index: usize) -> Item {
    let at = index * comptime!(ITEM_WORDS);
    Item {
        row: steps[at] as usize,
        first: steps[at + 1] as usize,
        count: steps[at + 2] as usize,
        part: steps[at + 3] as usize,
        exact_first: steps[at + 4] as usize,
        exact_count: steps[at + 5] as usize,
    }
}

/// One sequence.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub struct Row {
    pub slot: usize,
    pub sinks: usize,
    pub recent: usize,
    /// Partial results, and the first of them.
    pub parts: usize,
    pub first_part: usize,
    /// First entry of the page table.
    pub table: usize,
}

/// The row's place that begins at a word.
#[cube]
fn row_at(steps: &[u32], at: usize) -> Row {
    Row {
        slot: steps[at] as usize,
        sinks: steps[at + 1] as usize,
        recent: steps[at + 2] as usize,
        parts: steps[at + 3] as usize,
        first_part: steps[at + 4] as usize,
        table: steps[at + 5] as usize,
    }
}

/// The row of an item: its words stand beside the item's, to be loaded at the same time.
#[cube]
pub fn item_row(steps: &[u32], index: usize) -> Row {
    row_at(steps, index * comptime!(ITEM_WORDS) + 6)
}

#[cube]
pub fn row(steps: &[u32], items: usize, index: usize) -> Row {
    row_at(
        steps,
        items * comptime!(ITEM_WORDS) + index * comptime!(ROW_WORDS),
    )
}

/// Position in the slot that the step's own token of a row goes to.
#[cube]
pub fn next(steps: &[u32], items: usize, index: usize) -> usize {
    steps[items * comptime!(ITEM_WORDS) + index * comptime!(ROW_WORDS) + 6] as usize
}

/// A page's number, and how many of its first tokens are valid.
#[cube]
pub fn page(table: &[u32], index: usize) -> (usize, usize) {
    decoded(table[index])
}

#[cube]
fn decoded(entry: u32) -> (usize, usize) {
    let page = entry & comptime!((1u32 << PAGE_BITS) - 1);
    (page as usize, (entry >> comptime!(PAGE_BITS)) as usize)
}

/// The lane's share of an item's first pages.
#[cube]
pub fn near(steps: &[u32], index: usize, lane: usize) -> u32 {
    steps[index * comptime!(ITEM_WORDS) + comptime!(NEAR_AT) + lane]
}

/// The row's page number `index` for a whole plane: from the entries that stand beside an item,
/// `near`, the first of them that of page `first`, or else from the table.
#[cube]
pub fn near_page(
    near: u32,
    first: usize,
    table: &[u32],
    row: &Row,
    index: usize,
) -> (usize, usize) {
    let place = index - first;
    let entry = if place < comptime!(NEAR_PAGES) {
        plane_shuffle(near, place as u32)
    } else {
        table[row.table + index]
    };
    decoded(entry)
}
