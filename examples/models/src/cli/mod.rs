//! What command lines on these models share: options, device, session, output, errors.

mod args;
mod device;
mod error;
mod output;
mod session;
mod warnings;

pub use args::{ModelArgs, positive, read_text};
pub use device::DeviceChoice;
pub use error::CliError;
pub use output::{note, print, print_json, progress};
pub use session::Session;
