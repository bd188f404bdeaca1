//! Counters of loads and unloads.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as MetricRegistry;

/// The model that a metric is about.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ModelLabels {
    pub model: String,
}

/// Loads and unloads of models.
#[derive(Clone)]
pub struct ResidencyMetrics {
    loads: Family<ModelLabels, Counter>,
    unloads: Family<ModelLabels, Counter>,
    seconds: Histogram,
}

/// Upper bounds of the durations of loads in seconds.
const LOAD_SECONDS: [f64; 10] = [0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0];

impl ResidencyMetrics {
    /// Creates the counters and adds them to those that `/metrics` shows.
    pub fn register(all: &mut MetricRegistry) -> ResidencyMetrics {
        let metrics = ResidencyMetrics {
            loads: Family::default(),
            unloads: Family::default(),
            seconds: Histogram::new(LOAD_SECONDS),
        };
        all.register("model_loads", "Loads of models on demand", metrics.loads.clone());
        all.register("model_unloads", "Models that were unloaded for others", metrics.unloads.clone());
        all.register("model_load_seconds", "Duration of loads on demand", metrics.seconds.clone());
        metrics
    }

    /// Counts a load with its duration.
    pub fn count_load(&self, model: &str, seconds: f64) {
        self.loads.get_or_create(&ModelLabels { model: model.into() }).inc();
        self.seconds.observe(seconds);
    }

    /// Counts an unload.
    pub fn count_unload(&self, model: &str) {
        self.unloads.get_or_create(&ModelLabels { model: model.into() }).inc();
    }
}
