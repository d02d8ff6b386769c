//! Random operations on several sequences against a dense cache.

use burn::tensor::{Device, Tensor, TensorData};
use burn_oscar::{AttentionOptions, Error, KvCache, KvCacheConfig, Method, SequenceId};
use capabilities::dense::DenseSequence;
use proptest::prelude::*;

const HEAD_DIM: usize = 32;
const LAYERS: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    /// Append this many tokens to each of some sequences.
    Attend {
        tokens: usize,
        mask: u8,
        streaming: bool,
    },
    Truncate {
        which: usize,
        keep: f64,
    },
    Fork {
        which: usize,
    },
    Free {
        which: usize,
    },
    Add,
    /// A step that fails in its second layer, and is undone.
    Undo {
        tokens: usize,
    },
    Reorder {
        picks: Vec<usize>,
    },
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (prop_oneof![3 => Just(1usize), 3 => 1usize..20, 2 => 60usize..200], any::<u8>(), any::<bool>())
            .prop_map(|(tokens, mask, streaming)| Step::Attend { tokens, mask, streaming }),
        2 => (any::<usize>(), 0f64..=1.0).prop_map(|(which, keep)| Step::Truncate { which, keep }),
        2 => any::<usize>().prop_map(|which| Step::Fork { which }),
        1 => any::<usize>().prop_map(|which| Step::Free { which }),
        1 => Just(Step::Add),
        1 => (1usize..150).prop_map(|tokens| Step::Undo { tokens }),
        1 => prop::collection::vec(any::<usize>(), 1..4).prop_map(|picks| Step::Reorder { picks }),
        1 => Just(Step::Reset),
    ]
}

#[derive(Clone, Debug)]
struct Case {
    method: Method,
    kv_heads: usize,
    group: usize,
    seed: u64,
    /// How far an 8-bit cache may be off.
    tolerance: f32,
    steps: Vec<Step>,
}

fn case() -> impl Strategy<Value = Case> {
    let method = (0usize..6, 0usize..70, 0usize..90).prop_map(|(method, sink, recent)| {
        let bits8 = |method: Method| method.with_bits(8).unwrap();
        let exact = Method::exact();
        let (method, tolerance) = match method {
            0 | 1 => (exact, 2e-5),
            2 => (bits8(Method::kivi()), 0.04),
            3 => (bits8(Method::oscar_scaled()), 0.04),
            4 => (bits8(Method::hadamard_centred()), 0.08),
            _ => (
                exact.with_value_side(bits8(Method::hadamard()).value_side().clone()),
                0.04,
            ),
        };
        (method.with_sink(sink).with_recent(recent), tolerance)
    });
    (
        method,
        1usize..3,
        1usize..4,
        any::<u64>(),
        prop::collection::vec(step(), 4..24),
    )
        .prop_map(|((method, tolerance), kv_heads, group, seed, steps)| Case {
            method,
            kv_heads,
            group,
            seed,
            tolerance,
            steps,
        })
}

/// Repeatable numbers in -1.5 to 1.5.
struct Numbers(u64);

impl Numbers {
    fn row(&mut self, length: usize) -> Vec<f32> {
        (0..length)
            .map(|_| {
                self.0 = self
                    .0
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                ((self.0 >> 40) as f32 / (1u32 << 24) as f32 - 0.5) * 3.0
            })
            .collect()
    }
}

struct Pair {
    case: Case,
    cache: KvCache,
    /// In batch order.
    dense: Vec<(SequenceId, [DenseSequence; LAYERS])>,
    numbers: Numbers,
    device: Device,
}

impl Pair {
    fn new(case: Case) -> Self {
        let device = Device::flex();
        let cache = KvCacheConfig::new(LAYERS, case.kv_heads, HEAD_DIM)
            .with_method(case.method.clone())
            .with_max_tokens(600)
            .with_max_sequences(3)
            .with_poison(true)
            .init(&device)
            .unwrap();
        let dense = vec![(cache.sequences()[0], Default::default())];
        let numbers = Numbers(case.seed);
        Self {
            case,
            cache,
            dense,
            numbers,
            device,
        }
    }

    /// `[rows, heads, tokens, head_dim]` of `rows[row][token][head * channel]`.
    fn tensor(&self, rows: &[Vec<Vec<f32>>], heads: usize) -> Tensor<4> {
        let tokens = rows[0].len();
        let flat: Vec<f32> = rows.iter().flatten().flatten().copied().collect();
        let shape = [rows.len(), tokens, heads, HEAD_DIM];
        Tensor::<4>::from_data(TensorData::new(flat, shape), &self.device).swap_dims(1, 2)
    }

