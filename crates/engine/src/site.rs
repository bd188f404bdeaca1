//! Sites by name: addresses, patterns and aliases, found in a program.

pub use crate::point::Site;

use crate::architecture::{Layer, Modules};
use crate::error::{Error, Result};
use crate::point::{Point, Scope};
use crate::program::Program;

/// What a pattern found: the sites that exist, and those it passed over because their layer does not have the point.
#[derive(Clone, Debug, PartialEq)]
pub struct Matches {
    /// Existing sites, in layer order.
    pub sites: Vec<Site>,
    /// Sites that a wildcard would have meant but that do not exist.
    pub passed_over: Vec<Site>,
}

/// Which layers an address means.
#[derive(Clone, Debug, PartialEq)]
enum Layers {
    One(usize),
    Several(Vec<usize>),
}

/// Finds the sites that `text` means: an address (`layers.5.resid_post`, `logits`), a pattern (`layers.*.z`, `layers.3-7.z`, `layers.{0,11}.z`),
/// or an alias in the words of TransformerLens, interp-engine or Hugging Face.
pub fn find(program: &Program, text: &str) -> Result<Matches> {
    let (point, layers) = parse(program, text)?;
    let depth = program.architecture().layers.len();
    let Some(layers) = layers else {
        return one(program, Site::model(point));
    };
    let wanted = match layers {
        Layers::One(layer) => {
            check_layer(layer, depth, text)?;
            return one(program, Site::layer(layer, point));
        }
        Layers::Several(layers) => layers,
    };
    let mut matches = Matches { sites: Vec::new(), passed_over: Vec::new() };
    for layer in wanted {
        check_layer(layer, depth, text)?;
        let site = Site::layer(layer, point);
        if program.edge_of(site).is_some() { matches.sites.push(site) } else { matches.passed_over.push(site) }
    }
    if matches.sites.is_empty() {
        return Err(Error::site(
            format!("`{text}` matches no site: {}", point.absent_from(layer_of(program, matches.passed_over.first()))),
            "`pellucid sites` lists the sites of a model",
        ));
    }
    Ok(matches)
}

fn check_layer(layer: usize, depth: usize, text: &str) -> Result<()> {
    if layer < depth {
        return Ok(());
    }
    let last = depth.saturating_sub(1);
    Err(Error::site(format!("`{text}`: there is no layer {layer}"), format!("this model's layers are 0 to {last}")))
}

fn one(program: &Program, site: Site) -> Result<Matches> {
    if program.edge_of(site).is_some() {
        return Ok(Matches { sites: vec![site], passed_over: Vec::new() });
    }
    Err(Error::site(
        format!(
            "`{site}` does not exist on this {} model: {}",
            program.architecture().family,
            site.point.absent_from(layer_of(program, Some(&site)))
        ),
        "`pellucid sites` lists the sites of a model",
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
    // Our own addresses are what most texts are, and need no search.
    if let Some((layer, point)) = text.strip_prefix("layers.").and_then(|rest| rest.split_once('.'))
        && let (Some(point), Some(layers)) = (Point::named(point), parse_layers(layer, depth))
        && point.info().scope == Scope::Layer
    {
        return Ok((point, Some(layers)));
    }
    if let Some(point) = program.named(text) {
        return Ok((point, None));
    }
    for point in Point::ALL {
        for form in forms(point, &program.architecture().modules) {
            match matched(&form, text) {
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

/// The site that a text is the address of, which programs write: found without trying every way to write a point.
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

/// Every way to write a point's address, `{}` for the layer.
fn forms(point: Point, modules: &Modules) -> Vec<String> {
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

/// TransformerLens' short names: a word and the layer's number (`resid_post5`, `q3`, `pattern0`).
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

/// Hugging Face module paths with nnsight's `.input` and `.output`.
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

/// The aliases of a site, most useful first.
pub fn aliases(program: &Program, site: Site) -> Vec<String> {
    let modules = &program.architecture().modules;
    let layer = site.layer.map(|layer| layer.to_string()).unwrap_or_default();
    let forms =
        site.point.info().transformer_lens.map(String::from).into_iter().chain(module_form(site.point, modules));
    forms.map(|form| form.replace("{}", &layer)).collect()
}

/// Matches `text` against a form: `Some(None)` for a form without layer, else the layer's part of the text.
fn matched<'a>(form: &str, text: &'a str) -> Option<Option<&'a str>> {
    let Some((before, after)) = form.split_once("{}") else {
        return (form == text).then_some(None);
    };
    let selector = text.strip_prefix(before)?.strip_suffix(after)?;
    (!selector.is_empty()).then_some(Some(selector))
}

/// `5`, `*`, `3-7`, `{0,11}`.
fn parse_layers(text: &str, depth: usize) -> Option<Layers> {
    if text == "*" {
        return Some(Layers::Several((0..depth).collect()));
    }
    if let Some(list) = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        return list.split(',').map(|n| n.trim().parse().ok()).collect::<Option<_>>().map(Layers::Several);
    }
    if let Some((first, last)) = text.split_once('-') {
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // A range past the last layer is cut there and refused by the layer check, without listing billions of numbers.
        return (first <= last).then(|| Layers::Several((first..=last.min(depth.max(first))).collect()));
    }
    text.parse().ok().map(Layers::One)
}

/// What TransformerLens makes beside the stream when its flags are set: copies that only one reader sees. They are no edges of the
/// model, and the tensors that they repeat are written with another effect, so no site answers to their names.
fn beside_the_stream(text: &str) -> Option<Error> {
    let (layer, name) = text.strip_prefix("blocks.")?.split_once('.')?;
    let (what, remedy) = match name {
        "hook_attn_in" => (
            "the stream before the norm, copied for each head",
            format!(
                "read layers.{layer}.resid_pre; to change what attention alone is handed, write layers.{layer}.attn_in"
            ),
        ),
        "hook_q_input" | "hook_k_input" | "hook_v_input" => {
            let made = match name {
                "hook_q_input" => "q",
                "hook_k_input" => "k",
                _ => "value",
            };
            (
                "the stream before the norm, copied for the heads of one projection",
                format!("read layers.{layer}.resid_pre; to change one head's projection, write layers.{layer}.{made}"),
            )
        }
        "hook_mlp_in" => (
            "the stream before the norm, copied for the MLP",
            format!(
                "read layers.{layer}.resid_mid (resid_pre on a parallel block); to change what the MLP alone is handed, \
                 write layers.{layer}.mlp_in"
            ),
        ),
        _ => return None,
    };
    Some(Error::site(format!("`{text}` is no site: TransformerLens makes it beside the model, {what}"), remedy))
}

fn unknown(program: &Program, text: &str) -> Error {
    if let Some(point) = Point::named(text) {
        return Error::site(
            format!("`{text}` is a point of layers, and the address names none"),
            format!("write layers.*.{point}, or layers.0.{point}"),
        );
    }
    if let Some(error) = beside_the_stream(text) {
        return error;
    }
    let names = program.sites().map(|site| site.to_string());
    let aliases = program.sites().flat_map(|site| aliases(program, site));
    let mut near: Vec<(f64, String)> =
        names.chain(aliases).map(|name| (strsim::jaro_winkler(text, &name), name)).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    let near: Vec<String> = near.into_iter().take(3).map(|(_, name)| format!("`{name}`")).collect();
    Error::site(
        format!("no site is called `{text}`"),
        format!("did you mean {}? `pellucid sites` lists them all", near.join(", ")),
    )
}
