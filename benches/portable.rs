//! Decode attention and packing with the portable bodies, against the exact cache.
//!
//! `cargo run --release -p benches` prints a table; with a path as argument the rows are also
//! written there as JSON. A row is one layer: the median and the spread of repeated calls, the
//! bytes that a call must read (the tokens as stored) and their rate, as a share of what a plain
//! copy of memory reads on the same machine.

use std::time::Instant;

use burn::tensor::{Device, Distribution, Tensor};
use burn_oscar::{AttentionOptions, KvCacheConfig, Method, Result};
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const REPEATS: usize = 7;

#[derive(Serialize)]
struct Row {
    operation: &'static str,
    method: String,
    context: usize,
    milliseconds: f64,
    /// Fastest and slowest.
    spread: [f64; 2],
    /// Against the exact cache in the same operation and context.
    speed_up: f64,
    bytes: usize,
    gigabytes_per_second: f64,
    share_of_copy: f64,
}

/// Seconds of each of some calls, sorted.
fn times(mut call: impl FnMut()) -> Vec<f64> {
    call();
    let mut times: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Bytes read per second by a copy of 256 MiB.
fn copy_rate() -> f64 {
    let from = vec![1u8; 256 << 20];
    let mut to = vec![0u8; from.len()];
    let median = times(|| to.copy_from_slice(std::hint::black_box(&from)))[REPEATS / 2];
    assert_eq!(to[to.len() - 1], 1);
    from.len() as f64 / median
}

fn measure(method: &Method, context: usize, copy: f64) -> Result<[Row; 2]> {
    let device = Device::default();
    let random = |heads, tokens| {
        let shape = [1, heads, tokens, HEAD_DIM];
        Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &device)
    };
    let config = KvCacheConfig::new(1, KV_HEADS, HEAD_DIM)
        .with_method(method.clone())
        .with_max_tokens(context + 64);
    let mut cache = config.init(&device)?;
    let (key, value) = (random(KV_HEADS, context), random(KV_HEADS, context));

    // Attention of one query per head costs next to nothing, so a prefill of few queries shows
    // the packing: all tokens but the last go in with one call.
    let mut failure = None;
    let pack = times(|| {
        let id = cache.reset();
        for start in (0..context).step_by(512) {
            let part = |x: &Tensor<4>| x.clone().narrow(2, start, 512);
            let query = part(&random(KV_HEADS, context));
            let options = AttentionOptions::causal().rows(&[id]);
            failure = cache
                .attend(0, query, part(&key), part(&value), options)
                .err();
        }
    });
    let report = cache.memory();
    let id = cache.sequences()[0];
    let decode = times(|| {
        let (query, key, value) = (random(HEADS, 1), random(KV_HEADS, 1), random(KV_HEADS, 1));
        let options = AttentionOptions::causal();
        failure = cache.attend(0, query, key, value, options).err();
        failure = failure.take().or(cache.truncate(id, context).err());
    });
    if let Some(error) = failure {
        return Err(error);
    }
    let row = |operation, times: Vec<f64>, bytes: usize| {
        let rate = bytes as f64 / times[REPEATS / 2];
        Row {
            operation,
            method: method.name().to_string(),
            context,
            milliseconds: times[REPEATS / 2] * 1e3,
            spread: [times[0], times[REPEATS - 1]].map(|t| t * 1e3),
            speed_up: 0.0,
            bytes,
            gigabytes_per_second: rate / 1e9,
            share_of_copy: rate / copy,
        }
    };
    Ok([
        row(
            "prefill",
            pack,
            report.exact_bytes * 2 + report.resident_bytes,
        ),
        row("decode", decode, report.resident_bytes),
    ])
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let copy = copy_rate();
    let mut rows = Vec::new();
    for context in [1024, 4096] {
        for name in Method::PRESETS
            .iter()
            .filter(|name| !Method::needs_calibration(name))
        {
            rows.extend(measure(&Method::preset(name)?, context, copy)?);
        }
    }
    let exact: Vec<_> = rows
        .iter()
        .filter(|row| row.method == "exact")
        .map(|row| (row.operation, row.context, row.milliseconds))
        .collect();
    for row in &mut rows {
        let same = |&&(operation, context, _): &&(&str, usize, f64)| {
            operation == row.operation && context == row.context
        };
        row.speed_up = exact
            .iter()
            .find(same)
            .map_or(0.0, |e| e.2 / row.milliseconds);
    }

    let mut table = Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header([
        "operation",
        "method",
        "context",
        "ms",
        "fastest",
        "slowest",
        "against exact",
        "KiB",
        "GB/s",
        "of a copy",
    ]);
    for row in &rows {
        table.add_row([
            row.operation.to_string(),
            row.method.clone(),
            row.context.to_string(),
            format!("{:.2}", row.milliseconds),
            format!("{:.2}", row.spread[0]),
            format!("{:.2}", row.spread[1]),
            format!("{:.2}x", row.speed_up),
            (row.bytes >> 10).to_string(),
            format!("{:.3}", row.gigabytes_per_second),
            format!("{:.1} %", row.share_of_copy * 100.0),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!(
        "{HEADS} query and {KV_HEADS} KV heads of {HEAD_DIM}, one layer, {:?}; a copy reads {:.1} GB/s",
        Device::default(),
        copy / 1e9
    );
    println!("{table}");
    if let Some(path) = std::env::args().nth(1) {
        std::fs::write(path, serde_json::to_string_pretty(&rows)? + "\n")?;
    }
    Ok(())
}
