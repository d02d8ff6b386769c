//! The arrays of one side's pages, held to be written in place.

use std::sync::Arc;

use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use crate::backend::{OptionalTensor, PackedPages};
use crate::quantizer::PageSpec;

/// A pool of packed pages that nobody else holds.
pub struct Pool {
    pub words: CubeTensor,
    pub pairs: Option<CubeTensor>,
    pub norms: Option<CubeTensor>,
    pub means: Option<CubeTensor>,
    spec: Arc<PageSpec>,
}

impl Pool {
    pub fn new(packed: PackedPages<CubeBackend>) -> Self {
        Self {
            words: own(packed.words),
            pairs: own_optional(packed.pairs),
            norms: own_optional(packed.norms),
            means: own_optional(packed.means),
            spec: packed.spec,
        }
    }

    pub fn tensors(&self) -> impl Iterator<Item = &CubeTensor> {
        let optional = [&self.pairs, &self.norms, &self.means];
        std::iter::once(&self.words).chain(optional.into_iter().flatten())
    }

    pub fn into_packed(self) -> PackedPages<CubeBackend> {
        PackedPages {
            words: self.words,
            pairs: optional(self.pairs),
            norms: optional(self.norms),
            means: optional(self.means),
            spec: self.spec,
        }
    }
}

/// The tensor itself if nobody else holds it, else a copy.
pub fn own(tensor: CubeTensor) -> CubeTensor {
    match tensor.can_mut() && tensor.is_nonoverlapping() {
        true => tensor,
        false => tensor.copy(),
    }
}

fn own_optional(tensor: OptionalTensor<CubeBackend>) -> Option<CubeTensor> {
    match tensor {
        OptionalTensor::Present(tensor) => Some(own(tensor)),
        OptionalTensor::Absent => None,
    }
}

fn optional(tensor: Option<CubeTensor>) -> OptionalTensor<CubeBackend> {
    tensor.map_or(OptionalTensor::Absent, OptionalTensor::Present)
}
