//! What autoencoders were trained on: the base model and the activations that they read and write, from the settings of each layout.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::{Layout, SITES, number_in, walk};
use crate::gguf::{self, GgufFile};
use crate::listing::Listing;

/// Autoencoders, one or a release of many.
#[derive(Debug, Clone, Default, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Description {
    /// How they are stored.
    pub layouts: Vec<Layout>,
    /// How many there are.
    pub count: usize,
    /// Whether there are more than were looked at.
    pub more: bool,
    /// What kinds they are, in their own words: `jumprelu`, `AutoEncoderTopK`.
    pub kinds: Vec<String>,
    /// The models that they were trained on.
    pub base_models: Vec<String>,
    /// The activations that they read, in their own words: `blocks.5.hook_resid_post`, `model.layers.5.output`.
    pub hooks: Vec<String>,
    /// The activations that transcoders write.
    pub hooks_out: Vec<String>,
}

/// What is known about one.
#[derive(Default)]
struct One {
    count: usize,
    kind: Option<String>,
    base_model: Option<String>,
    hooks: Vec<String>,
    hooks_out: Vec<String>,
}

/// A release of a hundred sites says all there is to say about the rest.
const MOST_DIRS: usize = 2048;
const MOST_NAMED: usize = 512;

/// Describes every autoencoder in a directory.
pub fn describe(dir: &Path) -> std::io::Result<Description> {
    let listing = Listing::read(dir)?;
    Ok(describe_listing(&listing))
}

pub(crate) fn describe_listing(listing: &Listing) -> Description {
    let mut all = Description::default();
    let whole = walk(listing, MOST_DIRS, &mut |found, layout| {
        all.add(layout, one(found, layout));
        true
    });
    for name in listing.ending(".gguf") {
        if let Some(vector) = GgufFile::open(listing.dir.join(name)).ok().filter(is_vector) {
            all.add(Layout::ControlVector, control_vector(&vector));
        }
    }
    if all.count == 0 && listing.dirs().any(|dir| SITES.contains(&dir)) {
        let hooks = listing.dirs().filter(|dir| SITES.contains(dir)).map(str::to_owned).collect();
        all.add(Layout::Sites, One { base_model: base_model(listing), hooks, ..One::default() });
    }
    all.more = !whole;
    all
}

/// Describes a GGUF file of directions.
pub fn describe_gguf(file: &GgufFile) -> Description {
    let mut all = Description::default();
    all.add(Layout::ControlVector, control_vector(file));
    all
}

impl Description {
    fn add(&mut self, layout: Layout, one: One) {
        fn push<T: PartialEq>(list: &mut Vec<T>, new: impl IntoIterator<Item = T>) {
            for value in new {
                if list.len() < MOST_NAMED && !list.contains(&value) {
                    list.push(value);
                }
            }
        }
        self.count += one.count;
        push(&mut self.layouts, [layout]);
        push(&mut self.kinds, one.kind);
        push(&mut self.base_models, one.base_model);
        push(&mut self.hooks, one.hooks);
        push(&mut self.hooks_out, one.hooks_out);
    }
}

/// The base model of a release, without describing all of it: the settings of the directories inside are tried first, one level after the other.
pub(crate) fn base_model(listing: &Listing) -> Option<String> {
    let named = |dir: &Path| ["config.json", "cfg.json"].iter().find_map(|file| model_name(&dir.join(file)));
    let own = ["config.json", "cfg.json"].iter().filter(|file| listing.has(file));
    let near = own.map(|file| listing.dir.join(file)).find_map(|file| model_name(&file));
    near.or_else(|| {
        /// Releases are alike throughout: what a handful does not say, none does.
        const TRIED: usize = 8;
        let dirs: Vec<_> = listing.inner_dirs().take(TRIED).collect();
        let inside = || dirs.iter().take(TRIED).filter_map(|dir| Listing::read(dir).ok());
        dirs.iter()
            .find_map(|dir| named(dir))
            .or_else(|| inside().find_map(|inner| inner.inner_dirs().take(TRIED).find_map(|dir| named(&dir))))
    })
    .or_else(|| {
        let mut found = None;
        walk(listing, MOST_DIRS, &mut |inner, layout| {
            found = one(inner, layout).base_model;
            found.is_none()
        });
        found
    })
    .or_else(|| {
        let vectors = listing.ending(".gguf").filter_map(|name| GgufFile::open(listing.dir.join(name)).ok());
        vectors.filter(is_vector).find_map(|vector| control_vector(&vector).base_model)
    })
}

