//! The device's streaming read of 4 GiB, the yardstick of the other benchmarks.

use benches::Result;
use benches::arguments::Common;
use benches::results::Results;
use benches::{device, stream};
use clap::Args;

/// The device's own streaming read
///
/// Times a streaming read of 4 GiB with a CubeCL kernel: 16 bytes a unit, neighbours beside each
/// other. What no operation on this device exceeds. Writes stream.json.
///
///   bench stream --device cuda
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
}

pub fn run(arguments: Arguments) -> Result<()> {
    let Arguments { common } = arguments;
    let device = common.device.open()?;
    let mut results = Results::new("stream", &device, common.quick);
    let Some(row) = stream::measure(&device, common.effort())? else {
        println!("{}: no CubeCL device, skipped", device::name(&device));
        return Ok(());
    };
    let (gib, time) = (row.bytes as f64 / (1u64 << 30) as f64, row.time);
    println!(
        "{}: {gib} GiB in {:.1} us ({:.1} to {:.1}), {:.3} TB/s",
        results.device, time.median_us, time.min_us, time.max_us, row.tb_s
    );
    results.stream_tb_s = Some(row.tb_s);
    results.rows.push(row);
    println!("{}", results.write(common.out.as_deref())?.display());
    Ok(())
}
