//! Steps write pools and tiers where they are: no copy of a pool is ever made.

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device};
use burn_oscar::{AttentionOptions, KvCache, KvCacheConfig};
use capabilities::recipes::{Noise, kernel_device, method};
use cubecl::client::Client;
use cubecl::{MemoryScope, MemoryUsage};

use super::alone;

const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;

fn client(device: &Device) -> Client {
    match device.as_dispatch() {
        DispatchDevice::Cube(device) => device.client(),
        #[allow(unreachable_patterns)]
        other => panic!("{other:?} is no CubeCL device"),
    }
}

fn usage(device: &Device) -> MemoryUsage {
    device.sync().unwrap();
    client(device)
        .memory_report(MemoryScope::CurrentStream)
        .usage()
}

/// A cache whose pools are far larger than all else, of two rows about to fill a page.
fn cache(noise: &mut Noise, device: &Device) -> KvCache {
    let mut cache = KvCacheConfig::new(1, KV_HEADS, HEAD_DIM)
        .with_method(method("kivi").with_sink(3).with_recent(8))
        .with_max_tokens(1 << 18)
        .with_max_sequences(2)
        .with_input_checks(false)
        .init(device)
        .unwrap();
    cache.add_sequence().unwrap();
    extend(&mut cache, 3 + 8 + 60, noise);
    cache
}

fn extend(cache: &mut KvCache, tokens: usize, noise: &mut Noise) {
    let device = cache.device().clone();
    let [key, value] =
        [0, 1].map(|_| noise.tensor([2, KV_HEADS, tokens, HEAD_DIM], DType::F32, &device));
    let options = AttentionOptions::causal();
    cache.extend(0, key, value, options).unwrap();
}

fn decode(cache: &mut KvCache, steps: usize, noise: &mut Noise) {
    let device = cache.device().clone();
    cache.plan_decode(&AttentionOptions::causal()).unwrap();
    for _ in 0..steps {
        let [query, key, value] = [4, KV_HEADS, KV_HEADS]
            .map(|heads| noise.tensor([2, heads, 1, HEAD_DIM], DType::F32, &device));
        cache.decode(0, query, key, value).unwrap();
        cache.commit_decode().unwrap();
    }
}

#[test]
fn no_step_copies_a_pool() {
    let _alone = alone();
    let device = kernel_device();
    let mut noise = Noise(5);
    let mut cache = cache(&mut noise, &device);
    let pools = cache.memory().allocated_page_bytes as u64;
    assert!(pools > 16 << 20, "{pools}");

    let before = usage(&device);
    decode(&mut cache, 70, &mut noise);
    for _ in 0..66 {
        extend(&mut cache, 1, &mut noise);
    }
    extend(&mut cache, 300, &mut noise);
    let after = usage(&device);
    println!("{pools} bytes of pools; {before:?}, then {after:?}");
    assert!(after.bytes_reserved - before.bytes_reserved < pools / 4);
    assert!(after.bytes_in_use < before.bytes_in_use + pools / 4);

    // The same with a layer that is held: what a copy looks like.
    let held = cache.layer(0).unwrap().clone();
    extend(&mut cache, 64, &mut noise);
    let copied = usage(&device);
    assert!(copied.bytes_in_use > after.bytes_in_use + pools / 2);
    drop(held);
}
