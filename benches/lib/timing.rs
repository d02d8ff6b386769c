//! How a call is timed: captured in a graph, its inputs cold, many samples.

use std::time::Instant;

use burn::tensor::{Device, capture};
use serde::{Deserialize, Serialize};

use crate::device::sync;
use crate::{Error, Result};

/// Inputs of all copies together exceed this, so that each call finds none of its own in a cache.
const COLD_BYTES: usize = 300_000_000;
/// A graph holds at least this many calls, so that its launch costs little of each.
const CALLS: usize = 32;
/// A sample lasts this long at least, in seconds, so that the last synchronisation costs little.
const SAMPLE: f64 = 0.02;

/// How much is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Timed samples.
    pub repeats: usize,
    /// Short samples and two copies.
    pub quick: bool,
}

impl Effort {
    /// Copies of an input of `bytes` bytes to rotate over: more than a cache holds, 2 to 64.
    pub fn copies(&self, bytes: usize) -> usize {
        if self.quick {
            return 2;
        }
        COLD_BYTES.div_ceil(bytes.max(1)).clamp(2, 64)
    }

    /// Calls in one graph over `copies` copies: whole rounds.
    pub fn calls(&self, copies: usize) -> usize {
        if self.quick {
            copies
        } else {
            CALLS.div_ceil(copies) * copies
        }
    }
}

/// Microseconds of one call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median of the samples.
    pub median_us: f64,
    /// The shortest.
    pub min_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Spread {
    /// Of samples in seconds, each of `calls` calls.
    fn new(mut samples: Vec<f64>, calls: usize) -> Self {
        samples.sort_by(f64::total_cmp);
        let call = |sample: f64| sample * 1e6 / calls as f64;
        Self {
            median_us: call(samples[samples.len() / 2]),
            min_us: call(samples[0]),
            max_us: call(samples[samples.len() - 1]),
        }
    }

    /// TB/s of `bytes` bytes in the median call.
    pub fn terabytes_per_second(&self, bytes: usize) -> f64 {
        bytes as f64 / self.median_us / 1e6
    }
}

/// What timing a captured call found.
#[derive(Clone, Copy, Debug)]
pub struct Captured {
    /// Per call.
    pub spread: Spread,
    /// Whether a hardware graph was replayed; if not, the calls were made again one by one.
    pub graph: bool,
}

/// Times `calls` calls captured in one graph. `call(i)` makes the i-th and returns what must stay
/// alive for it; whatever it reads and writes must outlive the closure's calls.
///
/// # Errors
/// [`Error::Device`] where something launched has failed.
pub fn captured<T>(
    device: &Device,
    effort: Effort,
    calls: usize,
    mut call: impl FnMut(usize) -> T,
) -> Result<Captured> {
    let mut graph = capture(device, || (0..calls).map(&mut call).collect::<Vec<T>>());
    let hardware = graph.is_hardware();
    let mut replay = || {
        // SAFETY: the graph owns its closure and outputs, `call` holds its inputs, nothing else
        // uses the device until `sync`, and all of it is on the stream of this thread.
        #[allow(unsafe_code)]
        let output = unsafe { graph.replay() };
        debug_assert_eq!(output.len(), calls);
    };
    let spread = samples(device, effort, calls, &mut replay)?;
    Ok(Captured {
        spread,
        graph: hardware,
    })
}

/// Times calls launched one by one, `calls` different ones in turn: for what a graph does not hold.
///
/// # Errors
/// [`Error::Device`] where something launched has failed.
pub fn direct(
    device: &Device,
    effort: Effort,
    calls: usize,
    mut call: impl FnMut(usize),
) -> Result<Spread> {
    samples(device, effort, calls, &mut || {
        (0..calls).for_each(&mut call)
    })
}

/// Samples of enough runs of `run`, which makes `calls` calls.
fn samples(device: &Device, effort: Effort, calls: usize, run: &mut dyn FnMut()) -> Result<Spread> {
    let mut sample = |runs: usize| {
        sync(device)?;
        let start = Instant::now();
        for _ in 0..runs {
            run();
        }
        sync(device)?;
        Ok::<_, Error>(start.elapsed().as_secs_f64())
    };
    // The first run may still compile.
    sample(1)?;
    let once = sample(1)?;
    let runs = if effort.quick {
        1
    } else {
        ((SAMPLE / once.max(1e-6)).ceil() as usize).max(1)
    };
    sample(runs)?;
    let times = (0..effort.repeats)
        .map(|_| sample(runs))
        .collect::<Result<Vec<f64>>>()?;
    Ok(Spread::new(times, runs * calls))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_exceed_the_cache() {
        let effort = Effort {
            repeats: 5,
            quick: false,
        };
        for bytes in [1, 1 << 20, 6 << 20, 100 << 20, 4 << 30] {
            let copies = effort.copies(bytes);
            assert!((2..=64).contains(&copies));
            assert!(copies == 64 || copies * bytes >= COLD_BYTES);
            let calls = effort.calls(copies);
            assert!(calls >= CALLS && calls.is_multiple_of(copies));
        }
    }

    #[test]
    fn a_spread_is_per_call() {
        let spread = Spread::new(vec![3e-6, 1e-6, 8e-6], 2);
        assert_eq!(spread.min_us, 0.5);
        assert!((spread.median_us - 1.5).abs() < 1e-12);
        assert_eq!(spread.max_us, 4.0);
        assert!((spread.terabytes_per_second(3_000_000) - 2.0).abs() < 1e-9);
    }
}
