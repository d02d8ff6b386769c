//! The plan of a step as words on the device, and how a cube reads its own part.
//!
//! ```text
//! steps   items x [row + exact << 31, first, count, part]    chunks of history, or exact tokens
//!         rows  x [slot, sinks, recent, parts, first_part, next, table, 0]
//! table   page + tokens << 22, for each row from its `table` on
//! ```
//!
//! The host writes it once per step, to the same addresses: a captured step is replayed while
//! lengths grow. An item without tokens ends at once.

use cubecl::prelude::*;

use crate::backend::plan::{ITEM_WORDS, PAGE_BITS, ROW_WORDS};

/// One cube's work.
#[derive(CubeType, Clone, Copy)]
pub struct Item {
    pub row: usize,
    /// Exact tokens, not chunks of history.
    pub exact: bool,
    pub first: usize,
    pub count: usize,
    pub part: usize,
}

#[cube]
pub fn item(steps: &[u32], index: usize) -> Item {
    let at = index * comptime!(ITEM_WORDS);
    let head = steps[at];
    Item {
        row: (head & 0x7fff_ffffu32) as usize,
        exact: (head >> 31u32) == 1u32,
        first: steps[at + 1] as usize,
        count: steps[at + 2] as usize,
        part: steps[at + 3] as usize,
    }
}

/// One sequence.
#[derive(CubeType, Clone, Copy)]
pub struct Row {
    pub slot: usize,
    pub sinks: usize,
    pub recent: usize,
    /// Partial results, and the first of them.
    pub parts: usize,
    pub first_part: usize,
    /// Position in the slot that the step's own token goes to.
    pub next: usize,
    /// First entry of the page table.
    pub table: usize,
}

#[cube]
pub fn row(steps: &[u32], items: usize, index: usize) -> Row {
    let at = items * comptime!(ITEM_WORDS) + index * comptime!(ROW_WORDS);
    Row {
        slot: steps[at] as usize,
        sinks: steps[at + 1] as usize,
        recent: steps[at + 2] as usize,
        parts: steps[at + 3] as usize,
        first_part: steps[at + 4] as usize,
        next: steps[at + 5] as usize,
        table: steps[at + 6] as usize,
    }
}

/// A page's number, and how many of its first tokens are valid.
#[cube]
pub fn page(table: &[u32], index: usize) -> (usize, usize) {
    let entry = table[index];
    let page = entry & comptime!((1u32 << PAGE_BITS) - 1);
    (page as usize, (entry >> comptime!(PAGE_BITS)) as usize)
}
