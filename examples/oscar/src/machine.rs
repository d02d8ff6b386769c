//! Where a measurement ran.

use std::{fs, thread::available_parallelism};

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

/// The commit of this binary's sources, with `-dirty` where they had been changed.
pub const COMMIT: &str = env!("BURN_OSCAR_COMMIT");

/// The machine of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor, as the system names it.
    pub cpu: String,
    /// Threads that it runs at once.
    pub cores: usize,
    /// The device that ran the model: the part's own name, or that of the backend.
    pub device: String,
}

impl Machine {
    /// This machine and a device of it.
    pub fn of(device: &Device) -> Self {
        Self {
            cpu: cpu().unwrap_or_else(|| std::env::consts::ARCH.to_string()),
            cores: available_parallelism().map_or(1, usize::from),
            device: device_name(device),
        }
    }
}

/// Linux only; elsewhere the architecture has to do.
fn cpu() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

fn device_name(device: &Device) -> String {
    #[cfg(any(
        feature = "cpu",
        feature = "cuda",
        feature = "rocm",
        feature = "wgpu",
        feature = "vulkan",
        feature = "metal"
    ))]
    if let Some(identity) = device.identity() {
        return identity.name;
    }
    let debug = format!("{:?}", device.as_dispatch());
    let word = debug.split(|c: char| !c.is_alphanumeric()).next();
    word.unwrap_or("device").to_lowercase()
}
