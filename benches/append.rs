//! What a decode step costs besides attention: a token in, and now and then a page out.

use benches::arguments::{Common, Problems};
use benches::cache::{self, Filled};
use benches::methods::{layer_bytes, method};
use benches::results::{AppendRow, Results};
use benches::rows::measure_all;
use benches::shape::{HEADS, KV_HEADS, Shape};
use benches::{Error, Result, device, timing};
use burn::tensor::Device;
use burn_oscar::backend::{append, attend, demote};
use clap::Args;

const SHAPES: [Shape; 2] = [Shape::new(1, 32 << 10), Shape::new(8, 32 << 10)];

/// What a decode step costs besides attention
///
/// Times what a decode step costs besides attention: writing one token of each sequence to the
/// exact tiers, and packing one page of each sequence when it leaves them, every 64th step (256th
/// with page means): in a graph, and launched one by one, as it is between steps. The step's share
/// takes the former, against attention of the same run. Writes append.json.
///
///   bench append --device cuda
///   bench append --device flex --quick --allow-portable --shapes 2x700
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    problems: Problems,
}

pub fn run(arguments: Arguments) -> Result<()> {
    let Arguments { common, problems } = arguments;
    let device = common.device.open()?;
    let results = Results::<AppendRow>::new("append", &device, common.quick);
    println!("{}, microseconds", results.device);
    println!("| method | shape | append | page | launched | step | attention | of the step |");
    println!("|---|---|--:|--:|--:|--:|--:|--:|");
    measure_all(
        results,
        (&common, &problems),
        &SHAPES,
        &device,
        |name, shape| measure(name, shape, &common, &device),
        |row| {
            println!(
                "| {} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} % |",
                row.method,
                row.shape,
                row.append.median_us,
                row.demote.median_us,
                row.demote_launched.median_us,
                row.step_us,
                row.attend.median_us,
                100.0 * row.share_of_step
            )
        },
    )
}

fn measure(name: &str, shape: Shape, common: &Common, device: &Device) -> Result<AppendRow> {
    let effort = common.effort();
    let copies = effort.copies(layer_bytes(&method(name, 1)?, shape));
    let calls = effort.calls(copies);
    let filled = cache::filled(method(name, copies)?, shape, copies, device)?;
    let due: Vec<_> = (0..copies).map(|layer| filled.due(layer)).collect();
    let Filled {
        layers,
        page_tokens,
        ..
    } = filled;
    device::sync(device)?;
    let step = |heads| cache::random(shape.batch, heads, 1, device);
    let (query, key, value) = (step(HEADS), step(KV_HEADS), step(KV_HEADS));

    let (before, mut made) = (cache::fused_calls(), 0);
    let attention = timing::captured(device, effort, calls, |i| {
        let (layer, plan) = layers[i % copies].clone();
        made += 1;
        attend(query.clone(), key.clone(), value.clone(), layer, plan)
    })?;
    let grown = cache::fused_calls() - before;
    let fused = grown >= made;
    if !fused && !common.allow_portable {
        return Err(Error::NotFused { calls: made, grown });
    }

    // From here on each layer is owned, so that its tensors are written in place.
    let (mut owned, plans): (Vec<_>, Vec<_>) = layers
        .into_iter()
        .map(|(layer, plan)| (Some(layer), plan))
        .unzip();
    let appended = timing::captured(device, effort, calls, |i| {
        let i = i % copies;
        let layer = owned[i].take();
        owned[i] = layer.map(|layer| append(layer, key.clone(), value.clone(), plans[i].clone()));
    })?;
    let mut demote_one = |i: usize| {
        let i = i % copies;
        let layer = owned[i].take();
        owned[i] = layer.map(|layer| demote(layer, due[i].clone()));
    };
    let demoted = timing::captured(device, effort, calls, &mut demote_one)?;
    // Pages leave between steps, outside the step's graph: this is what the host has to do.
    let launched = timing::direct(device, effort, calls, demote_one)?;
    let step_us = appended.spread.median_us + demoted.spread.median_us / page_tokens as f64;
    Ok(AppendRow {
        method: name.into(),
        shape,
        fused,
        page_tokens,
        append: appended.spread,
        demote: demoted.spread,
        demote_launched: launched,
        attend: attention.spread,
        step_us,
        share_of_step: step_us / (step_us + attention.spread.median_us),
    })
}
