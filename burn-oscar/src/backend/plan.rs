//! The plan of an attention call: what each row attends to, and how the work is cut.

use std::sync::Arc;

use burn::backend::tensor::IntTensor;
use burn::backend::{Backend, ExtensionType};

use crate::quantizer::layout::CHUNK_TOKENS;

/// Words of a work item on the device.
pub const ITEM_WORDS: usize = 4;
/// Words of a row on the device.
pub const ROW_WORDS: usize = 8;
/// Bits of a page number in an entry of the page table; its valid tokens take the rest.
pub const PAGE_BITS: u32 = 22;
/// The most partial results of a row.
pub const MAX_PARTS: usize = 128;
/// The most of them that the exact tokens take.
const MAX_EXACT_PARTS: usize = 32;
/// Marks an item of exact tokens.
const EXACT: u32 = 1 << 31;

/// What one batch row attends to, besides the tokens of the call itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanRow {
    /// The sequence's slot in the exact tiers.
    pub slot: usize,
    /// Sink tokens held.
    pub sinks: usize,
    /// Pages, oldest first, and how many of each page's first tokens are valid.
    pub pages: Vec<(u32, usize)>,
    /// Recent tokens held.
    pub recent: usize,
    /// Position in the slot of the next token.
    pub next: usize,
}

/// The plan of one attention call, on the host and on the device.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct AttentionPlan<B: Backend> {
    /// One row per batch row of the query.
    pub rows: Arc<Vec<PlanRow>>,
    /// Multiplies the scores.
    pub scale: f64,
    /// Work items; those without tokens end at once.
    pub items: usize,
    /// Partial results of all rows.
    pub parts: usize,
    /// u32: work items, then rows.
    pub steps: IntTensor<B>,
    /// u32: page numbers and valid tokens of all rows.
    pub table: IntTensor<B>,
    /// u32 `[rows * kv_heads * query heads]`, zero between calls: partial results that have
    /// arrived.
    pub counters: IntTensor<B>,
}

/// What a plan depends on besides the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Positions of a slot.
    pub slot_tokens: usize,
    /// Work items that all rows' history is cut into, about.
    pub splits: usize,
}

impl Limits {
    /// Tokens of an item of exact tokens.
    fn exact_tokens(&self) -> usize {
        (self.slot_tokens + 1)
            .div_ceil(MAX_EXACT_PARTS)
            .next_multiple_of(CHUNK_TOKENS)
    }

    /// Work items that `rows` rows have room for, whatever their lengths.
    pub fn items(&self, rows: usize) -> usize {
        let exact = (self.slot_tokens + 1).div_ceil(self.exact_tokens());
        // Every row has its own item at least, and rounding may give it one more.
        rows * (exact + 1) + self.splits
    }
}

/// A plan as words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanWords {
    /// Items, then rows.
    pub steps: Vec<u32>,
    /// Pages of all rows.
    pub table: Vec<u32>,
    /// Items that there is room for.
    pub items: usize,
}

fn chunks(row: &PlanRow, limits: &Limits) -> usize {
    let per_page = limits.page_tokens / CHUNK_TOKENS;
    match row.pages.split_last() {
        // What is cut off the last page by a truncation is not visited.
        Some((last, others)) => others.len() * per_page + last.1.div_ceil(CHUNK_TOKENS),
        None => 0,
    }
}

/// Cuts the rows' tokens into work items. The rows share the splits by their history's length; an
/// item is a run of chunks or some exact tokens, the exact ones first.
pub fn plan_words(rows: &[PlanRow], limits: &Limits) -> PlanWords {
    let items = limits.items(rows.len());
    let total: usize = rows.iter().map(|row| chunks(row, limits)).sum();
    let exact_tokens = limits.exact_tokens();
    let mut exact = Vec::new();
    let mut history = Vec::new();
    let mut row_words = Vec::new();
    let mut table = Vec::new();
    let mut part = 0;
    for (index, row) in rows.iter().enumerate() {
        let first_part = part;
        let tokens = row.sinks + row.recent + 1;
        for start in (0..tokens).step_by(exact_tokens) {
            let count = exact_tokens.min(tokens - start);
            exact.extend([index as u32 | EXACT, start as u32, count as u32, part]);
            part += 1;
        }
        let held = chunks(row, limits);
        let exact_parts = (part - first_part) as usize;
        // Four planes work on an item: fewer than four chunks leave some idle.
        let splits = (limits.splits * held)
            .checked_div(total)
            .unwrap_or(0)
            .clamp(usize::from(held > 0), held.div_ceil(4).max(1))
            .min(MAX_PARTS - exact_parts);
        for split in 0..if held > 0 { splits } else { 0 } {
            let start = held * split / splits;
            let count = held * (split + 1) / splits - start;
            history.extend([index as u32, start as u32, count as u32, part]);
            part += 1;
        }
        row_words.extend([
            row.slot as u32,
            row.sinks as u32,
            row.recent as u32,
            part - first_part,
            first_part,
            row.next as u32,
            table.len() as u32,
            0,
        ]);
        let entry = |&(page, tokens): &(u32, usize)| page | (tokens as u32) << PAGE_BITS;
        table.extend(row.pages.iter().map(entry));
    }
    let mut steps = exact;
    steps.extend(history);
    debug_assert!(steps.len() <= items * ITEM_WORDS);
    steps.resize(items * ITEM_WORDS, 0);
    steps.extend(row_words);
    PlanWords {
        steps,
        table,
        items,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row() -> impl Strategy<Value = PlanRow> {
        let pages = prop::collection::vec((0u32..1 << PAGE_BITS, 1usize..=256), 0..200);
        (0usize..100, 0usize..=64, pages, 0usize..500).prop_map(|(slot, sinks, pages, recent)| {
            PlanRow {
                slot,
                sinks,
                pages,
                recent,
                next: sinks + recent,
            }
        })
    }

    proptest! {
        /// Every chunk and every exact token is in one item, every part has one item, and no row
        /// has more parts than a merge holds.
        #[test]
        fn items_cover_everything_once(
            rows in prop::collection::vec(row(), 1..9),
            splits in 1usize..400,
        ) {
            let limits = Limits { page_tokens: 256, slot_tokens: 64 + 512, splits };
            let words = plan_words(&rows, &limits);
            prop_assert_eq!(words.steps.len(), words.items * ITEM_WORDS + rows.len() * ROW_WORDS);
            let mut parts = Vec::new();
            for (index, row) in rows.iter().enumerate() {
                let mut seen = [vec![0; chunks(row, &limits)], vec![0; row.sinks + row.recent + 1]];
                let items = words.steps[..words.items * ITEM_WORDS].chunks(ITEM_WORDS);
                let own = items.filter(|item| item[2] > 0 && item[0] & !EXACT == index as u32);
                let mut own_parts = Vec::new();
                for item in own {
                    let range = item[1] as usize..(item[1] + item[2]) as usize;
                    let kind = usize::from(item[0] & EXACT != 0);
                    seen[kind][range].iter_mut().for_each(|n| *n += 1);
                    own_parts.push(item[3]);
                }
                prop_assert!(seen.iter().flatten().all(|&n| n == 1));
                let row_words = &words.steps[words.items * ITEM_WORDS + index * ROW_WORDS..];
                own_parts.sort();
                let expected: Vec<u32> = (row_words[4]..row_words[4] + row_words[3]).collect();
                prop_assert_eq!(&own_parts, &expected);
                prop_assert!(own_parts.len() <= MAX_PARTS);
                parts.extend(own_parts);
            }
            prop_assert!(parts.len() <= words.items);
        }
    }
}
