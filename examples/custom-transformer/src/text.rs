//! The text that the model learns, byte by byte.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// What is learnt where no file is given.
pub const BUILT_IN: &str = "\
The harbour wakes before the town does. Ropes creak, a lamp goes out, and the first boat slips past \
the breakwater with its engine low, as if it did not want to disturb anyone.\n\
By the time the baker opens her shutters the boat is a speck. She counts the loaves, twice, and \
writes the number on the slate: forty on weekdays, sixty on market days, none on the day of the \
storm.\n\
The keeper of the light has written down the weather every morning for thirty years. Wind from the \
west, he writes, sea moderate, sky clearing. He has never once written that it was beautiful, though \
it often was.\n\
At noon the children run down to the slip to see what the boats have brought. Mackerel, mostly, and \
crabs in baskets that are older than the children.\n\
In the evening the lamps are lit again, one after the other, from the harbour up to the chapel, and \
the town counts itself: the boats, the loaves, the children, the light.\n";

/// Tokens of a training window.
pub const WINDOW: usize = 64;

/// Windows of a text, each of `WINDOW` bytes and the one that follows, from places that look random
/// and are the same in every run.
pub fn windows(text: &[u8], count: usize) -> Vec<Vec<u8>> {
    let places = text.len() - WINDOW;
    (0..count)
        .map(|i| {
            let start = i * 7919 % places;
            text[start..start + WINDOW + 1].to_vec()
        })
        .collect()
}

/// Windows as tensors: what a step sees, and what should follow.
#[derive(Clone, Debug)]
pub struct Batch {
    /// `[batch, WINDOW]`
    pub tokens: Tensor<2, Int>,
    /// `[batch, WINDOW]`, one token further on.
    pub targets: Tensor<2, Int>,
}

/// Makes batches for Burn's data loader.
#[derive(Clone, Debug)]
pub struct Bytes;

impl Batcher<Vec<u8>, Batch> for Bytes {
    fn batch(&self, windows: Vec<Vec<u8>>, device: &Device) -> Batch {
        let part = |from: usize| {
            let rows = windows.iter().map(|window| &window[from..from + WINDOW]);
            let ids: Vec<i64> = rows.flatten().map(|&byte| i64::from(byte)).collect();
            Tensor::from_data(TensorData::new(ids, [windows.len(), WINDOW]), device)
        };
        Batch {
            tokens: part(0),
            targets: part(1),
        }
    }
}
