//! `--device`: which of the compiled-in backends runs the model.

use std::{fmt, str::FromStr};

use burn::tensor::Device;

use super::CliError;

/// A device by name, with an index where a machine has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    kind: DeviceName,
    index: Option<usize>,
}

/// The backends there are. Each is a Cargo feature of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceName {
    Auto,
    Flex,
    Cpu,
    Cuda,
    Rocm,
    Metal,
    Vulkan,
    Wgpu,
}

/// Every name with whether this build contains it, the one that `auto` prefers first.
const DEVICES: &[(DeviceName, &str, bool)] = &[
    (DeviceName::Cuda, "cuda", cfg!(feature = "cuda")),
    (DeviceName::Rocm, "rocm", cfg!(feature = "rocm")),
    (DeviceName::Metal, "metal", cfg!(feature = "metal")),
    (DeviceName::Vulkan, "vulkan", cfg!(feature = "vulkan")),
    (DeviceName::Wgpu, "wgpu", cfg!(feature = "wgpu")),
    (DeviceName::Flex, "flex", cfg!(feature = "flex")),
    (DeviceName::Cpu, "cpu", cfg!(feature = "cpu")),
];

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(self.kind))?;
        match self.index {
            Some(index) => write!(f, ":{index}"),
            None => Ok(()),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, index) = match text.split_once(':') {
            Some((name, index)) => (name, Some(index)),
            None => (text, None),
        };
        let kind = if name == "auto" {
            DeviceName::Auto
        } else {
            DEVICES
                .iter()
                .find(|(_, known, _)| *known == name)
                .map(|(kind, ..)| *kind)
                .ok_or_else(|| {
                    format!("there is no device `{name}`; there are auto, {}", names())
                })?
        };
        let index = index
            .map(|index| {
                index.parse().map_err(|_| {
                    format!("`{index}` is not a device number: write `{name}:0` for the first")
                })
            })
            .transpose()?;
        if index.is_some() && matches!(kind, DeviceName::Auto | DeviceName::Flex | DeviceName::Cpu)
        {
            return Err(format!("`{name}` takes no device number"));
        }
        Ok(Self { kind, index })
    }
}

impl DeviceChoice {
    /// Makes the device and runs a first operation on it.
    ///
    /// # Errors
    /// [`CliError::Usage`] if the backend is not compiled in, or does not start on this machine.
    pub fn open(self) -> Result<Device, CliError> {
        let device = match self.kind {
            DeviceName::Auto => {
                let best = DEVICES
                    .iter()
                    .find(|(_, _, compiled)| *compiled)
                    .ok_or_else(|| not_compiled("flex"))?;
                Self {
                    kind: best.0,
                    index: None,
                }
            }
            _ => self,
        };
        let made = device.make();
        made.ok_or_else(|| not_compiled(name_of(self.kind)))
            .and_then(|made| device.probe(made))
    }

    /// `None` where the backend is not compiled in.
    #[allow(unreachable_patterns)]
    fn make(self) -> Option<Device> {
        match self.kind {
            #[cfg(feature = "flex")]
            DeviceName::Flex => Some(Device::flex()),
            #[cfg(feature = "cpu")]
            DeviceName::Cpu => Some(Device::cpu()),
            #[cfg(feature = "cuda")]
            DeviceName::Cuda => Some(Device::cuda(self.index.unwrap_or(0))),
            #[cfg(feature = "rocm")]
            DeviceName::Rocm => Some(Device::rocm(self.index.unwrap_or(0))),
            #[cfg(feature = "metal")]
            DeviceName::Metal => Some(Device::metal(self.adapter())),
            #[cfg(feature = "vulkan")]
            DeviceName::Vulkan => Some(Device::vulkan(self.adapter())),
            #[cfg(feature = "wgpu")]
            DeviceName::Wgpu => Some(Device::wgpu(self.adapter())),
            _ => None,
        }
    }

    /// The adapter of a graphics API: the one it prefers, or a discrete GPU by number.
    #[cfg(any(feature = "metal", feature = "vulkan", feature = "wgpu"))]
    fn adapter(self) -> burn::tensor::DeviceKind {
        use burn::tensor::DeviceKind;
        self.index
            .map_or(DeviceKind::DefaultDevice, DeviceKind::DiscreteGpu)
    }

    /// Backends start at their first operation, and panic if there is no driver.
    fn probe(self, device: Device) -> Result<Device, CliError> {
        use burn::tensor::Tensor;
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let probed = std::panic::catch_unwind({
            let device = device.clone();
            move || {
                let sum = Tensor::<1>::ones([2], &device).sum();
                sum.try_into_data().map_err(|error| error.to_string())
            }
        });
        std::panic::set_hook(hook);
        let reason = match probed {
            Ok(Ok(_)) => return Ok(device),
            Ok(Err(reason)) => reason,
            Err(panic) => panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
                .unwrap_or_else(|| "no reason given".to_string()),
        };
        Err(CliError::Usage(format!(
            "device {self} does not start on this machine: {reason}\nTry `--device flex`, which \
             needs no driver"
        )))
    }
}

fn name_of(kind: DeviceName) -> &'static str {
    DEVICES
        .iter()
        .find(|(known, ..)| *known == kind)
        .map_or("auto", |(_, name, _)| name)
}

fn names() -> String {
    DEVICES
        .iter()
        .map(|(_, name, _)| *name)
        .collect::<Vec<_>>()
        .join(", ")
}

fn not_compiled(name: &str) -> CliError {
    let compiled: Vec<_> = DEVICES
        .iter()
        .filter(|(_, _, compiled)| *compiled)
        .map(|(_, name, _)| *name)
        .collect();
    CliError::Usage(format!(
        "device {name} is not part of this build, which has: {}\nBuild it in with `--features \
         {name}`",
        if compiled.is_empty() {
            "none".to_string()
        } else {
            compiled.join(", ")
        }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_parsed() {
        let choice: DeviceChoice = "cuda:3".parse().expect("valid");
        assert_eq!(choice.to_string(), "cuda:3");
        assert_eq!(
            "auto".parse::<DeviceChoice>().expect("valid").to_string(),
            "auto"
        );
        for wrong in ["tpu", "cuda:x", "flex:1", "auto:0", ""] {
            assert!(wrong.parse::<DeviceChoice>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_missing_backend_names_its_feature() {
        for (kind, name, compiled) in DEVICES {
            if !compiled {
                let choice = DeviceChoice {
                    kind: *kind,
                    index: None,
                };
                let error = choice.open().map(|_| ()).expect_err("not compiled in");
                assert!(error.to_string().contains(&format!("--features {name}")));
            }
        }
    }

    #[test]
    #[cfg(feature = "flex")]
    fn flex_starts() {
        assert!(
            "flex"
                .parse::<DeviceChoice>()
                .expect("valid")
                .open()
                .is_ok()
        );
    }
}
