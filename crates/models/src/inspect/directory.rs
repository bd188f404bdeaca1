//! The report on a directory.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::config_keys::ConfigKeys;
use super::report::{Category, Format, Report, Support};
use super::{category, gguf, kinds, model_card, native, parts, shape, tokenizer, weights};
use crate::checkpoint::Checkpoint;
use crate::listing::Listing;
use crate::tensors::Tensors;
use crate::{Result, json, quantized};

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
    let (config, keys) = configuration(&listing).unwrap_or_else(|error| {
        report.refuse_for(&error);
        (None, None)
    });
    report.category = category::of_directory(&listing, keys.as_ref());
    report.custom_code = custom_code(&listing, config.as_deref());
    model_card::read(&listing, &mut report);
    report.modalities.omni = keys.as_ref().is_some_and(category::is_omni);
    match (report.category, config) {
        (Category::Adapter, _) => kinds::adapter(&listing, assume, &mut report),
        (Category::Sae, _) => kinds::sae(&listing, &mut report),
        (Category::Diffusers, config) => kinds::diffusers(&listing, config.as_deref(), &mut report),
        (Category::Unknown, config) => unknown(&listing, config.as_ref(), assume, &mut report),
        (_, Some(config)) => model(&listing, &config, assume, &mut report),
        // The category comes from tensor names alone, or the configuration is damaged.
        (_, None) => unknown(&listing, None, assume, &mut report),
    }
    report
}

/// The configuration and its identifying keys.
fn configuration(listing: &Listing) -> Result<(Option<Arc<Value>>, Option<ConfigKeys>)> {
    let Some(bytes) = listing.settings("config.json")? else { return Ok((None, None)) };
    let origin = listing.dir.join("config.json");
    let config = json::parse_config(&bytes, &origin)?;
    let keys = ConfigKeys::from_value(&config, &origin)?;
    Ok((Some(Arc::new(quantized::with_sidecar(config, &listing.dir))), Some(keys)))
}

/// Describes a model with a configuration, and checks whether it would load.
fn model(listing: &Listing, config: &Arc<Value>, assume: Option<&str>, report: &mut Report) {
    report_names(config, report);
    parts::read(config, report);
    report.quantization = shape::quantization(config);
    report.dtype = shape::dtype(config);
    let origin = listing.dir.join("config.json");
    let native = native::read(config, &origin, assume, report);
    match &native {
        Some(native) => {
            let tensors = weights::open(listing, &native.uncounted(), report);
            let tensors = tensors.and_then(|tensors| {
                native::dequantize(tensors, config, &listing.dir).map_err(|error| report.refuse_for(&error)).ok()
            });
            native.check(tensors.as_ref(), &listing.dir, report);
        }
        None => {
            let tied = config.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false);
            let uncounted =
                |name: &str| (tied && name.ends_with("lm_head.weight")) || name.ends_with(".rotary_emb.inv_freq");
            let problem_index = report.problems.len().saturating_sub(1);
            let tensors = weights::open(listing, &uncounted, report);
            let tensors = tensors.and_then(|tensors| native::dequantize(tensors, config, &listing.dir).ok());
            native::suggest_family(config, &origin, assume, tensors.as_ref(), problem_index, report);
            report.memory = native::estimate(report);
        }
    }
    parts::finish(config, report);
    tokenizer::inspect_directory(listing, report);
}

fn report_names(config: &Value, report: &mut Report) {
    report.model_type = config.get("model_type").and_then(Value::as_str).map(str::to_owned);
    report.architecture = shape::class(config).map(str::to_owned);
}

/// Describes an unrecognized directory by the files in it, which decide the remedy.
fn unknown(listing: &Listing, config: Option<&Arc<Value>>, assume: Option<&str>, report: &mut Report) {
    if report.category != Category::Unknown {
        report.support = Support::InspectOnly;
    }
    let ggufs: Vec<&str> = listing.files_with_suffix(".gguf").collect();
    if let ([file], None, true) = (&ggufs[..], config, report.problems.is_empty()) {
        let path = report.path.clone();
        gguf::inspect(&listing.dir.join(file), assume, report);
        report.path = path;
        report.refuse(
            "a directory with one GGUF file cannot be opened as a model",
            format!("give the file: {}", listing.dir.join(file).display()),
        );
        return;
    }
    weights::count_all(listing, report);
    if let Some(config) = config {
        report.refuse("config.json names neither a `model_type` nor a class", "download config.json again");
        let tensors = Checkpoint::open(&listing.dir).ok().map(Tensors::Checkpoint);
        let problem_index = report.problems.len() - 1;
        native::suggest_family(
            config,
            &listing.dir.join("config.json"),
            assume,
            tensors.as_ref(),
            problem_index,
            report,
        );
    } else if !ggufs.is_empty() {
        report.refuse(
            format!("there is no config.json here, but several GGUF files: {}", ggufs.join(", ")),
            "give one of them",
        );
    } else if listing.has_dir("config.json") {
        report.refuse("config.json is a directory, where a file is expected", "download the model again");
    } else if listing.is_empty() {
        report.refuse("the directory is empty", "give a Hugging Face model directory or a .gguf file");
    } else if report.problems.is_empty() {
        let inner = listing.dirs().find(|dir| listing.dir.join(dir).join("config.json").is_file());
        let remedy = match inner {
            Some(dir) => format!("there is one in {dir}: give that directory"),
            None => "give a Hugging Face model directory or a .gguf file; if a download was interrupted, run it again"
                .into(),
        };
        report.refuse("there is no config.json here", remedy);
    }
}

/// Python files in the directory, and those that `auto_map` names.
fn custom_code(listing: &Listing, config: Option<&Value>) -> Vec<String> {
    let mut files: Vec<String> = listing.files_with_suffix(".py").map(str::to_owned).collect();
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
