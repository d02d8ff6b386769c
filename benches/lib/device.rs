//! Which device is measured, and what it is called.

use burn::tensor::Device;
use clap::ValueEnum;

use crate::{Error, Result};

/// A device by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceName {
    /// The first NVIDIA GPU.
    Cuda,
    /// CubeCL's CPU runtime: shows that a benchmark runs, not how fast.
    Cpu,
    /// Burn's pure-Rust CPU backend: the same.
    Flex,
}

impl DeviceName {
    /// Opens it.
    ///
    /// # Errors
    /// [`Error::NoDevice`] where its feature is off.
    pub fn open(self) -> Result<Device> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda => Ok(Device::cuda(0)),
            #[cfg(feature = "cpu")]
            Self::Cpu => Ok(Device::cpu()),
            #[cfg(feature = "flex")]
            Self::Flex => Ok(Device::flex()),
            #[allow(unreachable_patterns)]
            other => Err(Error::NoDevice(format!("{other:?}").to_lowercase())),
        }
    }
}

/// Waits until everything launched has run.
///
/// # Errors
/// [`Error::Device`] where something launched has failed.
pub fn sync(device: &Device) -> Result<()> {
    device
        .sync()
        .map_err(|error| Error::Device(error.to_string()))
}

/// The name of the part, as it gives it.
pub fn name(device: &Device) -> String {
    #[cfg(feature = "cube")]
    if let Some(identity) = device.identity() {
        return identity.name;
    }
    let debug = format!("{:?}", device.as_dispatch());
    let word = debug.split(|c: char| !c.is_alphanumeric()).next();
    word.unwrap_or("device").to_string()
}

/// A device's name as a folder's: `NVIDIA H200` becomes `nvidia-h200`.
pub fn slug(name: &str) -> String {
    let lower = name.to_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric());
    words
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join("-")
}

#[cfg(test)]
mod tests {
    #[test]
    fn slugs_are_folder_names() {
        assert_eq!(super::slug("NVIDIA H200"), "nvidia-h200");
        assert_eq!(super::slug(" AMD (R)  X/1 "), "amd-r-x-1");
    }
}
