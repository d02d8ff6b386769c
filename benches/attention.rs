//! Decode attention over a filled cache: one query token for each sequence.

use std::path::PathBuf;

use benches::arguments::{Common, Problems};
use benches::cache::{self, Filled};
use benches::methods::{layer_bytes, method};
use benches::results::{AttentionRow, Results, best};
use benches::rows::measure_all;
use benches::shape::{HEADS, KV_HEADS, Shape};
use benches::{Error, Result, device, stream, timing};
use burn::tensor::Device;
use burn_oscar::backend::attend;
use clap::Args;

/// Decode attention over a filled cache, one query token a sequence
///
/// Times decode attention over a filled cache: 32 query and 8 KV heads of 128 channels, BF16
/// activations, 64 sinks and 256 recent tokens, one query token for each sequence.
///
/// A row is the attention operation alone, on queries already transformed. Calls rotate over
/// layers that together exceed the cache, and are captured in one graph; the time is that of a
/// replay over its calls. Bytes are those of pages with parameters, windows, query and output.
/// Writes attention.json, row by row.
///
///   bench attention --baseline benches/results/nvidia-h200/baseline.json
///   bench attention --methods oscar,exact --shapes 1x8192,8x32768
///   bench attention --device flex --quick --allow-portable --shapes 1x512
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    problems: Problems,
    /// What baseline.py wrote on the same device: gives the ratio to the best BF16
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
}

pub fn run(arguments: Arguments) -> Result<()> {
    let Arguments {
        common,
        problems,
        baseline,
    } = arguments;
    let baseline = baseline.as_deref().map(Results::read).transpose()?;
    let device = common.device.open()?;
    let mut results = Results::<AttentionRow>::new("attention", &device, common.quick);
    let stream = stream::measure(&device, common.effort())?;
    results.stream_tb_s = stream.map(|row| row.tb_s);
    match results.stream_tb_s {
        Some(rate) => println!("{}: streaming read {rate:.3} TB/s", results.device),
        None => println!("{}: no CubeCL device, no streaming read", results.device),
    }
    println!(
        "| method | shape | bits | bytes | us | min | max | TB/s | of stream | to best BF16 | path |"
    );
    println!("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|");
    let rate = results.stream_tb_s;
    measure_all(
        results,
        (&common, &problems),
        Shape::ALL,
        &device,
        |name, shape| measure(name, shape, &common, &device),
        |row| {
            row.share_of_stream = rate.map(|rate| row.tb_s / rate);
            let best = baseline.as_ref().and_then(|file| best(file, row.shape));
            row.ratio = best.map(|(_, us)| us / row.time.median_us);
            print(row);
        },
    )
}

fn measure(name: &str, shape: Shape, common: &Common, device: &Device) -> Result<AttentionRow> {
    let effort = common.effort();
    let copies = effort.copies(layer_bytes(&method(name, 1)?, shape));
    let calls = effort.calls(copies);
    let Filled {
        layers,
        bits_per_value,
        layer_bytes,
        ..
    } = cache::filled(method(name, copies)?, shape, copies, device)?;
    device::sync(device)?;

    let step = |heads| cache::random(shape.batch, heads, 1, device);
    let inputs: Vec<_> = (0..copies)
        .map(|_| (step(HEADS), step(KV_HEADS), step(KV_HEADS)))
        .collect();
    let (before, mut made) = (cache::fused_calls(), 0);
    let captured = timing::captured(device, effort, calls, |i| {
        let (query, key, value) = inputs[i % copies].clone();
        let (layer, plan) = layers[i % copies].clone();
        made += 1;
        attend(query, key, value, layer, plan)
    })?;
    let grown = cache::fused_calls() - before;
    let fused = grown >= made;
    if !fused && !common.allow_portable {
        return Err(Error::NotFused { calls: made, grown });
    }
    let bytes = layer_bytes + shape.step_bytes();
    Ok(AttentionRow {
        method: name.into(),
        shape,
        fused,
        graph: captured.graph,
        copies,
        calls,
        repeats: effort.repeats,
        bits_per_value,
        bytes,
        time: captured.spread,
        tb_s: captured.spread.terabytes_per_second(bytes),
        share_of_stream: None,
        ratio: None,
    })
}

fn print(row: &AttentionRow) {
    let time = row.time;
    let share = row.share_of_stream;
    println!(
        "| {} | {} | {:.3} | {} | {:.2} | {:.2} | {:.2} | {:.3} | {} | {} | {}, {} |",
        row.method,
        row.shape,
        row.bits_per_value,
        row.bytes,
        time.median_us,
        time.min_us,
        time.max_us,
        row.tb_s,
        share.map_or("-".into(), |share| format!("{:.1} %", 100.0 * share)),
        row.ratio.map_or("-".into(), |ratio| format!("{ratio:.2}x")),
        if row.fused { "fused" } else { "portable" },
        if row.graph { "graph" } else { "calls" },
    );
}
