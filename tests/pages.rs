//! The pages of the book with Rust in them: each block is a documentation test.

macro_rules! pages {
    ($($page:ident $path:literal)*) => {$(
        #[doc = include_str!($path)]
        mod $page {}
    )*};
}

pages! {
    readme "../README.md"
    any_model "../docs/any-model.md"
    backends "../docs/backends.md"
    calibration "../docs/calibration.md"
    first_steps "../docs/first-steps.md"
    errors "../docs/errors.md"
    memory "../docs/memory.md"
    methods "../docs/methods.md"
}
