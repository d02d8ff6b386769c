//! What was aimed at.

use crate::shape::Shape;

/// The least ratio to the best BF16 attention that counts as reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// The method.
    pub method: &'static str,
    /// The problem.
    pub shape: Shape,
    /// The ratio.
    pub ratio: f64,
}

const fn target(method: &'static str, batch: usize, context: usize, ratio: f64) -> Target {
    let shape = Shape::new(batch, context << 10);
    Target {
        method,
        shape,
        ratio,
    }
}

/// What the kernels were built for, on an H200.
pub const TARGETS: &[Target] = &[
    target("oscar", 1, 2, 1.0),
    target("oscar", 1, 8, 2.5),
    target("oscar", 1, 32, 4.0),
    target("oscar", 1, 128, 5.5),
    target("oscar", 8, 32, 5.6),
    target("oscar", 32, 8, 5.0),
    target("oscar", 16, 64, 6.4),
    target("transform_coded", 1, 128, 5.0),
    target("transform_coded", 16, 64, 6.2),
    target("oscar_scaled", 16, 64, 4.5),
];
