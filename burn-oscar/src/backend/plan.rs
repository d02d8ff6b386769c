//! The plan of an attention call: what each row attends to, and how the work is cut.

use std::sync::Arc;

use burn::backend::tensor::IntTensor;
use burn::backend::{Backend, ExtensionType};

use crate::quantizer::layout::CHUNK_TOKENS;

/// Words of a work item on the device: its own, its row's place, and from [`NEAR_AT`] on its first
/// pages.
pub const ITEM_WORDS: usize = NEAR_AT + NEAR_PAGES;
/// Where a work item's entries of the page table begin.
pub const NEAR_AT: usize = 12;
/// Entries of the page table that stand in a work item: one for each unit of a plane.
pub const NEAR_PAGES: usize = 32;
/// Words of a row on the device.
pub const ROW_WORDS: usize = 8;
/// Bits of a page number in an entry of the page table; its valid tokens take the rest.
pub const PAGE_BITS: u32 = 22;
/// The most query heads that share a KV head in a kernel: a plan counts for so many.
pub const MAX_HEAD_RATIO: usize = 16;
/// The most partial results of a row.
pub const MAX_PARTS: usize = 128;
/// Exact tokens that one plane takes.
pub const EXACT_TOKENS: usize = 16;
/// Channels of a head's partial result that are handed on together.
pub const SLICE_CHANNELS: usize = 64;
/// Numbers of such a slice: sums, maximum score, total of the weights.
pub const SLICE_WORDS: usize = SLICE_CHANNELS + 2;

/// Numbers that a query head's partial result has room for.
pub fn partial_words(head_dim: usize) -> usize {
    head_dim.div_ceil(SLICE_CHANNELS) * SLICE_WORDS
}

/// Partial results that a cube looks at together, whether there are that many or not.
pub const PARTS_AT_ONCE: usize = 16;

/// Words that cubes hand `parts` partial results of each KV head to each other in.
pub fn exchange_words(parts: usize, kv_heads: usize, head_dim: usize) -> usize {
    (parts * kv_heads + PARTS_AT_ONCE) * MAX_HEAD_RATIO * partial_words(head_dim)
}

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

impl PlanRow {
    /// The row from the token at position `first` on, in whole tiers and pages: the sinks and the
    /// oldest pages are left out where they end before it.
    pub(crate) fn since(&self, first: usize) -> Self {
        let mut row = self.clone();
        let mut end = self.sinks;
        if end <= first {
            row.sinks = 0;
            let old = self.pages.iter().take_while(|(_, tokens)| {
                end += tokens;
                end <= first
            });
            row.pages.drain(..old.count());
        }
        row
    }

    /// Tokens held.
    pub(crate) fn len(&self) -> usize {
        self.sinks + self.pages.iter().map(|(_, tokens)| tokens).sum::<usize>() + self.recent
    }
}

/// The plan of one attention call, on the host and on the device.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct AttentionPlan<B: Backend> {
    /// One row per batch row of the query.
    pub rows: Arc<Vec<PlanRow>>,
    /// Multiplies the scores.
    pub scale: f64,
    /// The newest tokens that a query token sees, itself included; `None` for all.
    pub window: Option<usize>,
    /// Work items; those without tokens end at once.
    pub items: usize,
    /// Partial results that there is room for.
    pub parts: usize,
    /// u32: work items, then rows.
    pub steps: IntTensor<B>,
    /// u32: page numbers and valid tokens of all rows.
    pub table: IntTensor<B>,
    /// u32, room for `parts` partial results of sixteen query heads for each KV head, and for some
    /// more that are looked at but not used: what the cubes of a kernel hand to each other. Zero
    /// between calls.
    pub exchange: IntTensor<B>,
}

/// What a plan depends on besides the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Positions of a slot.
    pub slot_tokens: usize,
    /// Work items that all rows are cut into, about.
    pub splits: usize,
}

impl Limits {
    /// Work items that `rows` rows have room for, whatever their lengths: an even number, since a
    /// cube may take two.
    pub fn items(&self, rows: usize) -> usize {
        (rows + self.splits).next_multiple_of(2)
    }