/// The model that a file of settings names.
fn model_name(file: &Path) -> Option<String> {
    let value = read_json(file)?;
    // A model's own configuration may have such keys, too, and they mean other things.
    value.get("model_type").is_none().then(|| text(&value, BASE))?
}

/// Where the layouts keep the name of the model.
const BASE: &[&str] = &["/model_name", "/metadata/model_name", "/trainer/lm_name", "/lm_name"];

/// Reads the settings of one directory.
fn one(listing: &Listing, layout: Layout) -> One {
    let json = |file: &str| listing.json(file).ok().flatten().unwrap_or_default();
    let list = |value: Option<String>| value.into_iter().collect::<Vec<String>>();
    match layout {
        Layout::Saelens => {
            let settings = json("cfg.json");
            let kind = text(&settings, &["/architecture", "/metadata/architecture"]);
            One {
                count: 1,
                kind: kind.or_else(|| listing.has("cfg.json").then(|| "standard".into())),
                base_model: text(&settings, BASE),
                hooks: list(text(
                    &settings,
                    &["/hook_name", "/hook_point", "/metadata/hook_name", "/metadata/hook_point"],
                )),
                hooks_out: list(text(&settings, &["/hook_name_out", "/metadata/hook_name_out"])),
            }
        }
        Layout::GemmaScope => gemma_scope(&listing.dir),
        Layout::GemmaScope2 => {
            let settings = json("config.json");
            One {
                count: 1,
                kind: text(&settings, &["/architecture", "/type"]),
                base_model: text(&settings, BASE),
                hooks: list(text(&settings, &["/hf_hook_point_in"])),
                hooks_out: list(text(&settings, &["/hf_hook_point_out"])),
            }
        }
        Layout::LlamaScope => {
            let own = if listing.has("hyperparams.json") { json("hyperparams.json") } else { json("config.json") };
            let beside = json("lm_config.json");
            One {
                count: 1,
                kind: text(&own, &["/act_fn", "/sae_type"]),
                base_model: text(&own, BASE).or_else(|| text(&beside, BASE)).or_else(|| llama_scope_base(&listing.dir)),
                hooks: list(text(&own, &["/hook_point_in"])),
                hooks_out: list(text(&own, &["/hook_point_out"])),
            }
        }
        Layout::DictionaryLearning => {
            let settings = json("config.json");
            let layer = settings.pointer("/trainer/layer").and_then(Value::as_u64);
            let named = text(&settings, &["/trainer/submodule_name", "/buffer/submodule_name"]);
            One {
                count: 1,
                kind: text(&settings, &["/trainer/dict_class"]),
                base_model: text(&settings, BASE),
                hooks: list(named.or_else(|| layer.map(|layer| format!("layer {layer}")))),
                hooks_out: Vec::new(),
            }
        }
        Layout::Sparsify => {
            let settings = json("cfg.json");
            let transcodes = settings.get("transcode").and_then(Value::as_bool).unwrap_or(false);
            let place = || listing.dir.file_name().map(|name| name.to_string_lossy().into_owned());
            // What training was told lies beside the directories of the hook points.
            let above = listing.dir.parent().and_then(|dir| read_json(&dir.join("config.json")));
            One {
                count: 1,
                kind: text(&settings, &["/activation"]).or_else(|| Some("topk".into())),
                base_model: above.and_then(|above| text(&above, &["/model"])),
                hooks: list(place()),
                hooks_out: if transcodes { list(place()) } else { Vec::new() },
            }
        }
        Layout::CircuitTracerPlt | Layout::CircuitTracerClt => circuit_tracer(listing, layout),
        Layout::HookZ => {
            let files: Vec<&str> = listing.ending("_cfg.json").collect();
            let mut all = One { kind: Some("standard".into()), ..One::default() };
            for file in files {
                let settings = json(file);
                all.count += 1;
                all.hooks.extend(text(&settings, &["/act_name"]));
                let named = file.split_once("_L").map(|(model, _)| model.to_owned());
                all.base_model = all.base_model.or_else(|| text(&settings, BASE)).or(named);
            }
            all
        }
        Layout::ControlVector | Layout::Sites => One::default(),
    }
}

