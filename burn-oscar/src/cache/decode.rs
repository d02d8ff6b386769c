//! Decoding by a plan that stays where it is on the device, so that a step can be captured once
//! and replayed while the sequences grow; and appending without attention.

use burn::tensor::Tensor;

use super::{AttentionOptions, KvCache, SequenceId};
use crate::backend::{self, AttentionPlan, Demotion};
use crate::error::{Error, Result};
use burn::backend::Dispatch;

/// The plan that [`KvCache::decode`] follows.
#[derive(Debug)]
pub(super) struct DecodePlan {
    rows: Vec<usize>,
    /// The rows' sequences: while they are the same, every later plan fits this one's tensors.
    ids: Vec<SequenceId>,
    plan: AttentionPlan<Dispatch>,
    /// Whether the sequences are as planned. An outdated plan is kept for its tensors, which
    /// captured graphs go on reading.
    current: bool,
}

impl KvCache {
    /// Appends `key` and `value` (`[batch, kv_heads, tokens, head_dim]`, after any position
    /// encoding) to `layer` without attending.
    ///
    /// # Errors
    /// Those of [`attend`](Self::attend); the cache is then as it was before.
    pub fn extend(
        &mut self,
        layer: usize,
        key: Tensor<4>,
        value: Tensor<4>,
        mut options: AttentionOptions,
    ) -> Result<()> {
        if let Some(padding) = options.padding.take() {
            return self.extend_padded(layer, [key, value], &padding, options);
        }
        self.layer(layer)?;
        #[cfg(feature = "calibrate")]
        self.check_not_observing("extend")?;
        let rows = self.rows(&options)?;
        self.check_stored(&rows, key.dims()[2], &key, &value)?;
        let transform = &self.transforms[layer];
        let (key, value) = (transform.key(key), transform.value(value));
        if self.config.check_inputs {
            self.check_numbers(layer, &key, &value)?;
        }
        self.check_room(layer, &rows, key.dims()[2])?;
        self.outdate_plan();
        self.append(layer, &rows, key, value)
    }

    /// Plans one further token for each row of `options`, for [`decode`](Self::decode). The plan
    /// lies on the device, and later plans for the same sequences in the same order, with the same
    /// scale, are written over it. So a step of `decode` calls can be captured
    /// ([`burn::tensor::capture`]) and replayed, with [`commit_decode`](Self::commit_decode) after
    /// each replay:
    ///
    /// ```text
    /// cache.plan_decode(options)?;
    /// let graph = capture(&device, || ... cache.decode(layer, query, key, value) ...);
    /// cache.commit_decode()?;                 // the capture itself decoded the first token
    /// loop { unsafe { graph.replay() }; cache.commit_decode()?; }
    /// ```
    ///
    /// Any other call that changes the sequences ends the plan, until this one is called again.
    /// After it, a graph captured before still serves the same sequences, order and scale; for
    /// others, capture again.
    ///
    /// # Errors
    /// Those of [`attend`](Self::attend); [`Error::UnevenLayers`] in the middle of a step;
    /// [`Error::Option`] where a layer has a sliding window. There is no plan then.
    pub fn plan_decode(&mut self, options: &AttentionOptions) -> Result<()> {
        self.outdate_plan();
        #[cfg(feature = "calibrate")]
        self.check_not_observing("plan_decode")?;
        if let Some(layer) = self.config.windowed_layers().next() {
            return Err(Error::Option {
                option: "plan_decode with a sliding window in layer",
                value: layer.to_string(),
                reason: "no kernel knows windows, and a captured step could not follow the \
                         portable body: call `attend` for each token",
            });
        }
        options.check_no_padding("plan_decode")?;
        let rows = self.rows(options)?;
        for &row in &rows {
            super::manage::check_even(&self.sequences[row])?;
        }
        self.check_room(0, &rows, 1)?;
        let scale = self.scale(options)?;
        let ids: Vec<_> = rows.iter().map(|&row| self.sequences[row].id).collect();
        let plan = match self.decode_plan.take() {
            Some(mut held) if held.ids == ids && held.plan.scale == scale => {
                match self.renew_plan(&mut held.plan, &rows) {
                    true => held.plan,
                    false => self.fixed_plan(&rows, scale),
                }
            }
            _ => self.fixed_plan(&rows, scale),
        };
        self.decode_plan = Some(DecodePlan {
            rows,
            ids,
            plan,
            current: true,
        });
        Ok(())
    }

