//! CubeCL runtimes. The fused kernels will stand here; until then the portable bodies serve.

impl super::KvCacheOps for burn_cubecl::CubeBackend {}
