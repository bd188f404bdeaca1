//! Transcoders of circuit-tracer.
//!
//! Per layer: `layer_0.safetensors` … with `W_enc [n, d]`, `W_dec [n, d]`, `W_skip [d, d]`, and a
//! threshold if JumpReLU. Across layers: `W_enc_0.safetensors` and `W_dec_0.safetensors` …, where
//! `W_dec_i [n, layers - i, d]` writes layer i and all later ones. Hook points and base model are
//! in `config.yaml`; transcoders of Qwen 3 may have only `wandb-config.yaml` (or
//! `wanb-config.yaml`).
//!
//! The reconstruction of a layer by a cross-layer transcoder is the sum over all earlier layers'
//! features plus one bias, so each layer that is read contributes the bias of its own.

use pellucid_engine::Site;
use pellucid_engine::sae::SaeKind;

use super::super::file::WeightFile;
use super::super::hooks::site_of;
use super::super::info::{Facts, SaeRole};
use super::super::parts::Parts;
use super::super::settings::{digits, whole_path, yaml};
use super::{Format, Marks, Summary, has_numbered, number_in, numbered};
use crate::listing::Listing;
use crate::sae::{LoadedSae, SaeLayout};
use crate::{Error, Result};

pub(super) const PLT: Format = Format {
    layout: SaeLayout::CircuitTracerPlt,
    name: "circuit-tracer, per-layer transcoders",
    recognize: recognize_plt,
    members: plt_members,
    describe: describe_plt,
    read: read_plt,
};

pub(super) const CLT: Format = Format {
    layout: SaeLayout::CircuitTracerClt,
    name: "circuit-tracer, cross-layer transcoder",
    recognize: recognize_clt,
    members: clt_members,
    describe: describe_clt,
    read: read_clt,
};

const LAYER: &str = "layer_";
const ENCODER: &str = "W_enc_";
const END: &str = ".safetensors";
const SETTINGS: [&str; 3] = ["config.yaml", "wandb-config.yaml", "wanb-config.yaml"];

fn is_kind(listing: &Listing, kind: &str) -> bool {
    listing.has(SETTINGS[0]) && yaml(listing, SETTINGS[0], "model_kind").as_deref() == Some(kind)
}

