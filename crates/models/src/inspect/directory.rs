//! A directory, whatever is in it.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::peek::Peek;
use super::report::{Category, Format, Report, Support};
use super::{category, gguf, kinds, model_card, native, parts, shape, tokenizer, weights};
use crate::checkpoint::Checkpoint;
use crate::listing::Listing;
use crate::tensors::Tensors;
use crate::{Result, json, quantised};

/// Describes a directory.
pub(super) fn inspect(dir: &Path, assume: Option<&str>) -> Report {
    let mut report = Report::new(dir, Format::Directory);
    let listing = match Listing::read(dir) {
        Ok(listing) => listing,
        Err(error) => {
            report.refuse(format!("the directory cannot be read: {error}"), "check its permissions");
            return report;
        }
    };
    let (config, peek) = configuration(&listing).unwrap_or_else(|error| {
        report.refuse_for(&error);
        (None, None)
    });
    report.category = category::of_directory(&listing, peek.as_ref());
    report.custom_code = custom_code(&listing, config.as_deref());
    model_card::read(&listing, &mut report);
    report.modalities.omni = peek.as_ref().is_some_and(category::is_omni);
    match (report.category, config) {
        (Category::Adapter, _) => kinds::adapter(&listing, assume, &mut report),
        (Category::Sae, _) => kinds::sae(&listing, &mut report),
        (Category::Diffusers, config) => kinds::diffusers(&listing, config.as_deref(), &mut report),
        (Category::Unknown, config) => unknown(&listing, config.as_ref(), assume, &mut report),
        (_, Some(config)) => model(&listing, &config, assume, &mut report),
        // Told by its tensors alone, or with a configuration that is damaged.
        (_, None) => unknown(&listing, None, assume, &mut report),
    }
    report
}

/// The configuration, and what it tells at a glance.
fn configuration(listing: &Listing) -> Result<(Option<Arc<Value>>, Option<Peek>)> {
    let Some(bytes) = listing.settings("config.json")? else { return Ok((None, None)) };
    let origin = listing.dir.join("config.json");
    let config = json::parse_config(&bytes, &origin)?;
    let peek = Peek::of(&config, &origin)?;
    Ok((Some(Arc::new(quantised::with_sidecar(config, &listing.dir))), Some(peek)))
}

/// A model with a configuration: described by it, and asked whether it would load.
fn model(listing: &Listing, config: &Arc<Value>, assume: Option<&str>, report: &mut Report) {
    named(config, report);
    parts::read(config, report);
    report.quantisation = shape::quantisation(config);
    report.dtype = shape::dtype(config);
    let origin = listing.dir.join("config.json");
    let native = native::read(config, &origin, assume, report);
    match &native {
        Some(native) => {
            let tensors = weights::open(listing, &native.uncounted(), report);
            let tensors = tensors.and_then(|tensors| {
                native::dequantised(tensors, config, &listing.dir).map_err(|error| report.refuse_for(&error)).ok()
            });
            native.check(tensors.as_ref(), &listing.dir, report);
        }
        None => {
            let tied = config.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false);
            let uncounted =
                |name: &str| (tied && name.ends_with("lm_head.weight")) || name.ends_with(".rotary_emb.inv_freq");
            let place = report.problems.len().saturating_sub(1);
            let tensors = weights::open(listing, &uncounted, report);
            let tensors = tensors.and_then(|tensors| native::dequantised(tensors, config, &listing.dir).ok());
            native::offer(config, &origin, assume, tensors.as_ref(), place, report);
            report.memory = native::estimate(report);
        }
    }
    parts::finish(config, report);
    tokenizer::of_directory(listing, report);
}

fn named(config: &Value, report: &mut Report) {
    report.model_type = config.get("model_type").and_then(Value::as_str).map(str::to_owned);
    report.architecture = shape::class(config).map(str::to_owned);
}

/// Nothing recognised: say what is there, because that decides what to do.
fn unknown(listing: &Listing, config: Option<&Arc<Value>>, assume: Option<&str>, report: &mut Report) {
    if report.category != Category::Unknown {
        report.support = Support::InspectOnly;
    }
    let ggufs: Vec<&str> = listing.ending(".gguf").collect();
    if let ([file], None, true) = (&ggufs[..], config, report.problems.is_empty()) {
        let path = report.path.clone();
        gguf::inspect(&listing.dir.join(file), assume, report);
        report.path = path;
        report.refuse(
            "a directory of one GGUF file is not opened by itself",
            format!("give the file: {}", listing.dir.join(file).display()),
        );
        return;
    }
    weights::count_all(listing, report);
    if let Some(config) = config {
        report.refuse(
            "config.json names neither a `model_type` nor a class",
            "get config.json anew from where the model came from",
        );
        let tensors = Checkpoint::open(&listing.dir).ok().map(Tensors::Checkpoint);
        let place = report.problems.len() - 1;
        native::offer(config, &listing.dir.join("config.json"), assume, tensors.as_ref(), place, report);
    } else if !ggufs.is_empty() {
        report.refuse(
            format!("there is no config.json here, but several GGUF files: {}", ggufs.join(", ")),
            "give one of them",
        );
    } else if listing.has_dir("config.json") {
        report.refuse(
            "config.json is a directory, where a file is expected",
            "get the model anew from where it came from",
        );
    } else if listing.is_empty() {
        report.refuse("the directory is empty", "give a Hugging Face model directory or a .gguf file");
    } else if report.problems.is_empty() {
        let inside = listing.dirs().find(|dir| listing.dir.join(dir).join("config.json").is_file());
        let remedy = match inside {
            Some(dir) => format!("there is one in {dir}: give that directory"),
            None => {
                "give a Hugging Face model directory or a .gguf file; where a download was not finished, run it again"
                    .into()
            }
        };
        report.refuse("there is no config.json here", remedy);
    }
}

/// Python files that a model brings, and those that its configuration would have executed.
fn custom_code(listing: &Listing, config: Option<&Value>) -> Vec<String> {
    let mut files: Vec<String> = listing.ending(".py").map(str::to_owned).collect();
    let map = config.and_then(|config| config.get("auto_map")?.as_object());
    for class in map.into_iter().flat_map(|map| map.values()).filter_map(Value::as_str) {
        // `owner/name--modeling_x.Class`: the code of another repository.
        let (file, _) = class.rsplit_once('.').unwrap_or((class, ""));
        let file = format!("{file}.py");
        if !files.contains(&file) {
            files.push(file);
        }
    }
    files
}
