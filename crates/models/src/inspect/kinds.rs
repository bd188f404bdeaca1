//! Reports on directories that are not models by themselves: adapters, autoencoders, pipelines.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::opened::OpenedModel;
use super::report::{Report, Support};
use super::{native, weights};
use crate::adapter;
use crate::category::sae;
use crate::listing::Listing;

/// A component of an image pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Component {
    /// Name of its directory.
    pub name: String,
    /// Class that it is loaded as.
    pub class: Option<String>,
    /// Library that defines the class.
    pub library: Option<String>,
    /// Whether its directory exists.
    pub present: bool,
}

/// Describes an adapter (LoRA), and checks whether it and its base model load.
pub(super) fn adapter(listing: &Listing, opened: &OpenedModel, report: &mut Report) {
    opened.report_error(report);
    // An adapter given as a model is merged into its base, whose problems count.
    if let Ok(selected) = &opened.selected {
        let merged = native::check_source(selected, &[]);
        report.support = if merged.runs() { Support::Native } else { Support::InspectOnly };
        report.take_verdict(merged);
    }
    // Loading reports settings that cannot be read.
    if let Ok(Some(config)) = listing.json(adapter::CONFIG) {
        let text = |key: &str| config.pointer(key).and_then(Value::as_str).map(str::to_owned);
        report.model_type = text("/peft_type");
        report.architecture = text("/auto_mapping/base_model_class");
        add_bases(text("/base_model_name_or_path").filter(|name| !name.is_empty()), report);
    }
    weights::count_all(listing, report);
    let [safetensors, torch] = adapter::WEIGHTS;
    if listing.has(torch) && !listing.has(safetensors) {
        weights::count_torch(&listing.dir.join(torch), report);
    }
    report.memory = native::estimate(report);
}

/// Describes one sparse autoencoder or a release of many.
pub(super) fn sae(listing: &Listing, report: &mut Report) {
    let description = sae::describe_listing(listing);
    report.model_type = description.kinds.first().cloned();
    add_bases(description.base_models.clone(), report);
    report.sae = Some(description);
}

/// Describes an image pipeline, or a part of one.
pub(super) fn diffusers(listing: &Listing, config: Option<&Value>, report: &mut Report) {
    let index = listing.json("model_index.json").ok().flatten();
    let class = [index.as_ref(), config].into_iter().flatten().find_map(|config| config.get("_class_name")?.as_str());
    report.architecture = class.map(str::to_owned);
    let listed = index.as_ref().and_then(Value::as_object).into_iter().flatten();
    let listed = listed.filter(|(name, _)| !name.starts_with('_')).filter_map(|(name, value)| {
        let text = |at: usize| value.get(at)?.as_str().map(str::to_owned);
        // An omitted component is a pair of nulls.
        let [library, class] = [text(0), text(1)];
        (library.is_some() || class.is_some()).then(|| Component {
            name: name.clone(),
            class,
            library,
            present: listing.has_dir(name),
        })
    });
    report.components = listed.collect();
}

fn add_bases(bases: impl IntoIterator<Item = String>, report: &mut Report) {
    for base in bases {
        if !report.base_model.contains(&base) {
            report.base_model.push(base);
        }
    }
}
