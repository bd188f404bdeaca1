//! Describes autoencoders: base model and hook points, from the settings files of each layout.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::{SITES, SaeLayout, walk};
use crate::gguf::{self, GgufFile};
use crate::listing::Listing;
use crate::sae::formats::Summary;
use crate::sae::settings::{BASE_MODEL_KEYS, text_at};

/// One autoencoder or a release of many.
#[derive(Debug, Clone, Default, PartialEq, Serialize, schemars::JsonSchema)]
#[schemars(rename = "Description")]
pub struct SaeDescription {
    /// Storage layouts.
    pub layouts: Vec<SaeLayout>,
    /// Number of autoencoders.
    pub count: usize,
    /// Whether there are more than were counted.
    pub more: bool,
    /// Kinds, as named in the settings: `jumprelu`, `AutoEncoderTopK`.
    pub kinds: Vec<String>,
    /// Models that they were trained on.
    pub base_models: Vec<String>,
    /// Input hook points, as named in the settings: `blocks.5.hook_resid_post`,
    /// `model.layers.5.output`.
    pub hooks: Vec<String>,
    /// Output hook points of transcoders.
    pub hooks_out: Vec<String>,
}

/// Limits of directories read and names listed.
const MAX_DIRS: usize = 2048;
const MAX_NAMES: usize = 512;

/// Describes every autoencoder in a directory.
pub fn describe(dir: &Path) -> std::io::Result<SaeDescription> {
    let listing = Listing::read(dir)?;
    Ok(describe_listing(&listing))
}

pub(crate) fn describe_listing(listing: &Listing) -> SaeDescription {
    let mut all = SaeDescription::default();
    let complete = walk(listing, MAX_DIRS, &mut |directory, format| {
        all.add(format.layout, (format.describe)(directory));
        true
    });
    for name in listing.files_with_suffix(".gguf") {
        if let Some(vector) = GgufFile::open(listing.dir.join(name)).ok().filter(is_vector) {
            all.add(SaeLayout::ControlVector, control_vector(&vector));
        }
    }
    if all.count == 0 && listing.dirs().any(|dir| SITES.contains(&dir)) {
        let hooks = listing.dirs().filter(|dir| SITES.contains(dir)).map(str::to_owned).collect();
        all.add(SaeLayout::Sites, Summary { base_model: base_model(listing), hooks, ..Summary::default() });
    }
    all.more = !complete;
    all
}

/// Describes a GGUF control vector.
pub fn describe_gguf(file: &GgufFile) -> SaeDescription {
    let mut all = SaeDescription::default();
    all.add(SaeLayout::ControlVector, control_vector(file));
    all
}

impl SaeDescription {
    fn add(&mut self, layout: SaeLayout, summary: Summary) {
        fn push<T: PartialEq>(list: &mut Vec<T>, new: impl IntoIterator<Item = T>) {
            for value in new {
                if list.len() < MAX_NAMES && !list.contains(&value) {
                    list.push(value);
                }
            }
        }
        self.count += summary.count;
        push(&mut self.layouts, [layout]);
        push(&mut self.kinds, summary.kind);
        push(&mut self.base_models, summary.base_model);
        push(&mut self.hooks, summary.hooks);
        push(&mut self.hooks_out, summary.hooks_out);
    }
}

/// The base model of a release. Tries the settings files of the first directories, level by level,
/// before searching the whole tree.
pub(crate) fn base_model(listing: &Listing) -> Option<String> {
    let named = |dir: &Path| ["config.json", "cfg.json"].iter().find_map(|file| model_name(&dir.join(file)));
    let own = ["config.json", "cfg.json"].iter().filter(|file| listing.has(file));
    let near = own.map(|file| listing.dir.join(file)).find_map(|file| model_name(&file));
    near.or_else(|| {
        /// Directories tried per level; the directories of a release have the same kind of
        /// settings.
        const MAX_TRIED: usize = 8;
        let dirs: Vec<_> = listing.inner_dirs().take(MAX_TRIED).collect();
        let inside = || dirs.iter().take(MAX_TRIED).filter_map(|dir| Listing::read(dir).ok());
        dirs.iter()
            .find_map(|dir| named(dir))
            .or_else(|| inside().find_map(|inner| inner.inner_dirs().take(MAX_TRIED).find_map(|dir| named(&dir))))
    })
    .or_else(|| {
        let mut found = None;
        walk(listing, MAX_DIRS, &mut |inner, format| {
            found = (format.describe)(inner).base_model;
            found.is_none()
        });
        found
    })
    .or_else(|| {
        let vectors = listing.files_with_suffix(".gguf").filter_map(|name| GgufFile::open(listing.dir.join(name)).ok());
        vectors.filter(is_vector).find_map(|vector| control_vector(&vector).base_model)
    })
}

/// The base model that a settings file names.
fn model_name(file: &Path) -> Option<String> {
    let value = read_json(file)?;
    // In a model's own configuration these keys mean other things.
    value.get("model_type").is_none().then(|| text_at(&value, BASE_MODEL_KEYS))?
}

fn is_vector(file: &GgufFile) -> bool {
    file.architecture().is_ok_and(|name| name == "controlvector")
}

fn control_vector(file: &GgufFile) -> Summary {
    let hint = match file.value("controlvector.model_hint") {
        Some(gguf::Value::Text(text)) if !text.is_empty() => Some(text.clone()),
        _ => None,
    };
    let mut layers: Vec<usize> =
        file.tensors().iter().filter_map(|tensor| tensor.name.strip_prefix("direction.")?.parse().ok()).collect();
    layers.sort_unstable();
    let hooks: Vec<String> = layers.iter().map(|layer| format!("direction.{layer}")).collect();
    Summary { count: 1, kind: Some("control vector".into()), base_model: hint, hooks, hooks_out: Vec::new() }
}

fn read_json(file: &Path) -> Option<Value> {
    const MAX_BYTES: u64 = 1 << 20;
    serde_json::from_slice(&crate::files::first_bytes(file, MAX_BYTES).ok()?).ok()
}
