//! Resolves site addresses, patterns and aliases in a program.

pub use crate::point::{SaePart, Site};

use crate::architecture::{Layer, Modules};
use crate::error::{Error, Result};
use crate::point::{Point, Scope};
use crate::program::Program;
use crate::remedy::Remedy;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::HashSet;
use std::str::FromStr;

/// Sites that a pattern matches, and those that it passes over because their layer lacks the point.
#[derive(Clone, Debug, PartialEq)]
pub struct Matches {
    /// Existing sites, in layer order.
    pub sites: Vec<Site>,
    /// Sites that the pattern's layers and point would name, but that do not exist.
    pub passed_over: Vec<Site>,
}

/// Layers of an address.
#[derive(Clone, Debug, PartialEq)]
enum Layers {
    One(usize),
    Several(Vec<usize>),
}

/// Returns the sites that `text` names: an address (`layers.5.resid_post`, `logits`), a pattern
/// (`layers.*.z`, `layers.3-7.z`, `layers.{0,11}.z`), or an alias of TransformerLens, interp-engine
/// or Hugging Face. Fails if none exists.
///
/// A name after the address selects an activation of the attached autoencoder:
/// `layers.5.resid_post/sae.acts`, or `blocks.5.hook_resid_post.hook_sae_acts_post` as in SAELens.
pub fn find(program: &Program, text: &str) -> Result<Matches> {
    if let Some((address, part)) = split_sae(text)? {
        return find_sae(program, text, find(program, address)?, part);
    }
    let (point, layers) = parse(program, text)?;
    let depth = program.architecture().layers.len();
    let Some(layers) = layers else {
        return single(program, Site::model(point));
    };
    let layers = match layers {
        Layers::One(layer) => {
            check_layer(layer, depth, text)?;
            return single(program, Site::layer(layer, point));
        }
        Layers::Several(layers) => layers,
    };
    let mut matches = Matches { sites: Vec::new(), passed_over: Vec::new() };
    let mut seen = HashSet::with_capacity(layers.len());
    if let Some(layer) = layers.iter().find(|&layer| !seen.insert(layer)) {
        return Err(Error::site(
            format!("`{}`: layer {layer} is selected twice", shorten(text)),
            "list each layer once",
        ));
    }
    for layer in layers {
        check_layer(layer, depth, text)?;
        let site = Site::layer(layer, point);
        if program.edge_of(site).is_some() { matches.sites.push(site) } else { matches.passed_over.push(site) }
    }
    if matches.sites.is_empty() {
        return Err(Error::site(
            format!(
                "`{}` matches no site: {}",
                shorten(text),
                point.absent_from(layer_of(program, matches.passed_over.first()))
            ),
            Remedy::ListSites,
        ));
    }
    Ok(matches)
}

/// Splits an address of an activation inside an autoencoder.
fn split_sae(text: &str) -> Result<Option<(&str, SaePart)>> {
    if let Some((address, name)) = text.split_once("/sae") {
        let names = SaePart::ALL.map(SaePart::name).join(", ");
        let part = name.strip_prefix('.').and_then(SaePart::named).ok_or_else(|| {
            Error::site(
                format!("`{}` is not a site", shorten(text)),
                format!("write {}/sae. and one of {names}", shorten(address)),
            )
        })?;
        return Ok(Some((address, part)));
    }
    let part = text.rsplit_once('.').and_then(|(address, name)| Some((address, SaePart::named(name)?)));
    Ok(part.filter(|_| text.contains(".hook_sae_")))
}

/// Keeps the matches with an attached autoencoder, as sites of its activation `part`.
fn find_sae(program: &Program, text: &str, matches: Matches, part: SaePart) -> Result<Matches> {
    // A pattern over all layers means the layers that have an autoencoder.
    let sites = matches.sites.into_iter().map(|site| site.sae(part));
    let sites: Vec<Site> = sites.filter(|&site| program.edge_of(site).is_some()).collect();
    if sites.is_empty() {
        let attached: Vec<String> = program.saes().map(|site| site.to_string()).collect();
        let problem = match attached.is_empty() {
            true => "no SAE is attached to this model".to_string(),
            false => format!("no SAE is attached there, but at {}", attached.join(", ")),
        };
        return Err(Error::site(format!("`{}` matches no site: {problem}", shorten(text)), Remedy::AttachSae));
    }
    Ok(Matches { sites, passed_over: matches.passed_over })
}

fn check_layer(layer: usize, depth: usize, text: &str) -> Result<()> {
    if layer < depth {
        return Ok(());
    }
    let last = depth.saturating_sub(1);
    Err(Error::site(
        format!("`{}`: there is no layer {layer}", shorten(text)),
        format!("this model's layers are 0 to {last}"),
    ))
}

