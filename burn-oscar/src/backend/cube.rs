//! CubeCL runtimes: fused kernels where there are some, else the portable bodies.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_cubecl::CubeBackend;

use super::KvCacheOps;
use super::types::{Demotion, KvLayer};
use crate::kernel::pack;

impl KvCacheOps for CubeBackend {
    fn kv_write_pages(
        layer: KvLayer<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        pages: IntTensor<Self>,
    ) -> KvLayer<Self> {
        pack::write_pages(layer, key, value, pages)
    }

    fn kv_demote(layer: KvLayer<Self>, moves: Vec<Demotion>) -> KvLayer<Self> {
        pack::demote(layer, &moves)
    }
}
