//! A small decoder made of burn-nn parts, and what it takes to serve it with a 2-bit cache.
//!
//! [`attention`] has the two forwards side by side, one file each: [dense](attention::dense), as the
//! model was written and is trained, and [cached](attention::cached), as it is served. The rest is
//! an ordinary Burn program: [`model`], [`train`] with a Burn learner, [`generate`].

pub mod attention;
pub mod generate;
pub mod model;
pub mod text;
pub mod train;