fn single(program: &Program, site: Site) -> Result<Matches> {
    if program.edge_of(site).is_some() {
        return Ok(Matches { sites: vec![site], passed_over: Vec::new() });
    }
    Err(Error::site(
        format!(
            "`{site}` does not exist on this {} model: {}",
            program.architecture().family,
            site.point.absent_from(layer_of(program, Some(&site)))
        ),
        Remedy::ListSites,
    ))
}

fn layer_of<'p>(program: &'p Program, site: Option<&Site>) -> Option<&'p Layer> {
    program.architecture().layers.get(site?.layer?)
}

fn parse(program: &Program, text: &str) -> Result<(Point, Option<Layers>)> {
    if let Some(site) = canonical(text) {
        return Ok((site.point, site.layer.map(Layers::One)));
    }
    let depth = program.architecture().layers.len();
    // Most texts are our own addresses, which need no search over aliases.
    if let Some((layer, point)) = text.strip_prefix("layers.").and_then(|rest| rest.split_once('.'))
        && let (Some(point), Some(layers)) = (Point::named(point), parse_layers(layer, depth))
        && point.info().scope == Scope::Layer
    {
        return Ok((point, Some(layers)));
    }
    if let Some(point) = program.named_point(text) {
        return Ok((point, None));
    }
    for point in Point::ALL {
        for form in address_forms(point, &program.architecture().modules) {
            match match_form(&form, text) {
                Some(None) => return Ok((point, None)),
                Some(Some(selector)) => {
                    if let Some(layers) = parse_layers(selector, depth) {
                        return Ok((point, Some(layers)));
                    }
                }
                None => {}
            }
        }
    }
    Err(unknown(program, text))
}

/// Parses a canonical address without trying the aliases of every point.
fn canonical(text: &str) -> Option<Site> {
    match text.strip_prefix("layers.") {
        None => Point::named(text).filter(|point| point.info().scope == Scope::Model).map(Site::model),
        Some(rest) => {
            let (layer, name) = rest.split_once('.')?;
            let point = Point::named(name).filter(|point| point.info().scope == Scope::Layer)?;
            Some(Site::layer(layer.parse().ok()?, point))
        }
    }
}

impl FromStr for Site {
    type Err = String;

    /// Parses an address as [`Site`] displays it; patterns and aliases are not addresses.
    fn from_str(text: &str) -> std::result::Result<Site, String> {
        let unknown = || format!("{text:?} is not the address of a site");
        let (address, part) = match text.split_once("/sae.") {
            Some((address, name)) => (address, Some(SaePart::named(name).ok_or_else(unknown)?)),
            None => (text, None),
        };
        Ok(Site { sae: part, ..canonical(address).ok_or_else(unknown)? })
    }
}

impl Serialize for Site {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Site {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Site, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Returns every form of a point's address, `{}` for the layer.
fn address_forms(point: Point, modules: &Modules) -> Vec<String> {
    let info = point.info();
    let mut forms = match info.scope {
        Scope::Model => vec![info.name.to_string()],
        Scope::Layer => vec![format!("layers.{{}}.{}", info.name), format!("{}.{{}}", info.name)],
    };
    forms.extend(info.transformer_lens.map(String::from));
    forms.extend(short_form(point));
    forms.extend(module_form(point, modules));
    forms
}

/// Returns TransformerLens' short name: a word and the layer index (`resid_post5`, `q3`,
/// `pattern0`).
fn short_form(point: Point) -> Option<String> {
    use Point::*;
    let word = match point {
        ResidPre | ResidMid | ResidPost | Q | K | Z | RotQ | RotK | AttnScores => point.name(),
        Value => "v",
        AttnProbs => "pattern",
        HeadOut => "result",
        AttnOutPost => "attn_out",
        MlpOutPost => "mlp_out",
        MlpPre => "pre",
        MlpPreLinear => "pre_linear",
        MlpAct => "post",
        _ => return None,
    };
    Some(format!("{word}{{}}"))
}

/// Returns the Hugging Face module path with nnsight's `.input` or `.output`.
fn module_form(point: Point, modules: &Modules) -> Option<String> {
    let layers = &modules.layers;
    let inside =
        |module: &Option<String>, end: &str| module.as_ref().map(|module| format!("{layers}.{{}}.{module}.{end}"));
    let whole = |module: &Option<String>| module.as_ref().map(|module| format!("{module}.output"));
    match point {
        Point::ResidPre if !layers.is_empty() => Some(format!("{layers}.{{}}.input")),
        Point::ResidPost if !layers.is_empty() => Some(format!("{layers}.{{}}.output")),
        Point::AttnIn => inside(&modules.attention, "input"),
        Point::AttnOut => inside(&modules.attention, "output"),
        Point::MlpIn => inside(&modules.mlp, "input"),
        Point::MlpOut => inside(&modules.mlp, "output"),
        Point::Embed => whole(&modules.embedding),
        Point::FinalNorm => whole(&modules.final_norm),
        Point::LmHead => whole(&modules.head),
        _ => None,
    }
}

/// Returns the aliases of a site: TransformerLens or SAELens, then Hugging Face.
pub fn aliases(program: &Program, site: Site) -> Vec<String> {
    let modules = &program.architecture().modules;
    let layer = site.layer.map(|layer| layer.to_string()).unwrap_or_default();
    // Hugging Face has no module inside an autoencoder.
    let module = module_form(site.point, modules).filter(|_| site.sae.is_none());
    let forms = site.point.info().transformer_lens.map(String::from).into_iter().chain(module);
    let end = |form: String| match site.sae {
        Some(part) => format!("{form}.{}", part.saelens()),
        None => form,
    };
    forms.map(|form| end(form.replace("{}", &layer))).collect()
}

/// Matches `text` against a form: `Some(None)` for a form without a layer, else the layer part of
/// the text.
fn match_form<'a>(form: &str, text: &'a str) -> Option<Option<&'a str>> {
    let Some((before, after)) = form.split_once("{}") else {
        return (form == text).then_some(None);
    };
    let selector = text.strip_prefix(before)?.strip_suffix(after)?;
    (!selector.is_empty()).then_some(Some(selector))
}

