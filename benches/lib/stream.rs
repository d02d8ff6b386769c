//! How fast the device reads its memory.

use burn::tensor::Device;

use crate::Result;
use crate::results::StreamRow;
use crate::timing::Effort;
#[cfg(feature = "cube")]
use crate::timing::direct;

/// Bytes that are read in one pass.
#[cfg(feature = "cube")]
const BYTES: usize = 4 << 30;
/// The same where the run is only a trial.
#[cfg(feature = "cube")]
const QUICK_BYTES: usize = 64 << 20;

/// Times a streaming read of 4 GiB, none of which is in a cache. `None` on a device that is not
/// CubeCL's.
///
/// # Errors
/// [`Error::Device`](crate::Error::Device) where something launched has failed.
#[cfg(feature = "cube")]
pub fn measure(device: &Device, effort: Effort) -> Result<Option<StreamRow>> {
    use burn::backend::DispatchDevice;

    let DispatchDevice::Cube(cube) = device.as_dispatch() else {
        return Ok(None);
    };
    let bytes = if effort.quick { QUICK_BYTES } else { BYTES };
    let memory = kernel::Memory::random(cube.client(), bytes);
    let time = direct(device, effort, 1, |_| memory.read())?;
    drop(memory);
    device.memory_cleanup();
    Ok(Some(StreamRow {
        bytes,
        time,
        tb_s: time.terabytes_per_second(bytes),
    }))
}

/// Without CubeCL there is nothing to measure.
///
/// # Errors
/// None.
#[cfg(not(feature = "cube"))]
pub fn measure(_: &Device, _: Effort) -> Result<Option<StreamRow>> {
    Ok(None)
}

#[cfg(feature = "cube")]
mod kernel {
    use cubecl::client::Client;
    use cubecl::prelude::*;
    use cubecl::server::Handle;

    type Four = Vector<u32, Const<4>>;

    /// Units of a cube.
    const UNITS: u32 = 256;
    /// Cubes of each multiprocessor: all the units that it can hold.
    const CUBES: u32 = 8;

    /// Memory to read.
    pub struct Memory {
        client: Client,
        data: Handle,
        found: Handle,
        bytes: usize,
    }

    impl Memory {
        /// Fills `bytes` bytes with numbers that no two words share.
        #[allow(unsafe_code)]
        pub fn random(client: Client, bytes: usize) -> Self {
            let (data, found) = (client.empty(bytes), client.empty(4));
            let memory = Self {
                client,
                data,
                found,
                bytes,
            };
            let words = bytes / 4;
            // SAFETY: `data` holds `words` words.
            unsafe {
                fill::launch_unchecked(
                    &memory.client,
                    memory.count(),
                    CubeDim::new_1d(UNITS),
                    BufferArg::from_raw_parts(memory.data.clone(), words),
                    words as u32,
                );
            }
            memory
        }

        /// Reads all of it once.
        #[allow(unsafe_code)]
        pub fn read(&self) {
            let vectors = self.bytes / 16;
            // SAFETY: `data` holds `vectors` vectors of four words, `found` one word.
            unsafe {
                stream::launch_unchecked(
                    &self.client,
                    self.count(),
                    CubeDim::new_1d(UNITS),
                    BufferArg::from_raw_parts(self.data.clone(), vectors),
                    BufferArg::from_raw_parts(self.found.clone(), 1),
                    vectors as u32,
                );
            }
        }

        fn count(&self) -> CubeCount {
            let hardware = &self.client.properties().hardware;
            let processors = hardware.num_streaming_multiprocessors.unwrap_or(1);
            CubeCount::Static(CUBES * processors, 1, 1)
        }
    }

    /// Every word another number.
    #[cube(launch_unchecked)]
    fn fill(data: &mut [u32], words: u32) {
        let step = CUBE_COUNT * CUBE_DIM as usize;
        let mut i = ABSOLUTE_POS;
        while i < words as usize {
            data[i] = u32::cast_from(i) * 2654435769u32 + 1u32;
            i += step;
        }
    }

    /// Reads 16 bytes a unit and step, neighbours beside each other, and keeps nothing: the
    /// write that hangs on the data stops the compiler from leaving the reads out.
    #[cube(launch_unchecked)]
    fn stream(data: &[Four], found: &mut [u32], vectors: u32) {
        let step = CUBE_COUNT * CUBE_DIM as usize;
        let mut all = Four::new(0u32);
        let mut i = ABSOLUTE_POS;
        while i < vectors as usize {
            all ^= data[i];
            i += step;
        }
        let low = all.extract(0usize) ^ all.extract(1usize);
        let high = all.extract(2usize) ^ all.extract(3usize);
        if low ^ high == 0x1234_5678u32 {
            found[0] = low;
        }
    }
}
