//! The result of one method over all windows.

use burn_oscar::{MemoryReport, Method};
use serde::Serialize;

use super::{EvaluateOptions, Tally};

/// What one method did to a text. Serialises to the JSON object that `perplexity --json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct MethodScore {
    /// The method's name.
    pub method: String,
    /// exp(`nll`).
    pub ppl: f64,
    /// Mean negative log likelihood over all scored positions, in nats.
    pub nll: f64,
    /// `nll` minus `exact_nll`.
    pub delta_nll: f64,
    /// Mean KL(exact || method) over the whole vocabulary, in nats.
    pub kl: f64,
    /// Share of positions where method and exact cache prefer the same token.
    pub top1: f64,
    /// Bits per stored number at the end of a window, parameters and exact windows included.
    pub bits_per_value: f64,
    /// Bytes that the cache's tokens occupy at the end of a window.
    pub bytes: usize,
    /// Bytes that the same tokens occupy in 16 bits.
    pub exact_bytes: usize,
    /// exp(`exact_nll`).
    pub exact_ppl: f64,
    /// The exact cache's `nll`.
    pub exact_nll: f64,
    /// Tokens of a window.
    pub window: usize,
    /// Windows scored.
    pub windows: usize,
    /// Tokens read: `window` times `windows`.
    pub tokens: usize,
    /// Positions scored.
    pub scored: usize,
    /// The first position of each window that was scored.
    pub positions_from: usize,
    /// Tokens kept exact at the start.
    pub sink: usize,
    /// Newest tokens kept exact, at least.
    pub recent: usize,
    /// Time of the method's passes through the model, scoring excluded.
    pub seconds: f64,
    /// How far the windows lie apart.
    pub spread: Spread,
    /// Each window by itself.
    pub per_window: Vec<WindowScore>,
    #[serde(skip)]
    total: Tally,
}

/// Sample standard deviations over the windows; absent where there is one window only.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Spread {
    /// Of `nll`: mostly that some windows are harder than others.
    pub nll: Option<f64>,
    /// Of `nll - exact_nll`.
    pub delta_nll: Option<f64>,
    /// Of `kl`.
    pub kl: Option<f64>,
    /// Of `top1`.
    pub top1: Option<f64>,
}

/// The means over one window; the fields are those of [`MethodScore`].
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WindowScore {
    /// The window's first token in the text.
    pub start: usize,
    /// exp(`nll`).
    pub ppl: f64,
    /// In nats.
    pub nll: f64,
    /// exp(`exact_nll`).
    pub exact_ppl: f64,
    /// In nats.
    pub exact_nll: f64,
    /// In nats.
    pub kl: f64,
    /// 0 to 1.
    pub top1: f64,
}

impl MethodScore {
    pub(super) fn new(method: &Method, options: &EvaluateOptions, windows: usize) -> Self {
        Self {
            method: method.name().to_string(),
            ppl: f64::NAN,
            nll: f64::NAN,
            delta_nll: f64::NAN,
            kl: f64::NAN,
            top1: f64::NAN,
            bits_per_value: f64::NAN,
            bytes: 0,
            exact_bytes: 0,
            exact_ppl: f64::NAN,
            exact_nll: f64::NAN,
            window: options.window,
            windows,
            tokens: options.window * windows,
            scored: 0,
            positions_from: options.positions_from.max(1),
            sink: method.sink(),
            recent: method.recent(),
            seconds: 0.0,
            spread: Spread::default(),
            per_window: Vec::with_capacity(windows),
            total: Tally::default(),
        }
    }

    pub(super) fn add_window(
        &mut self,
        start: usize,
        tally: Tally,
        memory: &MemoryReport,
        seconds: f64,
    ) {
        self.total.add(&tally);
        let nll = tally.mean(tally.nll);
        let exact_nll = tally.mean(tally.exact_nll);
        self.per_window.push(WindowScore {
            start,
            ppl: nll.exp(),
            nll,
            exact_ppl: exact_nll.exp(),
            exact_nll,
            kl: tally.mean(tally.kl),
            top1: tally.mean(tally.agreed as f64),
        });
        // All windows are equally long, so each ends with the same memory.
        self.bits_per_value = memory.bits_per_value;
        self.bytes = memory.resident_bytes;
        self.exact_bytes = memory.exact_bytes;
        self.seconds += seconds;
    }

    pub(super) fn finish(&mut self) {
        let total = self.total;
        self.nll = total.mean(total.nll);
        self.exact_nll = total.mean(total.exact_nll);
        self.ppl = self.nll.exp();
        self.exact_ppl = self.exact_nll.exp();
        self.delta_nll = self.nll - self.exact_nll;
        self.kl = total.mean(total.kl);
        self.top1 = total.mean(total.agreed as f64);
        self.scored = total.positions;
        let spread = |value: fn(&WindowScore) -> f64| {
            deviation(&self.per_window.iter().map(value).collect::<Vec<_>>())
        };
        self.spread = Spread {
            nll: spread(|w| w.nll),
            delta_nll: spread(|w| w.nll - w.exact_nll),
            kl: spread(|w| w.kl),
            top1: spread(|w| w.top1),
        };
    }

    /// How many times smaller the cache is than the same tokens in 16 bits.
    pub fn ratio(&self) -> f64 {
        self.exact_bytes as f64 / self.bytes.max(1) as f64
    }
}

/// The sample standard deviation, with `n - 1` in the denominator; absent for fewer than two values.
pub fn deviation(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::deviation;

    #[test]
    fn one_window_has_no_spread() {
        assert_eq!(deviation(&[1.0]), None);
        assert_eq!(deviation(&[1.0, 3.0]), Some(2.0f64.sqrt()));
    }
}
