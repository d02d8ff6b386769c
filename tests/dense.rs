//! A cache without tricks: every key and value in a list, attention in f64.

/// One sequence of one layer: keys and values `[token][kv_head][channel]`.
#[derive(Clone, Debug, Default)]
pub struct DenseSequence {
    /// Keys of each token, heads in a row.
    pub keys: Vec<Vec<f32>>,
    /// Values of each token, heads in a row.
    pub values: Vec<Vec<f32>>,
}

impl DenseSequence {
    /// Attention of the newest tokens' queries `[token][head][channel]`, whose keys and values
    /// are already in the lists. Returns `[token][head][channel]`.
    pub fn attend(&self, queries: &[Vec<f32>], kv_heads: usize, head_dim: usize) -> Vec<Vec<f32>> {
        let past = self.keys.len() - queries.len();
        let scale = 1.0 / (head_dim as f64).sqrt();
        queries
            .iter()
            .enumerate()
            .map(|(t, query)| {
                let heads = query.len() / head_dim;
                let group = heads / kv_heads;
                (0..heads)
                    .flat_map(|head| {
                        let kv = head / group;
                        let of = |row: &[f32], h: usize| row[h * head_dim..][..head_dim].to_vec();
                        let query = of(query, head);
                        let scores: Vec<f64> = self.keys[..=past + t]
                            .iter()
                            .map(|key| scale * dot(&query, &of(key, kv)))
                            .collect();
                        let top = scores.iter().copied().fold(f64::MIN, f64::max);
                        let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
                        let total: f64 = weights.iter().sum();
                        let mut output = vec![0f64; head_dim];
                        for (weight, value) in weights.iter().zip(&self.values) {
                            for (o, v) in output.iter_mut().zip(of(value, kv)) {
                                *o += weight / total * f64::from(v);
                            }
                        }
                        output.into_iter().map(|o| o as f32)
                    })
                    .collect()
            })
            .collect()
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}
