//! The lab's worker for candle: one JSON request on stdin, one JSON answer on stdout (see
//! protocol.rs). It runs Llama-like GGUF files with candle's quantized Llama: as stored, or
//! dequantized to f32.

use candle_core::quantized::gguf_file::Content;
use candle_core::{D, Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use serde_json::{Value, json};
use std::error::Error;
use std::fs::File;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Number of values of a job's output that are compared.
const COMPARED: usize = 4096;

fn main() {
    match answer() {
        Ok(answer) => println!("{answer}"),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}

fn answer() -> Outcome<Value> {
    let request: Value = serde_json::from_reader(std::io::stdin())?;
    let path = request["model"].as_str().ok_or("no model")?;
    if !path.ends_with(".gguf") {
        return Err("this worker for candle reads GGUF files only: give one with --model".into());
    }
    let in_f32 = match request["dtype"].as_str() {
        Some("auto") => false,
        Some("f32") => true,
        other => return Err(format!("this worker for candle uses weights as stored or in f32, not as {other:?}").into()),
    };
    if in_f32 {
        // SAFETY: no other thread exists yet.
        unsafe { std::env::set_var("CANDLE_DEQUANTIZE_ALL", "1") };
    }
    let tokens: Vec<u32> = request["tokens"].as_array().ok_or("no tokens")?.iter().filter_map(number).collect();
    let job = &request["job"];
    let (steps, rows) = match job.as_str() {
        Some("prefill") => (0, 1),
        _ => match &job["decode"] {
            Value::Null => return Err(format!("candle cannot do {job}: its models expose no activations").into()),
            decode => (number(&decode["steps"]).unwrap_or(1), number(&decode["rows"]).unwrap_or(1) as usize),
        },
    };

    let started = Instant::now();
    let (mut model, weight_bytes) = load(path, in_f32)?;
    let logits: Vec<f32> = prefill(&mut model, &tokens, 1)?.squeeze(0)?.to_vec1()?;
    let load_to_first_token_s = started.elapsed().as_secs_f64();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let top: Vec<Value> = order.iter().take(5).map(|&i| json!([i, finite(logits[i])])).collect();

    let load = status("VmHWM", "/proc/self/status");
    // Resets the peak RSS; if the kernel refuses, all phases share one peak.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let [warmups, repeats] = ["warmups", "repeats"].map(|name| number(&request[name]).unwrap_or(1));
    let (mut samples, mut decoded, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..warmups + repeats {
        let seconds = if steps > 0 {
            let (seconds, new) = decode(&mut model, &tokens, rows, steps)?;
            decoded = new;
            seconds
        } else {
            let started = Instant::now();
            let made: Vec<f32> = prefill(&mut model, &tokens, 1)?.squeeze(0)?.to_vec1()?;
            let seconds = started.elapsed().as_secs_f64();
            values = made.into_iter().take(COMPARED).map(finite).collect();
            seconds
        };
        if index >= warmups {
            samples.push(seconds);
        }
    }
    let run = status("VmHWM", "/proc/self/status");
    Ok(json!({
        "engine": format!("candle {}", env!("CARGO_PKG_VERSION")),
        "load_to_first_token_s": load_to_first_token_s,
        "samples_s": samples,
        "peak_bytes": load.max(run),
        "memory": {
            "load": load,
            "run": run,
            "anonymous": status("RssAnon", "/proc/self/status"),
            "file": status("RssFile", "/proc/self/status"),
            "proportional": status("Pss", "/proc/self/smaps_rollup"),
        },
        "weight_bytes": weight_bytes,
        "top": top,
        "decoded": decoded,
        "values": values,
        "control": [],
    }))
}

/// Loads the model; also returns the bytes of its weights in memory.
fn load(path: &str, in_f32: bool) -> Outcome<(ModelWeights, u64)> {
    let mut file = File::open(path)?;
    let content = Content::read(&mut file)?;
    let bytes = |count: usize, block: usize, size: usize| (if in_f32 { count * 4 } else { count / block * size }) as u64;
    let infos = content.tensor_infos.values();
    let all = infos.map(|i| bytes(i.shape.elem_count(), i.ggml_dtype.block_size(), i.ggml_dtype.type_size())).sum();
    Ok((ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?, all))
}

/// Builds rows of equal length: each is the prompt rotated by one more token.
fn batch(tokens: &[u32], rows: usize) -> Outcome<Tensor> {
    let n = tokens.len();
    let all: Vec<u32> = (0..rows).flat_map(|row| (0..n).map(move |i| tokens[(i + row) % n])).collect();
    Ok(Tensor::from_vec(all, (rows, n), &Device::Cpu)?)
}

/// Returns the last position's logits of every row, `[rows, vocab]`.
fn prefill(model: &mut ModelWeights, tokens: &[u32], rows: usize) -> Outcome<Tensor> {
    model.clear_kv_cache();
    let all = batch(tokens, rows)?;
    if rows == 1 {
        return Ok(model.forward(&all, 0)?);
    }
    // candle's quantized head rejects the last position of several rows, which is not contiguous.
    // So rows are fed one position at a time.
    let mut logits = None;
    for position in 0..tokens.len() {
        logits = Some(model.forward(&all.narrow(1, position, 1)?.contiguous()?, position)?);
    }
    Ok(logits.ok_or("no tokens")?)
}

/// Returns the seconds of one step and the first row's tokens.
fn decode(model: &mut ModelWeights, tokens: &[u32], rows: usize, steps: u32) -> Outcome<(f64, Vec<u32>)> {
    let mut logits = prefill(model, tokens, rows)?;
    let mut new = Vec::new();
    let started = Instant::now();
    let mut next = logits.argmax(D::Minus1)?;
    for step in 0..steps as usize {
        new.push(next.to_vec1::<u32>()?[0]);
        logits = model.forward(&next.unsqueeze(1)?, tokens.len() + step)?;
        next = logits.argmax(D::Minus1)?;
    }
    new.push(next.to_vec1::<u32>()?[0]);
    Ok((started.elapsed().as_secs_f64() / f64::from(steps), new))
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|n| n.try_into().ok())
}

/// Converts a float; JSON has no non-finite numbers.
fn finite(x: f32) -> Value {
    if x.is_finite() { json!(x) } else { json!(x.to_string().to_lowercase()) }
}

fn status(key: &str, file: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.split(':').next() == Some(key));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) * 1024
}