    /// Partial results that rows cut into several items have at most.
    pub fn parts(&self) -> usize {
        self.splits
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

/// Cuts the rows' tokens into work items, each a run of chunks of history and some exact tokens of
/// one row. The rows share the items by their length, so that all items take about as long.
pub fn plan_words(rows: &[PlanRow], limits: &Limits) -> PlanWords {
    // An exact token moves seven times the bytes of a packed one: eight are a chunk's worth.
    let units = |row: &PlanRow| {
        let exact = row.sinks + row.recent + 1;
        chunks(row, limits) + 2 * exact.div_ceil(EXACT_TOKENS)
    };
    let total: usize = rows.iter().map(units).sum();
    let items = limits.items(rows.len());
    let mut words = PlanWords {
        steps: Vec::new(),
        table: Vec::new(),
        items,
    };
    let per_page = limits.page_tokens / CHUNK_TOKENS;
    let entry = |&(page, tokens): &(u32, usize)| page | (tokens as u32) << PAGE_BITS;
    let mut row_words = Vec::new();
    let mut first_part = 0;
    for (index, row) in rows.iter().enumerate() {
        let (exact, held) = (row.sinks + row.recent + 1, chunks(row, limits));
        // Short rows are cut no finer than makes up for the merge of one more part.
        let most = held.div_ceil(4).max(exact.div_ceil(2 * EXACT_TOKENS));
        let parts = (limits.splits * units(row) / total)
            .min(most)
            .clamp(1, MAX_PARTS);
        let share = exact.div_ceil(parts).next_multiple_of(EXACT_TOKENS);
        // No part is empty: a cube without work would not arrive at the merge.
        let parts = parts.min(held.max(exact.div_ceil(share)));
        let place = [
            row.slot as u32,
            row.sinks as u32,
            row.recent as u32,
            parts as u32,
            first_part,
            words.table.len() as u32,
        ];
        for part in 0..parts {
            let start = held * part / parts;
            let exact_start = (share * part).min(exact);
            words.steps.extend([
                index as u32,
                start as u32,
                (held * (part + 1) / parts - start) as u32,
                first_part + part as u32,
                exact_start as u32,
                share.min(exact - exact_start) as u32,
            ]);
            words.steps.extend(place);
            let near = row.pages.iter().skip(start / per_page).map(entry);
            let near = near.chain(std::iter::repeat(0));
            words.steps.extend(near.take(NEAR_PAGES));
        }
        row_words.extend(place);
        row_words.extend([row.next as u32, 0]);
        debug_assert_eq!(row_words.len(), (index + 1) * ROW_WORDS);
        // A row of one part has no partial result.
        if parts > 1 {
            first_part += parts as u32;
        }
        words.table.extend(row.pages.iter().map(entry));
    }
    debug_assert!(words.steps.len() <= items * ITEM_WORDS);
    words.steps.resize(items * ITEM_WORDS, 0);
    words.steps.extend(row_words);
    words
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

    #[test]
    fn a_row_loses_what_ends_before_a_position() {
        let row = PlanRow {
            sinks: 3,
            pages: vec![(7, 64), (2, 64), (5, 10)],
            recent: 20,
            ..PlanRow::default()
        };
        for (first, sinks, pages) in [
            (0, 3, 3),
            (2, 3, 3),
            (3, 0, 3),
            (66, 0, 3),
            (67, 0, 2),
            (131, 0, 1),
            (140, 0, 1),
            (141, 0, 0),
            (1000, 0, 0),
        ] {
            let rest = row.since(first);
            assert_eq!((rest.sinks, rest.pages.len()), (sinks, pages), "{first}");
            assert_eq!(rest.recent, 20);
            assert!(rest.len() >= row.len().saturating_sub(first), "{first}");
        }
    }

    proptest! {
        /// Every chunk and every exact token is in one item, every part has one item with the
        /// entries of its first pages, and no row has more parts than a merge holds.
        #[test]
        fn items_cover_everything_once(
            rows in prop::collection::vec(row(), 1..9),
            splits in 1usize..400,
        ) {
            let limits = Limits { page_tokens: 256, slot_tokens: 64 + 512, splits };
            let words = plan_words(&rows, &limits);
            prop_assert_eq!(words.steps.len(), words.items * ITEM_WORDS + rows.len() * ROW_WORDS);
            // A cube may take two.
            prop_assert!(words.items.is_multiple_of(2));
            let mut parts = Vec::new();
            for (index, row) in rows.iter().enumerate() {
                let mut seen = [vec![0; chunks(row, &limits)], vec![0; row.sinks + row.recent + 1]];
                let items = words.steps[..words.items * ITEM_WORDS].chunks(ITEM_WORDS);
                let held = |item: &&[u32]| item[2] + item[5] > 0 && item[0] == index as u32;
                let mut own_parts = Vec::new();
                for item in items.filter(held) {
                    let pages = item[11] as usize..item[11] as usize + row.pages.len();
                    let near = words.table[pages].iter().skip(item[1] as usize / 4).chain(&[0; 32]);
                    prop_assert!(item[NEAR_AT..].iter().eq(near.take(NEAR_PAGES)));
                    for (seen, at) in seen.iter_mut().zip([1, 4]) {
                        let range = item[at] as usize..(item[at] + item[at + 1]) as usize;
                        seen[range].iter_mut().for_each(|n| *n += 1);
                    }
                    own_parts.push(item[3]);
                }
                prop_assert!(seen.iter().flatten().all(|&n| n == 1));
                let row_words = &words.steps[words.items * ITEM_WORDS + index * ROW_WORDS..];
                own_parts.sort();
                let expected: Vec<u32> = (row_words[4]..row_words[4] + row_words[3]).collect();
                prop_assert_eq!(&own_parts, &expected);
                prop_assert!(own_parts.len() <= MAX_PARTS);
                if own_parts.len() > 1 {
                    parts.extend(own_parts);
                }
            }
            prop_assert!(parts.len() <= limits.parts());
            prop_assert!(parts.iter().all(|&part| (part as usize) < limits.parts()));
            let count = parts.len();
            parts.sort();
            parts.dedup();
            prop_assert_eq!(parts.len(), count);
        }
    }
}