/// Parses `5`, `*`, `3-7` or `{0,11}`.
fn parse_layers(text: &str, depth: usize) -> Option<Layers> {
    if text == "*" {
        return Some(Layers::Several((0..depth).collect()));
    }
    if let Some(list) = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        return list.split(',').map(|n| n.trim().parse().ok()).collect::<Option<_>>().map(Layers::Several);
    }
    if let Some((first, last)) = text.split_once('-') {
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // Truncate a huge range just past the last layer: the layer check then rejects it without
        // allocating billions of indices.
        return (first <= last).then(|| Layers::Several((first..=last.min(depth.max(first))).collect()));
    }
    text.parse().ok().map(Layers::One)
}

/// Returns the error for TransformerLens hooks that are copies of the residual stream for one
/// reader (`use_attn_in`, `use_split_qkv_input`, `use_hook_mlp_in`). They are not edges of the
/// model, and editing the original tensor has another effect, so they are not aliases.
fn transformer_lens_copy(text: &str) -> Option<Error> {
    let (layer, name) = text.strip_prefix("blocks.")?.split_once('.')?;
    let (copy, remedy) = match name {
        "hook_attn_in" => (
            "a copy of the residual stream before the norm for each head",
            format!("read layers.{layer}.resid_pre; to change attention's input alone, edit layers.{layer}.attn_in"),
        ),
        "hook_q_input" | "hook_k_input" | "hook_v_input" => {
            let point = match name {
                "hook_q_input" => "q",
                "hook_k_input" => "k",
                _ => "value",
            };
            (
                "a copy of the residual stream before the norm for the heads of one projection",
                format!("read layers.{layer}.resid_pre; to change one head's projection, edit layers.{layer}.{point}"),
            )
        }
        "hook_mlp_in" => (
            "a copy of the residual stream before the norm for the MLP",
            format!(
                "read layers.{layer}.resid_mid (resid_pre on a parallel block); to change the MLP's input alone, \
                 edit layers.{layer}.mlp_in"
            ),
        ),
        _ => return None,
    };
    Some(Error::site(format!("`{text}` is not a site: in TransformerLens it is {copy}"), remedy))
}

/// Longest address that is compared with the known ones, and that messages show whole.
const MAX_SHOWN: usize = 200;

/// Returns the start of a text that is too long for a message.
pub(crate) fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

fn unknown(program: &Program, text: &str) -> Error {
    if text.len() > MAX_SHOWN {
        return Error::site(format!("no site is called `{}`", shorten(text)), Remedy::ListSites);
    }
    if let Some(point) = Point::named(text) {
        return Error::site(
            format!("`{text}` is a point of a layer, but the address has no layer"),
            format!("write layers.*.{point}, or layers.0.{point}"),
        );
    }
    if let Some(error) = transformer_lens_copy(text) {
        return error;
    }
    let names = program.sites().map(|site| site.to_string());
    let aliases = program.sites().flat_map(|site| aliases(program, site));
    let mut near: Vec<(f64, String)> =
        names.chain(aliases).map(|name| (strsim::jaro_winkler(text, &name), name)).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    let near: Vec<String> = near.into_iter().take(3).map(|(_, name)| name).collect();
    Error::site(format!("no site is called `{text}`"), Remedy::DidYouMean(near))
}
