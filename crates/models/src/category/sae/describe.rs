//! Describes autoencoders: base model and hook points, from the settings files of each layout.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::{SITES, SaeLayout, number_in, walk};
use crate::gguf::{self, GgufFile};
use crate::listing::Listing;

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

/// The settings of one directory.
#[derive(Default)]
struct SaeInfo {
    count: usize,
    kind: Option<String>,
    base_model: Option<String>,
    hooks: Vec<String>,
    hooks_out: Vec<String>,
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
    let complete = walk(listing, MAX_DIRS, &mut |directory, layout| {
        all.add(layout, read_settings(directory, layout));
        true
    });
    for name in listing.files_with_suffix(".gguf") {
        if let Some(vector) = GgufFile::open(listing.dir.join(name)).ok().filter(is_vector) {
            all.add(SaeLayout::ControlVector, control_vector(&vector));
        }
    }
    if all.count == 0 && listing.dirs().any(|dir| SITES.contains(&dir)) {
        let hooks = listing.dirs().filter(|dir| SITES.contains(dir)).map(str::to_owned).collect();
        all.add(SaeLayout::Sites, SaeInfo { base_model: base_model(listing), hooks, ..SaeInfo::default() });
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
    fn add(&mut self, layout: SaeLayout, info: SaeInfo) {
        fn push<T: PartialEq>(list: &mut Vec<T>, new: impl IntoIterator<Item = T>) {
            for value in new {
                if list.len() < MAX_NAMES && !list.contains(&value) {
                    list.push(value);
                }
            }
        }
        self.count += info.count;
        push(&mut self.layouts, [layout]);
        push(&mut self.kinds, info.kind);
        push(&mut self.base_models, info.base_model);
        push(&mut self.hooks, info.hooks);
        push(&mut self.hooks_out, info.hooks_out);
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
        walk(listing, MAX_DIRS, &mut |inner, layout| {
            found = read_settings(inner, layout).base_model;
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
    value.get("model_type").is_none().then(|| text(&value, BASE_MODEL_KEYS))?
}

/// JSON pointers to the base model's name.
const BASE_MODEL_KEYS: &[&str] = &["/model_name", "/metadata/model_name", "/trainer/lm_name", "/lm_name"];

/// Reads the settings files of one directory.
fn read_settings(listing: &Listing, layout: SaeLayout) -> SaeInfo {
    let json = |file: &str| listing.json(file).ok().flatten().unwrap_or_default();
    let list = |value: Option<String>| value.into_iter().collect::<Vec<String>>();
    match layout {
        SaeLayout::Saelens => {
            let settings = json("cfg.json");
            let kind = text(&settings, &["/architecture", "/metadata/architecture"]);
            SaeInfo {
                count: 1,
                kind: kind.or_else(|| listing.has("cfg.json").then(|| "standard".into())),
                base_model: text(&settings, BASE_MODEL_KEYS),
                hooks: list(text(
                    &settings,
                    &["/hook_name", "/hook_point", "/metadata/hook_name", "/metadata/hook_point"],
                )),
                hooks_out: list(text(&settings, &["/hook_name_out", "/metadata/hook_name_out"])),
            }
        }
        SaeLayout::GemmaScope => gemma_scope(&listing.dir),
        SaeLayout::GemmaScope2 => {
            let settings = json("config.json");
            SaeInfo {
                count: 1,
                kind: text(&settings, &["/architecture", "/type"]),
                base_model: text(&settings, BASE_MODEL_KEYS),
                hooks: list(text(&settings, &["/hf_hook_point_in"])),
                hooks_out: list(text(&settings, &["/hf_hook_point_out"])),
            }
        }
        SaeLayout::LlamaScope => {
            let settings = if listing.has("hyperparams.json") { json("hyperparams.json") } else { json("config.json") };
            let lm_config = json("lm_config.json");
            SaeInfo {
                count: 1,
                kind: text(&settings, &["/act_fn", "/sae_type"]),
                base_model: text(&settings, BASE_MODEL_KEYS)
                    .or_else(|| text(&lm_config, BASE_MODEL_KEYS))
                    .or_else(|| llama_scope_base(&listing.dir)),
                hooks: list(text(&settings, &["/hook_point_in"])),
                hooks_out: list(text(&settings, &["/hook_point_out"])),
            }
        }
        SaeLayout::DictionaryLearning => {
            let settings = json("config.json");
            let layer = settings.pointer("/trainer/layer").and_then(Value::as_u64);
            let named = text(&settings, &["/trainer/submodule_name", "/buffer/submodule_name"]);
            SaeInfo {
                count: 1,
                kind: text(&settings, &["/trainer/dict_class"]),
                base_model: text(&settings, BASE_MODEL_KEYS),
                hooks: list(named.or_else(|| layer.map(|layer| format!("layer {layer}")))),
                hooks_out: Vec::new(),
            }
        }
        SaeLayout::Sparsify => {
            let settings = json("cfg.json");
            let transcodes = settings.get("transcode").and_then(Value::as_bool).unwrap_or(false);
            let hook = || listing.dir.file_name().map(|name| name.to_string_lossy().into_owned());
            // The training settings are in the parent of the hook-point directories.
            let above = listing.dir.parent().and_then(|dir| read_json(&dir.join("config.json")));
            SaeInfo {
                count: 1,
                kind: text(&settings, &["/activation"]).or_else(|| Some("topk".into())),
                base_model: above.and_then(|above| text(&above, &["/model"])),
                hooks: list(hook()),
                hooks_out: if transcodes { list(hook()) } else { Vec::new() },
            }
        }
        SaeLayout::CircuitTracerPlt | SaeLayout::CircuitTracerClt => circuit_tracer(listing, layout),
        SaeLayout::HookZ => {
            let files: Vec<&str> = listing.files_with_suffix("_cfg.json").collect();
            let mut all = SaeInfo { kind: Some("standard".into()), ..SaeInfo::default() };
            for file in files {
                let settings = json(file);
                all.count += 1;
                all.hooks.extend(text(&settings, &["/act_name"]));
                let named = file.split_once("_L").map(|(model, _)| model.to_owned());
                all.base_model = all.base_model.or_else(|| text(&settings, BASE_MODEL_KEYS)).or(named);
            }
            all
        }
        SaeLayout::ControlVector | SaeLayout::Sites => SaeInfo::default(),
    }
}

/// Gemma Scope has no settings files: the repository's name has the site, the directory's the
/// layer.
fn gemma_scope(dir: &Path) -> SaeInfo {
    let whole = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let whole = whole.to_string_lossy();
    let release = whole.split(['/', '\\']).find_map(|part| part.split_once("gemma-scope-").map(|(_, rest)| rest));
    let mut words = release.unwrap_or_default().split('-');
    let (size, tuned, site) = (words.next(), words.next(), words.next());
    let base_model = size.filter(|size| ["2b", "9b", "27b"].contains(size)).map(|size| {
        let ending = if tuned == Some("it") { "-it" } else { "" };
        format!("google/gemma-2-{size}{ending}")
    });
    let layer = whole.split(['/', '\\']).find_map(|part| part.strip_prefix("layer_")?.parse::<usize>().ok());
    let (input, output) = match site {
        Some("res") => ("hook_resid_post", None),
        Some("mlp") => ("hook_mlp_out", None),
        Some("att") => ("attn.hook_z", None),
        Some("transcoders") => ("ln2.hook_normalized", Some("hook_mlp_out")),
        _ => ("", None),
    };
    let hook_point = |hook: &str| layer.filter(|_| !hook.is_empty()).map(|layer| format!("blocks.{layer}.{hook}"));
    SaeInfo {
        count: 1,
        kind: Some("jumprelu".into()),
        base_model,
        hooks: hook_point(input).into_iter().collect(),
        hooks_out: output.and_then(hook_point).into_iter().collect(),
    }
}

/// Llama Scope names its base model only in the repository's name: `Llama3_1-8B-Base-LXR-8x`.
fn llama_scope_base(dir: &Path) -> Option<String> {
    let whole = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    whole.to_string_lossy().contains("Llama3_1-8B-Base").then(|| "meta-llama/Llama-3.1-8B".into())
}

fn circuit_tracer(listing: &Listing, layout: SaeLayout) -> SaeInfo {
    let setting = |key: &str| {
        ["config.yaml", "wandb-config.yaml", "wanb-config.yaml"].iter().find_map(|file| yaml(listing, file, key))
    };
    let start = if layout == SaeLayout::CircuitTracerClt { "W_enc_" } else { "layer_" };
    let mut layers: Vec<usize> =
        listing.files_with_suffix(".safetensors").filter_map(|name| number_in(name, start)).collect();
    layers.sort_unstable();
    let hook_points = |hook: Option<String>| match hook {
        Some(hook) if layers.is_empty() => vec![hook],
        Some(hook) => layers.iter().map(|layer| format!("blocks.{layer}.{hook}")).collect(),
        None => Vec::new(),
    };
    SaeInfo {
        count: if layout == SaeLayout::CircuitTracerClt { 1 } else { layers.len().max(1) },
        kind: setting("model_kind"),
        base_model: setting("model_name"),
        hooks: hook_points(setting("feature_input_hook")),
        hooks_out: hook_points(setting("feature_output_hook")),
    }
}

fn is_vector(file: &GgufFile) -> bool {
    file.architecture().is_ok_and(|name| name == "controlvector")
}

fn control_vector(file: &GgufFile) -> SaeInfo {
    let hint = match file.value("controlvector.model_hint") {
        Some(gguf::Value::Text(text)) if !text.is_empty() => Some(text.clone()),
        _ => None,
    };
    let mut layers: Vec<usize> =
        file.tensors().iter().filter_map(|tensor| tensor.name.strip_prefix("direction.")?.parse().ok()).collect();
    layers.sort_unstable();
    let hooks: Vec<String> = layers.iter().map(|layer| format!("direction.{layer}")).collect();
    SaeInfo { count: 1, kind: Some("control vector".into()), base_model: hint, hooks, hooks_out: Vec::new() }
}

/// The value of a top-level key of a YAML file.
pub(super) fn yaml(listing: &Listing, file: &str, key: &str) -> Option<String> {
    let bytes = listing.settings(file).ok().flatten()?;
    let text = String::from_utf8_lossy(&bytes);
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?.trim();
    let bare = ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    Some(bare.unwrap_or(value)).filter(|value| !value.is_empty()).map(str::to_owned)
}

fn read_json(file: &Path) -> Option<Value> {
    const MAX_BYTES: u64 = 1 << 20;
    serde_json::from_slice(&crate::listing::first_bytes(file, MAX_BYTES).ok()?).ok()
}

/// The first of these JSON pointers with a non-empty string.
fn text(value: &Value, pointers: &[&str]) -> Option<String> {
    let first = pointers.iter().find_map(|pointer| value.pointer(pointer)?.as_str());
    first.filter(|text| !text.is_empty()).map(str::to_owned)
}
