//! The schedule in Chrome's trace format, which Perfetto opens too.

use super::spans::{RequestSpans, Span, assign_lanes, spans};
use super::{Schedule, tokens_of};
use serde_json::{Value, json};

const MICROSECONDS: f64 = 1e6;

/// Returns a Chrome trace: one thread for each lane of requests, one for the passes, and counters
/// of tokens, waiting requests and reserved bytes.
pub fn chrome_trace(schedule: &Schedule) -> Value {
    let mut requests = spans(schedule);
    let lanes = assign_lanes(&mut requests);
    let name = |tid: usize, name: String| json!({"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}});
    let mut events = vec![name(0, "passes".into())];
    events.extend((0..lanes).map(|lane| name(lane + 1, format!("lane {lane}"))));
    events.extend(requests.iter().flat_map(|request| events_of(schedule, request)));
    for (number, pass) in schedule.passes.iter().enumerate() {
        let (prompt, decode) = tokens_of(pass);
        let (at, duration) = (pass.start.as_secs_f64() * MICROSECONDS, pass.duration.as_secs_f64() * MICROSECONDS);
        let counter = |name: &str, args: Value| json!({"ph": "C", "name": name, "pid": 1, "ts": at, "args": args});
        events.push(json!({
            "ph": "X", "name": format!("pass {number}"), "cat": "pass", "pid": 1, "tid": 0, "ts": at, "dur": duration,
            "args": {"requests": pass.requests.len(), "prompt_tokens": prompt, "decode_tokens": decode},
        }));
        events.push(counter("tokens", json!({"prompt": prompt, "decode": decode})));
        events.push(counter("requests", json!({"running": pass.requests.len(), "waiting": pass.waiting})));
        events.push(counter("reserved bytes", json!({"kv": pass.kv_bytes, "captures": pass.capture_bytes})));
    }
    json!({"traceEvents": events, "displayTimeUnit": "ms"})
}

fn events_of(schedule: &Schedule, request: &RequestSpans) -> Vec<Value> {
    let label = schedule.requests.get(request.request).map_or("", |request| request.label.as_str());
    let event = |span: &Span| {
        let phase = if span.is_prompt { "prompt" } else { "decode" };
        json!({
            "ph": "X", "name": label, "cat": phase, "pid": 1, "tid": request.lane + 1,
            "ts": span.start * MICROSECONDS, "dur": (span.end - span.start) * MICROSECONDS,
            "args": {"phase": phase, "tokens": span.tokens, "passes": span.passes},
        })
    };
    request.spans.iter().map(event).collect()
}
