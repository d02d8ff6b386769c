//! Tensors that are needed on the host.

use burn::tensor::{Bool, Tensor};

use crate::error::{Error, Result};

/// The numbers of a tensor, row by row.
pub(super) fn numbers<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>> {
    tensor
        .try_into_vec_as()
        .map_err(|error| Error::Execution(error.to_string()))
}

/// The flags of a mask, row by row.
pub(crate) fn flags<const D: usize>(mask: Tensor<D, Bool>) -> Result<Vec<bool>> {
    let flags: Vec<i32> = mask
        .int()
        .try_into_vec_as()
        .map_err(|error| Error::Execution(error.to_string()))?;
    Ok(flags.into_iter().map(|flag| flag != 0).collect())
}
