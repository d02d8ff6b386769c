//! What packing costs: many pages at once, as after a prefill, and the page that leaves the recent
//! tier while decoding.
//!
//! `BURN_DEVICE=cuda cargo run --release -p benches --features cuda --bin pack`. The rate counts the
//! bytes that are read and the bytes of the pages that are written.

use std::time::Instant;

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Distribution, Int, Tensor, TensorData};
use burn_oscar::backend::{Demotion, KvLayer, demote, write_pages};
use burn_oscar::method::{Side, TransformKind};
use burn_oscar::quantizer::{PageSpec, Role};
use burn_oscar::{KvCacheConfig, Method, Result};

const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const TOKENS: usize = 1 << 16;
const REPEATS: usize = 50;

/// The presets, with the clips of `oscar` in place of its calibration.
fn methods() -> Result<Vec<(String, Method)>> {
    let mut methods = Vec::new();
    for name in Method::PRESETS.iter().skip(1) {
        if !Method::needs_calibration(name) {
            methods.push((name.to_string(), Method::preset(name)?));
        }
    }
    let clipped = |clip| {
        let mut quantizer = Method::hadamard().key_side().quantizer.clone();
        if let Some(quantizer) = &mut quantizer {
            quantizer.clip = Some(clip);
        }
        Side {
            transform: TransformKind::Hadamard,
            quantizer,
        }
    };
    let oscar = Method::hadamard()
        .with_key_side(clipped(0.96))
        .with_value_side(clipped(0.92));
    methods.push(("clipped".into(), oscar));
    Ok(methods)
}

/// Seconds of a call, on average over some that are queued together.
fn seconds(
    layer: &mut Option<KvLayer<Dispatch>>,
    device: &Device,
    call: impl Fn(KvLayer<Dispatch>) -> KvLayer<Dispatch>,
) -> f64 {
    let mut run = |count| {
        for _ in 0..count {
            *layer = layer.take().map(&call);
        }
        let _ = device.sync();
    };
    run(3);
    let start = Instant::now();
    run(REPEATS);
    start.elapsed().as_secs_f64() / REPEATS as f64
}

fn main() -> Result<()> {
    let device = Device::default();
    println!("{device:?}, {KV_HEADS} KV heads of {HEAD_DIM}, BF16");
    for (name, method) in methods()? {
        let page = method.page_tokens();
        let cache = KvCacheConfig::new(1, KV_HEADS, HEAD_DIM)
            .with_method(method.clone())
            .with_dtype(DType::BF16)
            .with_max_tokens(TOKENS)
            .init(&device)?;
        let mut layer = Some(cache.layer(0)?.clone());
        drop(cache);
        let n = TOKENS / page;
        let x = Tensor::<4>::random(
            [n, KV_HEADS, page, HEAD_DIM],
            Distribution::Normal(0.0, 1.0),
            (&device, DType::BF16),
        );
        let ids: Vec<i32> = (0..n as i32).collect();
        let ids = Tensor::<1, Int>::from_data(TensorData::from(&ids[..]), &device);
        let many = seconds(&mut layer, &device, |layer| {
            write_pages(layer, x.clone(), x.clone(), ids.clone())
        });
        let one = Demotion {
            slot: 0,
            page: 1,
            recent: method.recent() + page,
        };
        let single = seconds(&mut layer, &device, |layer| demote(layer, vec![one]));

        let sides = [
            (method.key_side(), Role::Key),
            (method.value_side(), Role::Value),
        ];
        let written: usize = (sides.iter())
            .filter_map(|(side, role)| {
                let quantizer = side.quantizer.as_ref()?;
                let spec = PageSpec::new(quantizer, *role, HEAD_DIM, page);
                Some(n * spec.page_bytes(KV_HEADS))
            })
            .sum();
        let read = 2 * 2 * TOKENS * KV_HEADS * HEAD_DIM;
        println!(
            "{name:>18}: {TOKENS} tokens {:8.3} ms, {:7.1} GB/s; one page leaves in {:7.1} us",
            many * 1e3,
            (read + written) as f64 / many / 1e9,
            single * 1e6
        );
    }
    Ok(())
}
