//! Reports on directories that are not models by themselves: adapters, autoencoders, pipelines.

use std::path::{Path, PathBuf};

use pellucid_engine::Remedy;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::report::{Report, Support};
use super::{native, sae, weights};
use crate::adapter;
use crate::listing::Listing;
use crate::select_family::select_family;
use crate::{Error, Result};

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

/// Describes an adapter (LoRA).
pub(super) fn adapter(listing: &Listing, assume: Option<&str>, report: &mut Report) {
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
    match fitting_base(&listing.dir, assume) {
        // An adapter given as a model is merged into its base.
        Ok(base_dir) if super::inspect_as(&base_dir, assume).is_ok_and(|report| report.runs()) => {
            report.support = Support::Native;
        }
        Ok(base_dir) => report.refuse(
            format!("its base model ({}) does not run", base_dir.display()),
            Remedy::InspectPath(base_dir.display().to_string()),
        ),
        Err(error) if lora && matches!(error.cause(), Error::Usage { .. }) => {
            let remedy = Remedy::LoadBaseOfAdapter { base: base.clone(), adapter: report.path.clone() };
            report.refuse("an adapter is not a model by itself", remedy);
        }
        Err(error) => report.refuse_for(error.cause()),
    }
    add_bases(base, report);
    weights::count_all(listing, report);
    let [safetensors, torch] = adapter::WEIGHTS;
    if listing.has(torch) && !listing.has(safetensors) {
        weights::count_torch(&listing.dir.join(torch), report);
    }
    report.memory = native::estimate(report);
}

/// The directory of an adapter's base model, if the adapter fits it.
fn fitting_base(dir: &Path, assume: Option<&str>) -> Result<PathBuf> {
    let selected = select_family(Some(dir), assume)?;
    selected.check_adapter()?;
    Ok(selected.source.origin().to_path_buf())
}

/// Describes one sparse autoencoder or a release of many.
pub(super) fn sae(listing: &Listing, report: &mut Report) {
    report.support = Support::InspectOnly;
    let description = sae::describe_listing(listing);
    report.model_type = description.kinds.first().cloned();
    add_bases(description.base_models.clone(), report);
    report.sae = Some(description);
    report.refuse(
        "sparse autoencoders are not a model by themselves",
        "load the model that they were trained on, and use them with it",
    );
    weights::count_all(listing, report);
}

/// Describes an image pipeline, or a part of one.
pub(super) fn diffusers(listing: &Listing, config: Option<&Value>, report: &mut Report) {
    report.support = Support::InspectOnly;
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
    report.refuse("image pipelines do not run here", "use the `diffusers` library; Pellucid runs language models");
    weights::count_all(listing, report);
}

fn add_bases(bases: impl IntoIterator<Item = String>, report: &mut Report) {
    for base in bases {
        if !report.base_model.contains(&base) {
            report.base_model.push(base);
        }
    }
}
