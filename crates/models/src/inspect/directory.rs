//! A directory, whatever is in it.

use std::path::Path;

use serde_json::Value;

use super::report::{Category, Format, Report, Support};
use super::{gguf, model_card, native, shape, tokenizer, weights};
use crate::checkpoint::Checkpoint;
use crate::identify::category;
use crate::identify::peek::Peek;
use crate::listing::Listing;
use crate::tensors::Tensors;
use crate::{Error, Result, json};

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
    report.custom_code = custom_code(&listing, config.as_ref());
    model_card::read(&listing, &mut report);
    match (report.category, config) {
        (Category::Unknown, config) => unknown(&listing, config.as_ref(), assume, &mut report),
        (Category::Adapter, _) => adapter(&listing, &mut report),
        (Category::Sae, config) => sae(&listing, config.as_ref(), &mut report),
        (Category::Diffusers, config) => diffusers(&listing, config.as_ref(), &mut report),
        (_, Some(config)) => model(&listing, &config, assume, &mut report),
        // The other categories come from a configuration, so this one has been reported as damaged.
        (_, None) => {}
    }
    report
}

/// The configuration, and what it tells at a glance.
fn configuration(listing: &Listing) -> Result<(Option<Value>, Option<Peek>)> {
    let Some(bytes) = listing.settings("config.json")? else { return Ok((None, None)) };
    let origin = listing.dir.join("config.json");
    let (config, peek) = (json::parse(&bytes, &origin)?, Peek::read(&bytes, &origin)?);
    Ok((Some(with_sidecar(config, &listing.dir)), Some(peek)))
}

/// The configuration with what an older checkpoint says about quantisation in a file of its own.
fn with_sidecar(mut config: Value, dir: &Path) -> Value {
    if let Value::Object(object) = &mut config
        && !object.contains_key("quantization_config")
        && let Some(part) = crate::quantised::sidecar(dir)
    {
        object.insert("quantization_config".into(), part);
    }
    config
}

/// A model with a configuration: described by it, and asked whether it would load.
fn model(listing: &Listing, config: &Value, assume: Option<&str>, report: &mut Report) {
    named(config, report);
    report.quantisation = shape::quantisation(config);
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
    tokenizer::of_directory(listing, report);
}

fn named(config: &Value, report: &mut Report) {
    report.model_type = config.get("model_type").and_then(Value::as_str).map(str::to_owned);
    report.architecture = shape::class(config).map(str::to_owned);
}

/// Small weights beside a base model.
fn adapter(listing: &Listing, report: &mut Report) {
    report.support = Support::InspectOnly;
    let mut base = None;
    match listing.json("adapter_config.json") {
        Ok(config) => {
            let text = |key: &str| config.as_ref().and_then(|config| config.get(key)?.as_str()).map(str::to_owned);
            report.model_type = text("peft_type");
            report.architecture =
                config.as_ref().and_then(|c| c.pointer("/auto_mapping/base_model_class")?.as_str()).map(str::to_owned);
            base = text("base_model_name_or_path").filter(|name| !name.is_empty());
        }
        Err(error) => report.refuse_for(&error),
    }
    let lora = report.model_type.as_deref().is_some_and(|kind| kind.eq_ignore_ascii_case("lora"));
    match crate::model::fitting_base(&listing.dir) {
        // Given as a model, it is merged into its base.
        Ok(found) if super::inspect(&found).is_ok_and(|report| report.runs()) => report.support = Support::Native,
        Ok(found) => report.refuse(
            format!("its base model ({}) does not run", found.display()),
            format!("`pellucid inspect {}` says why", found.display()),
        ),
        Err(Error::Usage { .. }) if lora => {
            let whose =
                base.as_deref().map_or_else(|| "its base model".into(), |name| format!("its base model ({name})"));
            let base = base.as_deref().unwrap_or("BASE");
            report.refuse(
                "an adapter is not a model by itself",
                format!("load {whose} with it: --model {base} --adapter {}", report.path),
            );
        }
        Err(error) => report.refuse_for(&error),
    }
    add_base(base, report);
    weights::count_all(listing, report);
    report.memory = native::estimate(report);
}

/// Sparse autoencoders, one or a release of many.
fn sae(listing: &Listing, config: Option<&Value>, report: &mut Report) {
    report.support = Support::InspectOnly;
    let own = listing.json("cfg.json").ok().flatten();
    let settings = || own.as_ref().into_iter().chain(config);
    let text = |path: &str| settings().find_map(|settings| settings.pointer(path)?.as_str()).map(str::to_owned);
    report.model_type = text("/architecture").or_else(|| text("/trainer/dict_class"));
    let base = ["/model_name", "/metadata/model_name", "/trainer/lm_name"].iter().find_map(|path| text(path));
    add_base(base, report);
    report.refuse(
        "sparse autoencoders are not a model by themselves",
        "load the model that they were trained on, and use them with it",
    );
    weights::count_all(listing, report);
}

fn diffusers(listing: &Listing, config: Option<&Value>, report: &mut Report) {
    report.support = Support::InspectOnly;
    let index = listing.json("model_index.json").ok().flatten();
    let class = [index.as_ref(), config].into_iter().flatten().find_map(|config| config.get("_class_name")?.as_str());
    report.architecture = class.map(str::to_owned);
    report.refuse("image pipelines do not run here", "use the `diffusers` library; Pellucid runs language models");
    weights::count_all(listing, report);
}

/// Nothing recognised: say what is there, because that decides what to do.
fn unknown(listing: &Listing, config: Option<&Value>, assume: Option<&str>, report: &mut Report) {
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

fn add_base(base: Option<String>, report: &mut Report) {
    if let Some(base) = base
        && !report.base_model.contains(&base)
    {
        report.base_model.insert(0, base);
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
