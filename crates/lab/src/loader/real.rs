//! The real model that `TEST_MODEL_PATH` names: described, inspected, opened.

use super::{Benchmark, Category, settings, ways};
use crate::{Error, Result};
use pellucid_models::inspect::{Format, Report, TokenizerState};
use pellucid_models::{LoadedModel, inspect, pull};
use std::path::{Path, PathBuf};

/// The metadata value by which the gate of opening knows its model.
pub const SMOLLM2: &str = "SmolLM2-135M";

/// The benchmarks of a model: a directory, a GGUF file or a pulled name. What they must say is what inspection says of it beforehand.
///
/// # Errors
/// If there is nothing of that name.
pub fn benchmarks(name: &str) -> Result<Vec<Benchmark>> {
    let fail = |error: pellucid_models::Error| Error::Suite {
        suite: super::NAME.into(),
        problem: format!("{} is `{name}`: {error}", settings::MODEL),
    };
    let path = pull::resolve(name).map_err(fail)?;
    let report = inspect(&path).map_err(fail)?;
    let mut list = vec![described(&path, &report), full(&path, &report)];
    if matches!(report.tokenizer.state, TokenizerState::Present | TokenizerState::Rebuilt) {
        list.push(tokenizer(&path, &report));
    }
    if report.runs() {
        list.push(open(&path, &report));
    }
    let model = if is_smollm2(&report) { SMOLLM2.into() } else { shown(&path) };
    Ok(list.into_iter().map(|benchmark| benchmark.with("model", &model)).collect())
}

fn kind(model_type: Option<&str>, native: bool) -> String {
    format!("{}, {}", model_type.unwrap_or("no type"), if native { "native" } else { "not native" })
}

fn described(path: &Path, report: &Report) -> Benchmark {
    let path = path.to_owned();
    let say = |info: &inspect::ModelInfo| kind(info.model_type.as_deref(), info.is_supported);
    let expected = kind(report.model_type.as_deref(), report.support == inspect::Support::Native);
    let run = move || inspect::get_model_info(&path);
    Benchmark::new("real_model_info", Category::Loading, "get_model_info", expected, run, say).slow()
}

fn full(path: &Path, report: &Report) -> Benchmark {
    let (path, expected) = (path.to_owned(), format!("{} parameters", report.parameters));
    let say = |report: &pellucid_models::Result<Report>| match report {
        Ok(report) => format!("{} parameters", report.parameters),
        Err(error) => format!("error: {error}"),
    };
    Benchmark::new("real_model_report", Category::Loading, "inspect", expected, move || inspect(&path), say).slow()
}

fn tokenizer(path: &Path, report: &Report) -> Benchmark {
    let path = path.to_owned();
    let expected = report.tokenizer.vocab.map_or_else(String::new, |vocab| format!("{vocab} tokens"));
    let say = |found: &pellucid_models::Result<pellucid_models::tokenizer::Tokenizer>| match found {
        Ok(tokenizer) => format!("{} tokens", tokenizer.vocab_size()),
        Err(error) => format!("error: {error}"),
    };
    let run = move || ways::tokenizer(&path);
    Benchmark::new("real_model_tokenizer", Category::Loading, ways::TOKENIZER, expected, run, say).slow()
}

fn open(path: &Path, report: &Report) -> Benchmark {
    let path: PathBuf = path.to_owned();
    let expected = format!("{} layers, ready to run", report.layers.unwrap_or_default());
    let say = |found: &pellucid_models::Result<LoadedModel>| match found {
        Ok(loaded) => format!("{} layers, ready to run", loaded.model.program().architecture().layers.len()),
        Err(error) => format!("error: {error}"),
    };
    let run = move || ways::open(&path);
    Benchmark::new("real_model_open", Category::Loading, ways::OPEN, expected, run, say).slow()
}

/// Whether this is the model, in safetensors, that the gate of opening was made for.
fn is_smollm2(report: &Report) -> bool {
    let sizes = (report.layers, report.width, report.vocab);
    report.format == Format::Directory
        && report.model_type.as_deref() == Some("llama")
        && sizes == (Some(30), Some(576), Some(49152))
}

fn shown(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}