    fn apply(&mut self, step: &Step) {
        let before: Vec<usize> = self.cache.lens();
        match step {
            Step::Attend {
                tokens,
                mask,
                streaming,
            } => self.attend(*tokens, *mask, *streaming),
            Step::Truncate { which, keep } => {
                let Some((id, _)) = self.pick(*which) else {
                    return;
                };
                let len = self.cache.len(id).unwrap();
                let keep = (len as f64 * keep) as usize;
                self.cache.truncate(id, keep).unwrap();
                assert!(matches!(
                    self.cache.truncate(id, keep + 1),
                    Err(Error::TruncateBeyond { .. })
                ));
                let row = self.row(id);
                for layer in &mut self.dense[row].1 {
                    layer.keys.truncate(keep);
                    layer.values.truncate(keep);
                }
            }
            Step::Fork { which } => {
                let Some((id, layers)) = self.pick(*which) else {
                    return;
                };
                match self.cache.fork(id) {
                    Ok(new) => self.dense.push((new, layers)),
                    Err(error) => {
                        // An undone step may have left a page that a fork needs a copy of.
                        let expected = matches!(
                            error,
                            Error::TooManySequences { .. } | Error::PoolExhausted { .. }
                        );
                        assert!(expected, "{error}");
                        assert_eq!(self.cache.lens(), before);
                    }
                }
            }
            Step::Free { which } => {
                let Some((id, _)) = self.pick(*which) else {
                    return;
                };
                self.cache.free(id).unwrap();
                let row = self.row(id);
                self.dense.remove(row);
                assert!(self.cache.free(id).is_err());
            }
            Step::Add => match self.cache.add_sequence() {
                Ok(id) => self.dense.push((id, Default::default())),
                Err(error) => assert!(matches!(error, Error::TooManySequences { .. }), "{error}"),
            },
            Step::Reorder { picks } => {
                let ids: Vec<_> = picks.iter().filter_map(|&p| self.pick(p)).collect();
                let order: Vec<_> = ids.iter().map(|(id, _)| *id).collect();
                let new = match self.cache.reorder(&order) {
                    Ok(new) => new,
                    Err(error) => {
                        assert!(matches!(error, Error::PoolExhausted { .. }), "{error}");
                        return;
                    }
                };
                self.dense = new
                    .into_iter()
                    .zip(ids)
                    .map(|(id, (_, d))| (id, d))
                    .collect();
            }
            Step::Undo { tokens } => self.undo(*tokens),
            Step::Reset => {
                let id = self.cache.reset();
                self.dense = vec![(id, Default::default())];
            }
        }
        let ids: Vec<_> = self.dense.iter().map(|(id, _)| *id).collect();
        assert_eq!(self.cache.sequences(), ids);
        let lens: Vec<_> = self.dense.iter().map(|(_, d)| d[0].keys.len()).collect();
        assert_eq!(self.cache.lens(), lens);
    }

    fn undo(&mut self, tokens: usize) {
        let (rows, kv_heads) = (self.dense.len(), self.case.kv_heads);
        if rows == 0 {
            return;
        }
        let shape = [rows, kv_heads, tokens, HEAD_DIM];
        let good = Tensor::<4>::ones(shape, &self.device);
        let bad = Tensor::<4>::full(shape, f32::NAN, &self.device);
        let options = AttentionOptions::causal();
        let first = self
            .cache
            .attend(0, good.clone(), good.clone(), good.clone(), options.clone());
        if first.is_err() {
            return;
        }
        let second = self.cache.attend(1, good.clone(), bad, good, options);
        assert!(matches!(second, Err(Error::NotFinite { layer: 1, .. })));
        for (id, _) in &self.dense {
            let len = self.cache.len(*id).unwrap();
            self.cache.truncate(*id, len).unwrap();
        }
    }

    fn pick(&self, which: usize) -> Option<(SequenceId, [DenseSequence; LAYERS])> {
        (!self.dense.is_empty()).then(|| self.dense[which % self.dense.len()].clone())
    }

    fn row(&self, id: SequenceId) -> usize {
        self.dense
            .iter()
            .position(|(other, _)| *other == id)
            .unwrap()
    }

    fn attend(&mut self, tokens: usize, mask: u8, streaming: bool) {
        let rows: Vec<usize> = (0..self.dense.len())
            .filter(|row| self.dense.len() == 1 || mask >> row & 1 == 1)
            .collect();
        if rows.is_empty() {
            return;
        }
        let ids: Vec<_> = rows.iter().map(|&row| self.dense[row].0).collect();
        let before: Vec<_> = ids.iter().map(|&id| self.cache.len(id).unwrap()).collect();
        let (kv_heads, heads) = (self.case.kv_heads, self.case.kv_heads * self.case.group);
        let mut options = AttentionOptions::causal().rows(&ids);
        if streaming {
            options = options.streaming();
        }
        for layer in 0..LAYERS {
            let mut draw = |heads: usize| -> Vec<Vec<Vec<f32>>> {
                let mut row = || {
                    (0..tokens)
                        .map(|_| self.numbers.row(heads * HEAD_DIM))
                        .collect()
                };
                rows.iter().map(|_| row()).collect()
            };
            let (query, key, value) = (draw(heads), draw(kv_heads), draw(kv_heads));
            let result = self.cache.attend(
                layer,
                self.tensor(&query, heads),
                self.tensor(&key, kv_heads),
                self.tensor(&value, kv_heads),
                options.clone(),
            );
            let output = match result {
                Ok(output) => output,
                Err(error) => {
                    // Nothing of this layer was stored. A later layer may run into it only where
                    // an undone step has left it with fewer pages; then this one is undone too.
                    assert!(matches!(error, Error::PoolExhausted { .. }), "{error}");
                    for (row, len) in rows.iter().zip(&before) {
                        self.cache.truncate(self.dense[*row].0, *len).unwrap();
                        for layer in &mut self.dense[*row].1 {
                            layer.keys.truncate(*len);
                            layer.values.truncate(*len);
                        }
                    }
                    return;
                }
            };
            let output: Vec<f32> = output.swap_dims(1, 2).try_into_vec_as().unwrap();
            let mut expected = Vec::new();
            for (i, &row) in rows.iter().enumerate() {
                let dense = &mut self.dense[row].1[layer];
                dense.keys.extend(key[i].clone());
                dense.values.extend(value[i].clone());
                expected.extend(dense.attend(&query[i], kv_heads, HEAD_DIM).concat());
            }
            for (found, expected) in output.iter().zip(&expected) {
                let difference = (found - expected).abs();
                assert!(
                    difference <= self.case.tolerance,
                    "{found} for {expected} with {}",
                    self.case.method.name()
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    #[test]
    fn random_operations_match_a_dense_cache(case in case()) {
        let steps = case.steps.clone();
        let mut pair = Pair::new(case);
        for step in &steps {
            pair.apply(step);
        }
    }
}
