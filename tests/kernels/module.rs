//! Decorated modules on the kernels' device, against the undecorated ones on flex.

use burn::tensor::Device;
use burn_oscar::Method;
use burn_oscar::backend::fused_calls;
use capabilities::recipes::{kernel_device, product_limit};

use super::alone;
use crate::module::decoder::Case;
use crate::module::{attend_only, attention, cross, decoder};

/// The methods of these tests, each with how far its decoded tokens may be off, relative to them.
/// Pages with means have 256 tokens, more than this runtime multiplies matrices of in a short time.
fn methods(device: &Device) -> [(Method, f64); 3] {
    [
        (Method::exact(), product_limit(device, 1e-5)),
        (Method::oscar_scaled(), 0.1),
        (Method::hadamard_centred().with_page_means(false), 0.1),
    ]
}

#[test]
fn reading_alone_is_done_by_kernels() {
    let _alone = alone();
    let device = kernel_device();
    for method in [Method::exact(), Method::oscar_scaled()] {
        let name = method.name().to_string();
        let method = method.with_sink(2).with_recent(5);
        let before = fused_calls();
        attend_only::check(&name, &method, [90, 7], None, &device);
        // One and two queries of three heads per KV head; nine are left to the portable body.
        // Then one step on each of two caches.
        assert_eq!(fused_calls() - before, 4, "{name}");
        attend_only::check(&name, &method, [71, 64], Some(40), &device);
    }
}

#[test]
fn self_attention() {
    let _alone = alone();
    let device = kernel_device();
    for (method, limit) in methods(&device) {
        let found = attention::chunks(&method, 90, &device);
        println!("{}: {found:.4}", method.name());
        assert!(found < limit, "{}: {found}", method.name());
    }
    let rows = [(0, 90), (80, 10)];
    let errors = attention::ragged(&Method::exact(), &rows, 90, 2, &device);
    let limit = product_limit(&device, 1e-5);
    assert!(errors.iter().all(|&error| error < limit), "{errors:?}");
}

#[test]
fn cross_attention() {
    let _alone = alone();
    let device = kernel_device();
    for (method, limit) in methods(&device) {
        let name = method.name().to_string();
        let method = method.with_sink(0).with_recent(0);
        let found = cross::check(&method, &[(0, 90), (26, 64)], 90, &device);
        println!("{name}: {found:.4}");
        assert!(found < limit, "{name}: {found}");
    }
}

#[test]
fn decoder() {
    let _alone = alone();
    let device = kernel_device();
    // Rows of different lengths, all exact; then one row whose tokens and memory are packed.
    let ragged = Case {
        target: vec![(0, 9), (4, 5)],
        prompt: 9,
        steps: 1,
        memory: vec![(0, 8), (0, 6)],
        memory_width: 8,
    };
    let packed = Case {
        target: vec![(0, 86)],
        prompt: 86,
        steps: 1,
        memory: vec![(0, 90)],
        memory_width: 90,
    };
    let [exact, scaled, _] = methods(&device);
    for ((method, limit), case) in [(exact, ragged), (scaled, packed)] {
        let errors = decoder::check(&method, true, &case, &device);
        println!("{}: {errors:.4?}", method.name());
        let within = errors.iter().all(|&error| error < limit);
        assert!(within, "{}: {errors:?}", method.name());
    }
}
