//! CubeCL runtimes: the kernels, and the default bodies for what they do not cover.

use burn::backend::DispatchDevice;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;

use super::plan::AttentionPlan;
use super::types::{Demotion, KvLayer};
use super::{KvCacheOps, portable};
use crate::kernel;

impl KvCacheOps for CubeBackend {
    fn kv_write_pages(
        layer: KvLayer<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        pages: IntTensor<Self>,
    ) -> KvLayer<Self> {
        kernel::pack::write_pages(layer, key, value, pages)
    }

    fn kv_demote(layer: KvLayer<Self>, moves: Vec<Demotion>) -> KvLayer<Self> {
        kernel::pack::demote(layer, &moves)
    }

    fn kv_attend(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        layer: KvLayer<Self>,
        plan: AttentionPlan<Self>,
    ) -> FloatTensor<Self> {
        match kernel::launch::attend(query, key, value, layer, plan) {
            Ok(out) => out,
            Err((reason, query, key, value, layer, plan)) => {
                kernel::fallback_once(&format!("attention of {reason}"));
                portable::attend::<Self>(query, key, value, layer, plan)
            }
        }
    }

    fn kv_append(
        mut layer: KvLayer<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        plan: AttentionPlan<Self>,
    ) -> KvLayer<Self> {
        layer.key_tier = kernel::pack::own(layer.key_tier);
        layer.value_tier = kernel::pack::own(layer.value_tier);
        kernel::append::append(
            &layer.key_tier,
            &layer.value_tier,
            into_contiguous(key),
            into_contiguous(value),
            plan.steps,
            plan.items,
        );
        layer
    }
}

/// Work items for each KV head, on a CubeCL device.
pub fn splits(device: &burn::tensor::Device, kv_heads: usize) -> Option<usize> {
    match device.as_dispatch() {
        DispatchDevice::Cube(device) => Some(kernel::grid::splits(&device.client(), kv_heads)),
        DispatchDevice::Autodiff(inner) => match &**inner {
            DispatchDevice::Cube(device) => Some(kernel::grid::splits(&device.client(), kv_heads)),
            _ => None,
        },
        #[allow(unreachable_patterns)]
        _ => None,
    }
}
