//! Attention over what is stored, with nothing appended: the memory of an encoder, which every
//! step of a decoder reads.
//!
//! The operation of a step attends to stored tokens and to the step's own. Here the newest stored
//! token takes the place of the step's own, and the queries of a call stand side by side as if
//! they were more heads: each sees everything, and one page is read once for all of them.

use burn::tensor::Tensor;

use super::{AttentionOptions, KvCache};
use crate::backend::{self, PlanRow, read_pages};
use crate::error::{Error, Result};
use crate::quantizer::Role;

/// Scores held at once, in elements: more queries are cut into blocks.
const SCORES_AT_ONCE: usize = 1 << 24;

/// Where a token is stored.
enum Place {
    /// At this position of the row's slot.
    Tier(usize),
    /// In this page, at this position.
    Page(u32, usize),
}

impl KvCache {
    /// Attention of `query` over everything the sequences hold in `layer`. Nothing is appended,
    /// and every query sees every token: cross-attention to what [`extend`](Self::extend) stored.
    ///
    /// - `query`: `[batch, heads, tokens, head_dim]`; query head h reads KV head
    ///   `h / (heads / kv_heads)`
    /// - result: `[batch, heads, tokens, head_dim]`, in the query's dtype
    ///
    /// The options' scale and rows count; `streaming` is without effect, since nothing is packed.
    /// On a device with autodiff, gradients reach the query. One of the kernels serves up to 16
    /// queries per KV head (heads times tokens); more are served by the portable body.
    ///
    /// # Errors
    /// [`Error::Layer`], [`Error::Shape`], [`Error::Dtype`], [`Error::Device`],
    /// [`Error::HeadRatio`], [`Error::UnknownSequence`], [`Error::RepeatedSequence`];
    /// [`Error::NoTokens`] for a sequence that is empty in this layer; [`Error::Option`] for
    /// padding, on an observing cache, and in a layer with a sliding window.
    pub fn attend_only(
        &mut self,
        layer: usize,
        query: Tensor<4>,
        options: AttentionOptions,
    ) -> Result<Tensor<4>> {
        self.layer(layer)?;
        #[cfg(feature = "calibrate")]
        self.check_not_observing("attend_only")?;
        options.check_no_padding("attend_only")?;
        if let Some(window) = self.config.sliding_window(layer) {
            return Err(Error::Option {
                option: "attend_only with a sliding window of",
                value: window.to_string(),
                reason: "every query sees every token here: leave the layer out of \
                         with_sliding_window",
            });
        }
        let rows = self.rows(&options)?;
        self.check_query_shape(&rows, &query)?;
        self.check_query_kind(&query)?;
        let scale = self.scale(&options)?;
        let (plan_rows, [key, value]) = self.newest_apart(layer, &rows)?;
        let plan = self.plan_of_rows(plan_rows, scale);

        let kv_heads = self.config.n_kv_heads;
        let transform = self.transforms[layer].clone();
        let query = transform.query(query, kv_heads);
        let [batch, heads, tokens, head_dim] = query.dims();
        let held = rows
            .iter()
            .map(|&row| self.sequences[row].layers[layer].len());
        let longest = held.max().unwrap_or(1);
        let block = (SCORES_AT_ONCE / (heads * longest)).clamp(1, tokens);
        let stored = self.layer(layer)?;
        let outputs = (0..tokens).step_by(block).map(|start| {
            let count = block.min(tokens - start);
            let query = query.clone().narrow(2, start, count);
            backend::attend(
                query.reshape([batch, heads * count, 1, head_dim]),
                key.clone(),
                value.clone(),
                stored.clone(),
                plan.clone(),
            )
            .reshape([batch, heads, count, head_dim])
        });
        let outputs = Tensor::cat(outputs.collect(), 2);
        Ok(transform.output(outputs, kv_heads))
    }

    /// What the rows hold without their newest token, and that token's key and value
    /// `[rows, kv_heads, 1, head_dim]`, as stored.
    fn newest_apart(&self, layer: usize, rows: &[usize]) -> Result<(Vec<PlanRow>, [Tensor<4>; 2])> {
        let stored = self.layer(layer)?;
        let tiers = [&stored.key_tier, &stored.value_tier]
            .map(|tier| Tensor::<4>::from_dispatch(tier.clone()));
        let mut plan_rows = self.plan_rows(layer, rows);
        let mut newest: [Vec<Tensor<4>>; 2] = Default::default();
        for (plan, &row) in plan_rows.iter_mut().zip(rows) {
            let place = take_newest(plan, stored.sink).ok_or(Error::NoTokens {
                layer,
                id: self.sequences[row].id.0,
            })?;
            for (side, role) in [Role::Key, Role::Value].into_iter().enumerate() {
                newest[side].push(match place {
                    Place::Tier(at) => tiers[side].clone().narrow(0, plan.slot, 1).narrow(2, at, 1),
                    Place::Page(page, at) => {
                        let ids = self.page_ids(std::iter::once(page));
                        let page = read_pages(stored.clone(), ids, role);
                        page.narrow(2, at, 1).cast(self.config.dtype)
                    }
                });
            }
        }
        Ok((plan_rows, newest.map(|rows| Tensor::cat(rows, 0))))
    }
}

/// Takes the newest token out of a row; `None` if there is none.
fn take_newest(row: &mut PlanRow, sink: usize) -> Option<Place> {
    if row.recent > 0 {
        row.recent -= 1;
        return Some(Place::Tier(sink + row.recent));
    }
    if let Some((page, tokens)) = row.pages.last_mut() {
        *tokens -= 1;
        let place = Place::Page(*page, *tokens);
        if *tokens == 0 {
            row.pages.pop();
        }
        return Some(place);
    }
    row.sinks = row.sinks.checked_sub(1)?;
    Some(Place::Tier(row.sinks))
}