    /// Attention of one token per row (`[rows, heads or kv_heads, 1, head_dim]`) by the plan of
    /// [`plan_decode`](Self::plan_decode), and that token written to the exact tiers. It changes
    /// nothing on the host: called again, it decodes the same position again. Inputs are not
    /// searched for NaN, since that would wait for the device.
    ///
    /// # Errors
    /// [`Error::Option`] without a plan, or where the sequences have changed since;
    /// [`Error::Layer`], [`Error::Shape`], [`Error::Dtype`], [`Error::Device`],
    /// [`Error::HeadRatio`].
    pub fn decode(
        &mut self,
        layer: usize,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
    ) -> Result<Tensor<4>> {
        self.layer(layer)?;
        let held = self.current_plan()?;
        if query.dims()[2] != 1 {
            return Err(Error::Shape {
                tensor: "query",
                found: query.dims().to_vec(),
                expected: "one token per row: use `attend` for more".into(),
            });
        }
        self.check_tensors(&held.rows, &query, &key, &value)?;
        let plan = held.plan.clone();
        let kv_heads = self.config.n_kv_heads;
        let transform = self.transforms[layer].clone();
        let query = transform.query(query, kv_heads);
        let (key, value) = (transform.key(key), transform.value(value));
        let stored = self.layer(layer)?.clone();
        let output = backend::attend(query, key.clone(), value.clone(), stored, plan.clone());
        let stored = self.take_layer(layer)?;
        self.layers[layer] = Some(backend::append(stored, key, value, plan));
        Ok(transform.output(output, kv_heads))
    }

    /// Counts the tokens that [`decode`](Self::decode) wrote in every layer, packs the pages that
    /// are due, and plans the next token at the same addresses.
    ///
    /// # Errors
    /// [`Error::Option`] without a plan, or where the sequences have changed since.
    /// [`Error::PoolExhausted`] where no page is left for the *next* token: the tokens so far are
    /// held, and the plan has ended.
    pub fn commit_decode(&mut self) -> Result<()> {
        let rows = self.current_plan()?.rows.clone();
        self.outdate_plan();
        // `plan_decode` and the last commit made sure of the pages.
        for layer in 0..self.layers.len() {
            self.count_token(layer, &rows)?;
        }
        self.check_room(0, &rows, 1)?;
        let Some(mut held) = self.decode_plan.take() else {
            return Err(no_plan());
        };
        held.current = self.renew_plan(&mut held.plan, &rows);
        self.decode_plan = Some(held);
        self.current_plan().map(drop)
    }

    /// To be called before sequences change: what is planned is then planned for others.
    pub(super) fn outdate_plan(&mut self) {
        if let Some(held) = &mut self.decode_plan {
            held.current = false;
        }
    }

    fn current_plan(&self) -> Result<&DecodePlan> {
        let held = self.decode_plan.as_ref();
        held.filter(|held| held.current).ok_or_else(no_plan)
    }

    /// The layer and the plan of the next [`decode`](Self::decode): for benchmarks of the
    /// operation alone.
    ///
    /// # Errors
    /// [`Error::Option`] without a plan, or where the sequences have changed since;
    /// [`Error::Layer`].
    pub fn decode_parts(
        &self,
        layer: usize,
    ) -> Result<(crate::backend::KvLayer<Dispatch>, AttentionPlan<Dispatch>)> {
        let held = self.current_plan()?;
        Ok((self.layer(layer)?.clone(), held.plan.clone()))
    }

    /// Moves one token per row, already written to the exact tiers, into the tables, and the pages
    /// that are due out of the recent tier.
    pub(super) fn count_token(&mut self, layer: usize, rows: &[usize]) -> Result<()> {
        let mut moves = Vec::new();
        for &row in rows {
            let table = self.sequences[row].layers[layer].clone();
            let growth = self.growth(&table, 1);
            for index in table.pages.len()..table.pages.len() + growth.pages {
                let page = self.page(layer, row, index)?;
                moves.push(Demotion {
                    slot: self.sequences[row].slot,
                    page,
                    recent: table.recent + 1,
                });
            }
            self.sequences[row].layers[layer].grow(1, &growth, self.page_tokens);
        }
        if !moves.is_empty() {
            let stored = self.take_layer(layer)?;
            self.layers[layer] = Some(backend::demote(stored, moves));
        }
        Ok(())
    }
}

fn no_plan() -> Error {
    Error::Option {
        option: "decode",
        value: "no plan of the sequences as they are".into(),
        reason: "call `plan_decode` first, and again after every call but `decode` and \
                 `commit_decode` that changes sequences",
    }
}