/// Gemma Scope has no settings: the site is in the repository's name, the layer in the directory's.
fn gemma_scope(dir: &Path) -> One {
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
    let place = |hook: &str| layer.filter(|_| !hook.is_empty()).map(|layer| format!("blocks.{layer}.{hook}"));
    One {
        count: 1,
        kind: Some("jumprelu".into()),
        base_model,
        hooks: place(input).into_iter().collect(),
        hooks_out: output.and_then(place).into_iter().collect(),
    }
}

/// Llama Scope names its model in the repository's name only: `Llama3_1-8B-Base-LXR-8x`.
fn llama_scope_base(dir: &Path) -> Option<String> {
    let whole = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    whole.to_string_lossy().contains("Llama3_1-8B-Base").then(|| "meta-llama/Llama-3.1-8B".into())
}

fn circuit_tracer(listing: &Listing, layout: Layout) -> One {
    let said = |key: &str| {
        ["config.yaml", "wandb-config.yaml", "wanb-config.yaml"].iter().find_map(|file| yaml(listing, file, key))
    };
    let start = if layout == Layout::CircuitTracerClt { "W_enc_" } else { "layer_" };
    let mut layers: Vec<usize> = listing.ending(".safetensors").filter_map(|name| number_in(name, start)).collect();
    layers.sort_unstable();
    let places = |hook: Option<String>| match hook {
        Some(hook) if layers.is_empty() => vec![hook],
        Some(hook) => layers.iter().map(|layer| format!("blocks.{layer}.{hook}")).collect(),
        None => Vec::new(),
    };
    One {
        count: if layout == Layout::CircuitTracerClt { 1 } else { layers.len().max(1) },
        kind: said("model_kind"),
        base_model: said("model_name"),
        hooks: places(said("feature_input_hook")),
        hooks_out: places(said("feature_output_hook")),
    }
}

fn is_vector(file: &GgufFile) -> bool {
    file.architecture().is_ok_and(|name| name == "controlvector")
}

fn control_vector(file: &GgufFile) -> One {
    let hint = match file.value("controlvector.model_hint") {
        Some(gguf::Value::Text(text)) if !text.is_empty() => Some(text.clone()),
        _ => None,
    };
    let mut layers: Vec<usize> =
        file.tensors().iter().filter_map(|tensor| tensor.name.strip_prefix("direction.")?.parse().ok()).collect();
    layers.sort_unstable();
    let hooks: Vec<String> = layers.iter().map(|layer| format!("direction.{layer}")).collect();
    One { count: 1, kind: Some("control vector".into()), base_model: hint, hooks, hooks_out: Vec::new() }
}

/// The value of a key at the top of a YAML file.
pub(super) fn yaml(listing: &Listing, file: &str, key: &str) -> Option<String> {
    let bytes = listing.settings(file).ok().flatten()?;
    let text = String::from_utf8_lossy(&bytes);
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?.trim();
    let bare = ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    Some(bare.unwrap_or(value)).filter(|value| !value.is_empty()).map(str::to_owned)
}

fn read_json(file: &Path) -> Option<Value> {
    const LONGEST: u64 = 1 << 20;
    serde_json::from_slice(&crate::listing::first_bytes(file, LONGEST).ok()?).ok()
}

/// The first of these places that holds a text.
fn text(value: &Value, places: &[&str]) -> Option<String> {
    let found = places.iter().find_map(|place| value.pointer(place)?.as_str());
    found.filter(|text| !text.is_empty()).map(str::to_owned)
}
