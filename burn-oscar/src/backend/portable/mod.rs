//! Default bodies: the cache's operations in Burn operations, on real packed bits.
//!
//! Written for clarity first; they run on every backend and are the oracle of the kernels.

mod affine;
mod attention;
mod midrise;
mod packing;
mod page;
mod tensor;

pub(super) use attention::attend;
pub(super) use page::{read_pages, write_pages};

/// The shape of [`read_pages`]'s result, for lazy backends.
#[cfg(feature = "fusion")]
pub(super) fn read_shape(
    tier: &burn::tensor::Shape,
    pages: &burn::tensor::Shape,
    page_tokens: usize,
) -> burn::tensor::Shape {
    burn::tensor::Shape::from(vec![pages[0], tier[1], page_tokens, tier[3]])
}

#[cfg(test)]
mod tests;
