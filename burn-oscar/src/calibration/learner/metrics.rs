//! What the job shows while it runs.

use std::sync::Arc;

use burn::tensor::TensorReadError;
use burn::train::metric::state::{FormatOptions, NumericMetricState};
use burn::train::metric::{
    Adaptor, Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes,
    NumericEntry, SerializedEntry,
};

use super::model::{Compared, Observed};

/// Which number of an item a metric shows.
pub(super) trait Number: Clone + Send + Sync + 'static {
    const NAME: &'static str;
    const UNIT: Option<&'static str> = None;
    const HIGHER_IS_BETTER: bool = false;

    fn of(number: f64) -> Self;
    fn value(&self) -> f64;
}

macro_rules! number {
    ($name:ident, $shown:literal, $unit:expr, $higher:literal, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Copy)]
        pub(super) struct $name(f64);

        impl Number for $name {
            const NAME: &'static str = $shown;
            const UNIT: Option<&'static str> = $unit;
            const HIGHER_IS_BETTER: bool = $higher;

            fn of(number: f64) -> Self {
                Self(number)
            }

            fn value(&self) -> f64 {
                self.0
            }
        }
    };
}

number!(
    Tokens,
    "Tokens per window",
    Some("tokens"),
    true,
    "Tokens observed of a window."
);
number!(
    Distance,
    "Subspace distance",
    None,
    false,
    "How far the bases moved between the last two checkpoints, 0 to 1."
);
number!(
    OutputError,
    "Attention output error",
    None,
    false,
    "Relative squared error of the attention outputs on held-out text."
);
number!(
    AttentionKl,
    "Attention KL",
    Some("nats"),
    false,
    "Divergence of the attention weights on held-out text."
);

/// The metric of a [`Number`].
#[derive(Clone)]
pub(super) struct NumberMetric<N> {
    name: MetricName,
    state: NumericMetricState,
    number: std::marker::PhantomData<fn() -> N>,
}

impl<N: Number> NumberMetric<N> {
    pub fn new() -> Self {
        Self {
            name: Arc::new(N::NAME.to_string()),
            state: NumericMetricState::default(),
            number: std::marker::PhantomData,
        }
    }

    fn format(&self) -> FormatOptions {
        let options = FormatOptions::new(self.name.clone()).precision(5);
        match N::UNIT {
            Some(unit) => options.unit(unit),
            None => options,
        }
    }
}

impl<N: Number> Metric for NumberMetric<N> {
    type Input = N;

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: N::UNIT.map(str::to_string),
            higher_is_better: N::HIGHER_IS_BETTER,
        }
        .into()
    }

    fn update(
        &mut self,
        number: &N,
        _metadata: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        self.state.update(number.value(), 1);
        Ok(self.state.compute_update(self.format()))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(self.state.compute_final(self.format()))
    }

    fn clear(&mut self) {
        self.state.reset();
    }
}

impl<N: Number> Numeric for NumberMetric<N> {
    fn value(&self) -> Option<NumericEntry> {
        Some(self.state.current_value())
    }

    fn running_value(&self) -> Option<NumericEntry> {
        Some(self.state.running_value())
    }

    fn final_value(&self) -> NumericEntry {
        self.state.final_value()
    }
}

impl Adaptor<Tokens> for Observed {
    fn adapt(&self) -> Tokens {
        Tokens::of(self.tokens as f64)
    }
}

impl Adaptor<Distance> for Observed {
    fn adapt(&self) -> Distance {
        // Before there are two checkpoints nothing is known, and nothing is near.
        Distance::of(self.distance.unwrap_or(1.0))
    }
}

impl Adaptor<OutputError> for Compared {
    fn adapt(&self) -> OutputError {
        OutputError::of(self.mean(|layer| layer.output_error()))
    }
}

impl Adaptor<AttentionKl> for Compared {
    fn adapt(&self) -> AttentionKl {
        AttentionKl::of(self.mean(|layer| layer.attention_kl()))
    }
}
