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

/// The ratios of the CUDA C++ prototypes of both page formats on an H200, without exact tiers.
pub const TARGETS: &[Target] = &[
    target("oscar", 1, 8, 2.5),
    target("oscar", 1, 32, 3.9),
    target("oscar", 1, 128, 5.5),
    target("oscar", 8, 32, 5.6),
    target("oscar", 32, 8, 5.5),
    target("oscar", 16, 64, 6.5),
    target("transform_coded", 1, 8, 2.5),
    target("transform_coded", 1, 32, 3.8),
    target("transform_coded", 1, 128, 4.7),
    target("transform_coded", 8, 32, 5.3),
    target("transform_coded", 32, 8, 4.9),
    target("transform_coded", 16, 64, 6.2),
];