fn recognize_plt(listing: &Listing, _: Marks<'_>) -> std::result::Result<(), &'static str> {
    // With a config.json, files `layer_0.safetensors` belong to a model.
    let files = has_numbered(listing, LAYER, END) && !listing.has("config.json");
    match files || is_kind(listing, "transcoder_set") {
        true => Ok(()),
        false => Err("there is no layer_0.safetensors and no config.yaml of a transcoder_set"),
    }
}

fn recognize_clt(listing: &Listing, _: Marks<'_>) -> std::result::Result<(), &'static str> {
    match has_numbered(listing, ENCODER, END) || is_kind(listing, "cross_layer_transcoder") {
        true => Ok(()),
        false => Err("there is no W_enc_0.safetensors and no config.yaml of a cross_layer_transcoder"),
    }
}

fn plt_members(listing: &Listing) -> Vec<String> {
    numbered(listing, LAYER, END)
}

fn clt_members(listing: &Listing) -> Vec<String> {
    numbered(listing, ENCODER, END)
}

fn setting(listing: &Listing, key: &str) -> Option<String> {
    SETTINGS.iter().find_map(|file| yaml(listing, file, key))
}

/// The base model; transcoders of Qwen 3 14B have it only in the repository's name.
fn base_model(listing: &Listing) -> Option<String> {
    setting(listing, "model_name").or_else(|| {
        let path = whole_path(&listing.dir).to_lowercase();
        let size = path.split_once("qwen3-")?.1;
        let end = size.find('b').filter(|&end| size[..end].chars().all(|c| c.is_ascii_digit() || c == '.'))?;
        digits(size)?;
        Some(format!("Qwen/Qwen3-{}B", &size[..end]))
    })
}

fn describe(listing: &Listing, start: &str, members: Vec<String>) -> Summary {
    let layers: Vec<usize> = members.iter().filter_map(|name| number_in(name, start, END)).collect();
    let hook_points = |hook: Option<String>| match hook {
        Some(hook) if layers.is_empty() => vec![hook],
        Some(hook) => layers.iter().map(|layer| format!("blocks.{layer}.{hook}")).collect(),
        None => Vec::new(),
    };
    Summary {
        count: layers.len().max(1),
        kind: setting(listing, "model_kind"),
        base_model: base_model(listing),
        hooks: hook_points(setting(listing, "feature_input_hook")),
        hooks_out: hook_points(setting(listing, "feature_output_hook")),
    }
}

fn describe_plt(listing: &Listing) -> Summary {
    describe(listing, LAYER, plt_members(listing))
}

fn describe_clt(listing: &Listing) -> Summary {
    // All layers together are one transcoder.
    Summary { count: 1, ..describe(listing, ENCODER, clt_members(listing)) }
}

/// Hook points without their layer: of the settings, else those that circuit-tracer assumes.
struct Hooks {
    input: String,
    output: String,
    base_model: Option<String>,
}

impl Hooks {
    fn read(listing: &Listing, default_input: &str) -> Hooks {
        Hooks {
            input: setting(listing, "feature_input_hook").unwrap_or_else(|| default_input.into()),
            output: setting(listing, "feature_output_hook").unwrap_or_else(|| "hook_mlp_out".into()),
            base_model: base_model(listing),
        }
    }

    fn site(&self, layer: usize, hook: &str) -> Option<Site> {
        site_of(&format!("blocks.{layer}.{hook}"), self.base_model.as_deref())
    }

    fn facts(self, layer: usize, written: std::ops::Range<usize>) -> Facts {
        // The input after the norm's gain exists only if the gain is not folded into the MLP.
        let after_gain = self.input == "mlp.hook_in";
        Facts {
            sites_in: self.site(layer, &self.input).into_iter().collect(),
            sites_out: written.clone().filter_map(|layer| self.site(layer, &self.output)).collect(),
            hooks_in: vec![format!("blocks.{layer}.{}", self.input)],
            hooks_out: written.map(|layer| format!("blocks.{layer}.{}", self.output)).collect(),
            weight_processing: if after_gain { vec!["fold_ln=false".into()] } else { Vec::new() },
            notes: vec!["circuit-tracer sets the features of the first position to zero".into()],
            base_model: self.base_model,
            ..Facts::default()
        }
    }
}

/// JumpReLU if there is a threshold. circuit-tracer applies no ReLU after it, so a negative
/// threshold would let negative activations pass.
fn kind(file: &WeightFile, name: &str, n: usize) -> Result<SaeKind> {
    if !file.has(name) {
        return Ok(SaeKind::Relu);
    }
    // One threshold for each feature, or one for all.
    let threshold = match file.shape(name)? {
        [] | [1] => vec![file.scalar(name)?; n],
        _ => file.vector(name, ("n_features", n))?,
    };
    match threshold.iter().position(|x| *x < 0.0) {
        None => Ok(SaeKind::JumpRelu { threshold }),
        Some(at) => Err(Error::unsupported(
            format!(
                "{}: tensor `{name}`: the threshold of feature {at} is negative, and circuit-tracer keeps negative \
                 activations above it",
                file.path.display()
            ),
            "use a transcoder with thresholds of at least 0",
        )),
    }
}

fn read_plt(listing: &Listing, name: &str) -> Result<LoadedSae> {
    let Some(layer) = number_in(name, LAYER, END) else { return Err(no_weights(listing, "layer_0.safetensors")) };
    let file = WeightFile::open(&listing.dir.join(name))?;
    let (n, d) = (file.len("b_enc")?, file.len("b_dec")?);
    let mut parts = Parts::relu(
        file.matrix("W_enc", [("n_features", n), ("d_model", d)])?,
        file.vector("b_enc", ("n_features", n))?,
        file.matrix("W_dec", [("n_features", n), ("d_model", d)])?,
        file.vector("b_dec", ("d_model", d))?,
        false,
    );
    parts.kind = kind(&file, "activation_function.threshold", n)?;
    if file.has("W_skip") {
        parts.skip = Some(file.matrix("W_skip", [("d_model", d), ("d_model", d)])?);
    }
    file.finish()?;
    let mut facts = Hooks::read(listing, "mlp.hook_in").facts(layer, layer..layer + 1);
    facts.role = Some(SaeRole::Transcoder);
    facts.declared_kind = setting(listing, "model_kind");
    parts.load(listing.dir.join(name), SaeLayout::CircuitTracerPlt, facts, &[&file])
}

fn read_clt(listing: &Listing, name: &str) -> Result<LoadedSae> {
    let Some(layer) = number_in(name, ENCODER, END) else { return Err(no_weights(listing, "W_enc_0.safetensors")) };
    let layers = clt_members(listing).len();
    if layer >= layers {
        return Err(no_weights(listing, &format!("{ENCODER}{layers}{END}")));
    }
    let encoder = WeightFile::open(&listing.dir.join(name))?;
    let decoder = WeightFile::open(&listing.dir.join(format!("W_dec_{layer}{END}")))?;
    let tensor = |start: &str| format!("{start}_{layer}");
    let (n, d) = (encoder.len(&tensor("b_enc"))?, encoder.len(&tensor("b_dec"))?);
    let written = layers - layer;
    let decoders = [("n_features", n), ("layers written", written), ("d_model", d)];
    let mut biases = vec![encoder.vector(&tensor("b_dec"), ("d_model", d))?];
    biases.resize(written, vec![0.0; d]);
    let mut parts = Parts::with_decoders(
        encoder.matrix(&tensor("W_enc"), [("n_features", n), ("d_model", d)])?,
        encoder.vector(&tensor("b_enc"), ("n_features", n))?,
        decoder.slices(&tensor("W_dec"), decoders, 1)?,
        biases,
    );
    parts.kind = kind(&encoder, &tensor("threshold"), n)?;
    if encoder.has(&tensor("W_skip")) {
        // Here `x W_skip`; per-layer transcoders compute `x W_skip^T`.
        parts.skip = Some(encoder.matrix(&tensor("W_skip"), [("d_model", d), ("d_model", d)])?.transposed());
    }
    encoder.finish()?;
    decoder.finish()?;
    let mut facts = Hooks::read(listing, "hook_resid_mid").facts(layer, layer..layers);
    facts.role = Some(SaeRole::CrossLayerTranscoder);
    facts.declared_kind = setting(listing, "model_kind");
    facts.notes.push(format!(
        "features of layer {layer} of {layers}; the reconstruction of a layer is the sum over all layers up to it"
    ));
    parts.load(listing.dir.join(name), SaeLayout::CircuitTracerClt, facts, &[&encoder, &decoder])
}

fn no_weights(listing: &Listing, file: &str) -> Error {
    Error::invalid(&listing.dir, format!("{file} is missing"), "download all files of the transcoder")
}
