//! Default bodies: the cache's operations in Burn operations, on real packed bits.
//!
//! Written for clarity first; they run on every backend and are the oracle of the kernels.

mod affine;
mod attention;
mod midrise;
mod packing;
mod page;
mod tensor;

pub(super) use attention::{append, attend};
pub(super) use page::{read_pages, write_pages};

#[cfg(test)]
mod tests;
