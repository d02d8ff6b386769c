//! Plans of steps: made once for all layers, kept on the device.

use std::sync::Arc;

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{DType, Int, Tensor, TensorData};

use super::KvCache;
use crate::backend::plan::exchange_words;
use crate::backend::{AttentionPlan, Limits, PlanRow, PlanWords, plan_words};

impl KvCache {
    fn limits(&self) -> Limits {
        let method = &self.config.method;
        Limits {
            page_tokens: self.page_tokens,
            slot_tokens: method.sink() + method.recent() + self.page_tokens,
            splits: self.splits,
        }
    }

    pub(super) fn plan_rows(&self, layer: usize, rows: &[usize]) -> Vec<PlanRow> {
        rows.iter()
            .map(|&row| {
                let sequence = &self.sequences[row];
                let table = &sequence.layers[layer];
                let pages = sequence.pages.iter().copied();
                let next = match self.sink_room(table) {
                    0 => self.config.method.sink() + table.recent,
                    _ => table.sinks,
                };
                PlanRow {
                    slot: sequence.slot,
                    sinks: table.sinks,
                    pages: pages.zip(table.pages.iter().copied()).collect(),
                    recent: table.recent,
                    next,
                }
            })
            .collect()
    }

    /// The plan for some rows of a layer. All layers of a step share one, made at the first.
    pub(super) fn plan(
        &mut self,
        layer: usize,
        rows: &[usize],
        scale: f64,
    ) -> AttentionPlan<Dispatch> {
        let rows = self.plan_rows(layer, rows);
        let mut plan = self.plan_of_rows(rows, scale);
        plan.window = self.config.sliding_window(layer);
        plan
    }

    /// The plan for rows as given, which need not be all that the sequences hold, without a window.
    pub(super) fn plan_of_rows(
        &mut self,
        rows: Vec<PlanRow>,
        scale: f64,
    ) -> AttentionPlan<Dispatch> {
        if let Some(held) = &self.step_plan
            && *held.rows == rows
        {
            let mut plan = held.clone();
            plan.scale = scale;
            return plan;
        }
        let words = plan_words(&rows, &self.limits());
        let held = self.step_plan.take();
        // Page tables change once in a page; what is there is used again.
        let table = match &held {
            Some(held) if same_pages(&held.rows, &rows) => held.table.clone(),
            _ => self.words(padded(&words.table, 1)).into_dispatch(),
        };
        let exchange = held.map_or_else(|| self.exchange(), |held| held.exchange);
        let plan = self.plan_of(words, rows, scale, table, exchange);
        self.step_plan = Some(plan.clone());
        plan
    }

    /// A plan for a captured step: later plans are written to the same addresses.
    pub(super) fn fixed_plan(&self, rows: &[usize], scale: f64) -> AttentionPlan<Dispatch> {
        let rows = self.plan_rows(0, rows);
        let words = plan_words(&rows, &self.limits());
        // Pages that rows share are in the table more than once, but no page is shared anew while
        // the sequences stay the same: they can add as many as the pool has, and no more.
        let capacity = words.table.len() + self.pool.pages();
        let table = self.words(padded(&words.table, capacity)).into_dispatch();
        self.plan_of(words, rows, scale, table, self.exchange())
    }

    fn plan_of(
        &self,
        words: PlanWords,
        rows: Vec<PlanRow>,
        scale: f64,
        table: DispatchTensor,
        exchange: DispatchTensor,
    ) -> AttentionPlan<Dispatch> {
        AttentionPlan {
            items: words.items,
            parts: self.limits().parts(),
            steps: self.words(words.steps).into_dispatch(),
            table,
            exchange,
            rows: Arc::new(rows),
            scale,
            window: None,
        }
    }

    /// Writes the plan of the same sequences' present lengths over `plan`. False where it does not
    /// fit, which [`fixed_plan`](Self::fixed_plan)'s capacity rules out.
    pub(super) fn renew_plan(&self, plan: &mut AttentionPlan<Dispatch>, rows: &[usize]) -> bool {
        let rows = self.plan_rows(0, rows);
        let words = plan_words(&rows, &self.limits());
        let table = Tensor::<1, Int>::from_dispatch(plan.table.clone());
        if words.items != plan.items || words.table.len() > table.dims()[0] {
            return false;
        }
        drop(table);
        overwrite(&mut plan.steps, self.words(words.steps));
        if !same_pages(&plan.rows, &rows) && !words.table.is_empty() {
            overwrite(&mut plan.table, self.words(words.table));
        }
        plan.rows = Arc::new(rows);
        true
    }

    fn words(&self, words: Vec<u32>) -> Tensor<1, Int> {
        let length = words.len();
        Tensor::from_data(TensorData::new(words, [length]), (&self.device, DType::U32))
    }

    fn exchange(&self) -> DispatchTensor {
        let config = &self.config;
        let words = exchange_words(self.limits().parts(), config.n_kv_heads, config.head_dim);
        Tensor::<1, Int>::zeros([words], (&self.device, DType::U32)).into_dispatch()
    }
}

/// Whether two plans have the same page table.
fn same_pages(a: &[PlanRow], b: &[PlanRow]) -> bool {
    a.iter()
        .map(|row| &row.pages)
        .eq(b.iter().map(|row| &row.pages))
}

fn padded(words: &[u32], length: usize) -> Vec<u32> {
    let mut words = words.to_vec();
    words.resize(words.len().max(length), 0);
    words
}

/// Writes words to the start of a tensor, in place: nobody else may hold it.
fn overwrite(held: &mut DispatchTensor, words: Tensor<1, Int>) {
    let length = words.dims()[0];
    let mut tensor = Tensor::<1, Int>::from_dispatch(held.clone());
    // The clone above would make the write a copy.
    *held = words.clone().into_dispatch();
    tensor.inplace(|tensor| tensor.slice_assign(0..length, words));
    *held = tensor.into_dispatch();
}
