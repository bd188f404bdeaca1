//! Counters and histograms for `/metrics`, in the Prometheus text format.

use crate::registry::{ModelLabels, Registry, ResidencyMetrics};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as MetricRegistry;
use std::sync::Mutex;
use std::time::Duration;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RouteLabels {
    method: String,
    route: String,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ErrorLabels {
    kind: String,
}

/// The metrics of a server.
pub struct Metrics {
    registry: Mutex<MetricRegistry>,
    requests: Family<RouteLabels, Counter>,
    errors: Family<ErrorLabels, Counter>,
    durations: Histogram,
    first_token: Histogram,
    between_tokens: Histogram,
    prompt_tokens: Family<ModelLabels, Counter>,
    generated_tokens: Family<ModelLabels, Counter>,
    load: LoadGauges,
    /// Loads of models.
    pub residency: ResidencyMetrics,
}

/// Gauges of the schedulers, set when the metrics are read.
#[derive(Default)]
struct LoadGauges {
    running: Family<ModelLabels, Gauge>,
    waiting: Family<ModelLabels, Gauge>,
    rows: Family<ModelLabels, Gauge>,
    kv_bytes: Family<ModelLabels, Gauge>,
    capture_bytes: Family<ModelLabels, Gauge>,
    loaded: Family<ModelLabels, Gauge>,
    model_bytes: Family<ModelLabels, Gauge>,
    stored_bytes: Gauge,
}

/// Upper bounds of latencies in seconds.
const SECONDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

impl Metrics {
    pub fn new() -> Metrics {
        let latency = || Histogram::new(SECONDS);
        let mut all = MetricRegistry::with_prefix("pellucid");
        let metrics = Metrics {
            registry: Mutex::default(),
            requests: Family::default(),
            errors: Family::default(),
            durations: latency(),
            first_token: latency(),
            between_tokens: latency(),
            prompt_tokens: Family::default(),
            generated_tokens: Family::default(),
            load: LoadGauges::default(),
            residency: ResidencyMetrics::register(&mut all),
        };
        all.register("requests", "Finished requests", metrics.requests.clone());
        all.register("errors", "Errors by kind", metrics.errors.clone());
        all.register("request_seconds", "Time to the response's headers", metrics.durations.clone());
        all.register("first_token_seconds", "Time to the first token", metrics.first_token.clone());
        all.register("between_tokens_seconds", "Time between two tokens of a row", metrics.between_tokens.clone());
        all.register("prompt_tokens", "Prompt tokens", metrics.prompt_tokens.clone());
        all.register("generated_tokens", "Generated tokens", metrics.generated_tokens.clone());
        let load = &metrics.load;
        all.register("running_requests", "Requests in passes (batch size)", load.running.clone());
        all.register("waiting_requests", "Requests in the queue", load.waiting.clone());
        all.register("running_rows", "Rows in passes", load.rows.clone());
        all.register("kv_bytes", "Bytes reserved for KV caches of running requests", load.kv_bytes.clone());
        all.register("capture_bytes", "Bytes reserved for captures of running requests", load.capture_bytes.clone());
        all.register("model_loaded", "1 if the model is in memory, else 0", load.loaded.clone());
        all.register("model_bytes", "Bytes of the weights in memory", load.model_bytes.clone());
        all.register("stored_capture_bytes", "Bytes of captures that wait to be fetched", load.stored_bytes.clone());
        Metrics { registry: Mutex::new(all), ..metrics }
    }

    /// Counts a response.
    pub fn count_request(&self, method: &str, route: &str, status: u16, duration: Duration) {
        let labels = RouteLabels { method: method.into(), route: route.into(), status };
        self.requests.get_or_create(&labels).inc();
        self.durations.observe(duration.as_secs_f64());
    }

    /// Counts an error, also one in the middle of a stream.
    pub fn count_error(&self, kind: &str) {
        self.errors.get_or_create(&ErrorLabels { kind: kind.into() }).inc();
    }

    /// Counts the prompt tokens of a request.
    pub fn count_prompt(&self, model: &str, tokens: usize) {
        self.prompt_tokens.get_or_create(&ModelLabels { model: model.into() }).inc_by(tokens as u64);
    }

    /// Counts a generated token, with the time since the request or since the row's last token.
    pub fn count_token(&self, model: &str, is_first: bool, since: Duration) {
        self.generated_tokens.get_or_create(&ModelLabels { model: model.into() }).inc();
        let histogram = if is_first { &self.first_token } else { &self.between_tokens };
        histogram.observe(since.as_secs_f64());
    }

    /// Writes all metrics.
    pub fn encode(&self, models: &Registry, stored_bytes: usize) -> String {
        for model in models.states() {
            let (labels, is_loaded) = (ModelLabels { model: model.id }, model.load.is_some());
            let load = model.load.unwrap_or_default();
            let set = |gauges: &Family<ModelLabels, Gauge>, value: usize| {
                gauges.get_or_create(&labels).set(value as i64);
            };
            set(&self.load.running, load.running);
            set(&self.load.waiting, load.waiting);
            set(&self.load.rows, load.rows);
            set(&self.load.kv_bytes, load.kv_bytes);
            set(&self.load.capture_bytes, load.capture_bytes);
            set(&self.load.loaded, usize::from(is_loaded));
            set(&self.load.model_bytes, model.bytes);
        }
        self.load.stored_bytes.set(stored_bytes as i64);
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &registry);
        text
    }
}
