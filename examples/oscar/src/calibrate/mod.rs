//! Calibration: texts to statistics, statistics to an artifact.

mod gather;
mod job;
mod options;

pub use gather::{Gather, Shard};
pub use job::{JobArgs, validation_table};
pub use options::{MethodName, SolveArgs};

use burn_oscar::calibration::solve::{Diagnostics, Pairing, Rope};
use models::{config::ModelConfig, rope, table::table};

/// The rotary embedding of a model, as the solver wants it: half-split, as all models are loaded.
pub fn rope_of(config: &ModelConfig) -> Rope {
    Rope {
        inv_freq: rope::Rope::new(&config.rope, config.head_dim)
            .frequencies()
            .to_vec(),
        pairing: Pairing::Half,
        rotary_dim: config.head_dim,
    }
}

/// The diagnostics as a table: a row a layer, the least and greatest of its KV heads.
pub fn diagnostics_table(diagnostics: &Diagnostics) -> String {
    let mut table = table([
        "layer",
        "effective rank",
        "spread",
        "heads apart",
        "importance by segment",
        "key bits",
        "gain",
        "key clip",
        "value clip",
    ]);
    for (index, layer) in diagnostics.layers.iter().enumerate() {
        let range = |value: fn(&burn_oscar::calibration::solve::HeadDiagnostics) -> f64| {
            let values = layer.heads.iter().map(value);
            let (least, greatest) = values.fold((f64::MAX, f64::MIN), |(least, greatest), x| {
                (least.min(x), greatest.max(x))
            });
            format!("{least:.1}..{greatest:.1}")
        };
        let heads = layer.heads.len().max(1) as f64;
        let shares = (0..layer.segments.len()).map(|segment| {
            let of_heads = layer
                .heads
                .iter()
                .filter_map(|head| head.shares.get(segment));
            format!("{:.1} %", 100.0 * of_heads.sum::<f64>() / heads)
        });
        let clip = |clip: Option<f32>| clip.map_or("-".to_string(), |clip| clip.to_string());
        table.add_row([
            index.to_string(),
            range(|head| head.effective_rank),
            range(|head| head.spread),
            format!("{:.3}", layer.head_distance),
            shares.collect::<Vec<_>>().join(" + "),
            match layer.key_bits > 0.0 {
                true => format!("{:.3}", layer.key_bits),
                false => "-".to_string(),
            },
            format!("{:.3}", layer.predicted_gain),
            clip(layer.key_clip),
            clip(layer.value_clip),
        ]);
    }
    table.to_string()
}
