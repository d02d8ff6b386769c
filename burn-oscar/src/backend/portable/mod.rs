//! Default bodies: the cache's operations in Burn operations, on real packed bits.
//!
//! Written for clarity first; they run on every backend and are the oracle of the kernels.

mod affine;
mod attention;
mod demote;
mod midrise;
mod packing;
mod page;
mod tensor;

pub(super) use attention::{append, attend};
pub(super) use demote::demote;
pub(super) use page::{read_pages, write_pages};

// What the kernels share with these bodies.
#[cfg(feature = "cube")]
pub(crate) use affine::{LARGEST_ZERO, SMALLEST_RANGE};
#[cfg(feature = "cube")]
pub(crate) use demote::leaving;
#[cfg(feature = "cube")]
pub(crate) use midrise::{CANDIDATES, gaussian_step};
#[cfg(feature = "cube")]
pub(crate) use page::write_side;
#[cfg(feature = "cube")]
pub(crate) use tensor::{Ints, Real};

#[cfg(test)]
mod tests;
