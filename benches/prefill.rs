//! Packing the pages of a prefill.

use benches::arguments::{Common, Problems};
use benches::methods::{method, page_bytes};
use benches::results::{PrefillRow, Results};
use benches::rows::measure_all;
use benches::shape::{HEAD_DIM, KV_HEADS, Shape};
use benches::{Result, cache, device, stream, timing};
use burn::tensor::{Device, Int, Tensor};
use burn_oscar::backend::write_pages;
use clap::Args;

/// Packing the pages of a prefill
///
/// Times packing whole pages of a prefill, 32K tokens of 8 KV heads unless --shapes says
/// otherwise: keys and values already transformed, read in BF16, written as pages. Writes
/// prefill.json.
///
///   bench prefill --device cuda
///   bench prefill --device flex --quick --shapes 1x1024
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
    let mut results = Results::<PrefillRow>::new("prefill", &device, common.quick);
    results.stream_tb_s = stream::measure(&device, common.effort())?.map(|row| row.tb_s);
    let rate = results.stream_tb_s;
    println!("{}, streaming read {rate:?} TB/s", results.device);
    println!("| method | tokens | bytes | us | min | max | TB/s | of stream |");
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    measure_all(
        results,
        (&common, &problems),
        &[Shape::new(1, 32 << 10)],
        &device,
        |name, shape| measure(name, shape, &common, &device),
        |row| {
            row.share_of_stream = rate.map(|rate| row.tb_s / rate);
            let (time, share) = (row.time, row.share_of_stream);
            println!(
                "| {} | {} | {} | {:.1} | {:.1} | {:.1} | {:.3} | {} |",
                row.method,
                row.tokens,
                row.bytes,
                time.median_us,
                time.min_us,
                time.max_us,
                row.tb_s,
                share.map_or("-".into(), |share| format!("{:.1} %", 100.0 * share)),
            );
        },
    )
}

fn measure(name: &str, shape: Shape, common: &Common, device: &Device) -> Result<PrefillRow> {
    let method = method(name, 1)?;
    let page_tokens = method.page_tokens();
    let pages = (shape.batch * shape.context / page_tokens).max(1);
    let tokens = pages * page_tokens;
    let bytes = pages * page_bytes(&method) + 2 * 2 * KV_HEADS * HEAD_DIM * tokens;

    let room = Shape::new(1, tokens + method.sink() + method.recent());
    let empty = cache::empty(method, room, 1, device)?;
    // Owned by nobody else, so that its pools are written in place.
    let mut layer = Some(empty.layer(0)?.clone());
    drop(empty);
    let [key, value] = [(); 2].map(|()| cache::random(pages, KV_HEADS, page_tokens, device));
    let ids = Tensor::<1, Int>::arange(0..pages as i64, device);
    device::sync(device)?;
    let time = timing::direct(device, common.effort(), 1, |_| {
        let taken = layer.take();
        layer = taken.map(|layer| write_pages(layer, key.clone(), value.clone(), ids.clone()));
    })?;
    Ok(PrefillRow {
        method: name.into(),
        tokens,
        bytes,
        time,
        tb_s: time.terabytes_per_second(bytes),
        share_of_stream: None,
    })
}
