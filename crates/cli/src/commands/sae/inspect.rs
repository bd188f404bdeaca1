//! `pellucid sae inspect`: reads an autoencoder and shows what it is.

use crate::args::SaeInspectArgs;
use crate::commands::{print, print_json};
use crate::failure::Failure;
use pellucid_engine::Site;
use pellucid_models::sae::{LoadedSae, SaeInfo, read_sae};
use serde_json::Value;

pub fn run(args: SaeInspectArgs) -> Result<(), Failure> {
    let loaded = read_sae(&args.path)?;
    let sha256 = loaded.sha256()?;
    if args.json {
        let mut value = serde_json::to_value(&loaded.info).map_err(|error| Failure::internal(error.to_string()))?;
        value["sha256"] = Value::String(sha256);
        return print_json(&value);
    }
    print(&card(&loaded, &sha256))
}

/// The description, one line per fact.
fn card(loaded: &LoadedSae, sha256: &str) -> String {
    let info = &loaded.info;
    let mut lines: Vec<(&str, String)> = vec![
        ("what", what(info)),
        ("layout", info.layout.name().into()),
        ("reads", sites(&info.sites_in, &info.hooks_in)),
    ];
    if info.sites_out != info.sites_in || !info.hooks_out.is_empty() {
        lines.push(("writes", sites(&info.sites_out, &info.hooks_out)));
    }
    lines.push(("features", format!("{} of width {}{}", info.n_features, info.d_in, output_width(info))));
    lines.push(("activation", activation(info)));
    lines.push(("input", input(info)));
    if info.folded_decoder_norms {
        lines.push(("decoder", "norms folded into the features: every row has norm 1".into()));
    }
    let bytes = |matrix: &pellucid_kernels::Matrix| matrix.bytes();
    let decoders: usize = loaded.sae.decoders.iter().map(bytes).sum();
    let mapped = loaded.sae.decoders.iter().all(|decoder| decoder.is_in_place()) && !info.folded_decoder_norms;
    let kept = if mapped { "read in place" } else { "copied" };
    lines.push((
        "weights",
        format!("{}, encoder {}, decoder {} {kept}", info.dtype, size(bytes(&loaded.sae.encoder)), size(decoders)),
    ));
    if let Some(model) = &info.base_model {
        lines.push(("base model", model.clone()));
    }
    if let Some(bos) = info.prepend_bos {
        let context = info.context_size.map(|size| format!(", {size} tokens")).unwrap_or_default();
        lines.push(("trained on", format!("texts {} a BOS token{context}", if bos { "with" } else { "without" })));
    }
    if !info.weight_processing.is_empty() {
        lines.push(("model needs", info.weight_processing.join(", ")));
    }
    if let Some(l0) = info.declared_l0 {
        lines.push(("declared L0", l0.to_string()));
    }
    lines.push(("sha256", sha256.into()));
    lines.extend(info.notes.iter().map(|note| ("note", note.clone())));
    let text: String = lines.iter().map(|(name, value)| format!("  {name:<12}{value}\n")).collect();
    format!("{}\n{text}", info.path.display())
}

/// `sparse autoencoder, jumprelu (BatchTopKSAE)`
fn what(info: &SaeInfo) -> String {
    let skip = if info.skip { " with a skip path" } else { "" };
    let declared = info.declared_kind.as_deref().filter(|kind| *kind != info.kind);
    let declared = declared.map(|kind| format!(" (declared as {kind})")).unwrap_or_default();
    format!("{}{skip}, {}{declared}", info.role, info.kind)
}

/// Sites, with the names in the settings where these differ.
fn sites(sites: &[Site], hooks: &[String]) -> String {
    let named = if hooks.is_empty() { String::new() } else { format!(" ({})", hooks.join(", ")) };
    if sites.is_empty() {
        return format!("unknown{named}");
    }
    let names: Vec<String> = sites.iter().map(|site| site.to_string()).collect();
    format!("{}{named}", names.join(", "))
}

fn output_width(info: &SaeInfo) -> String {
    if info.d_out == info.d_in { String::new() } else { format!(", written with width {}", info.d_out) }
}

fn activation(info: &SaeInfo) -> String {
    match (info.kind, info.k, info.threshold) {
        ("groupmax", Some(k), _) => format!("the maximum of each of {k} groups"),
        ("abstopk", Some(k), _) => format!("the {k} largest magnitudes, with their sign"),
        (_, Some(k), _) => format!("the {k} largest, then ReLU"),
        (_, _, Some([low, high])) if low == high => format!("ReLU above the threshold {low}"),
        (_, _, Some([low, high])) => format!("ReLU above a threshold of {low} to {high}"),
        ("gated", ..) => "ReLU where the gate is open".into(),
        _ => "ReLU".into(),
    }
}

fn input(info: &SaeInfo) -> String {
    let scale = info.normalization.clone().unwrap_or_else(|| "as it is".into());
    let bias = if info.subtracts_decoder_bias { "; minus the decoder bias" } else { "" };
    format!("{scale}{bias}")
}

fn size(bytes: usize) -> String {
    match bytes as f64 {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b => format!("{:.1} kB", b / 1e3),
    }
}
