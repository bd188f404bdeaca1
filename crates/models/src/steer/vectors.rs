//! [`SteeringVectors`]: the directions of a file, checked, and the taps that add them.

use super::{LayerList, SteeringInfo, fingerprint, gguf_file, safetensors_file};
use crate::files::first_bytes;
use crate::{Error, LoadedModel, Result};
use pellucid_engine::point::Scope;
use pellucid_engine::{Point, Program, Remedy, Site, Tap};
use std::collections::BTreeMap;
use std::path::Path;

/// One direction per layer, all of the same width, finite and not zero.
#[derive(Clone, Debug, PartialEq)]
pub struct SteeringVectors {
    point: Point,
    directions: BTreeMap<usize, Vec<f32>>,
    /// How the vectors were made.
    pub info: SteeringInfo,
}

impl SteeringVectors {
    /// Creates vectors for a point of these layers.
    ///
    /// # Errors
    /// If there is no layer, the widths differ, or a direction is empty, zero or not finite.
    pub fn new(point: Point, directions: BTreeMap<usize, Vec<f32>>, info: SteeringInfo) -> Result<SteeringVectors> {
        let Some((&first, width)) = directions.iter().next().map(|(layer, direction)| (layer, direction.len())) else {
            return Err(Error::usage("there are no directions", "give one vector per layer"));
        };
        for (layer, direction) in &directions {
            if direction.len() != width {
                return Err(Error::usage(
                    format!(
                        "the direction of layer {layer} has {} elements, that of layer {first} has {width}",
                        direction.len()
                    ),
                    "all directions of a model have its width",
                ));
            }
            if let Some(index) = direction.iter().position(|x| !x.is_finite()) {
                return Err(Error::usage(
                    format!("the direction of layer {layer} has {} at index {index}", direction[index]),
                    "extract the vectors again; every element is a finite number",
                ));
            }
            if direction.iter().all(|&x| x == 0.0) {
                return Err(Error::usage(
                    format!("the direction of layer {layer} is zero"),
                    "leave this layer out of the file",
                ));
            }
        }
        Ok(SteeringVectors { point, directions, info })
    }

    /// Reads a safetensors file or a GGUF control vector; the first bytes decide which it is.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or holds anything but directions.
    pub fn open(path: &Path) -> Result<SteeringVectors> {
        let is_gguf = first_bytes(path, 4)? == b"GGUF";
        if is_gguf { gguf_file::read(path) } else { safetensors_file::read(path) }
    }

    /// Returns the bytes of a file in the format of the path's extension, `.safetensors` or
    /// `.gguf`.
    ///
    /// # Errors
    /// If the extension is another one, or a GGUF control vector cannot hold these vectors.
    pub fn to_file(&self, path: &Path) -> Result<Vec<u8>> {
        check_format(path, self.point, self.directions.keys())?;
        if is_gguf(path) { Ok(gguf_file::write(self)) } else { safetensors_file::write(self) }
    }

    /// The point that the directions are added to, usually `resid_post`.
    pub fn point(&self) -> Point {
        self.point
    }

    /// The direction of each layer.
    pub fn directions(&self) -> &BTreeMap<usize, Vec<f32>> {
        &self.directions
    }

    /// The layers.
    pub fn layers(&self) -> LayerList {
        self.directions.keys().copied().collect()
    }

    /// The width of every direction.
    pub fn width(&self) -> usize {
        self.directions.values().next().map_or(0, Vec::len)
    }

    /// Returns the vectors of some layers.
    ///
    /// # Errors
    /// If there is no direction for one of them.
    pub fn select(&self, layers: &LayerList) -> Result<SteeringVectors> {
        let one = |&layer: &usize| match self.directions.get(&layer) {
            Some(direction) => Ok((layer, direction.clone())),
            None => Err(Error::usage(
                format!("there is no direction for layer {layer}"),
                format!("it has directions for layers {}", self.layers()),
            )),
        };
        let directions = layers.as_slice().iter().map(one).collect::<Result<_>>()?;
        SteeringVectors::new(self.point, directions, self.info.clone())
    }

    /// Returns taps that add `scale` times the direction of each layer.
    ///
    /// # Errors
    /// If the scale is not finite.
    pub fn taps(&self, scale: f32) -> Result<Vec<Tap>> {
        if !scale.is_finite() {
            return Err(Error::usage(format!("the scale is {scale}"), "give a finite number"));
        }
        let tap = |(&layer, direction): (&usize, &Vec<f32>)| {
            Tap::add(Site::layer(layer, self.point).to_string()).times(scale).with(direction.as_slice())
        };
        Ok(self.directions.iter().map(tap).collect())
    }

    /// Checks that a model has these layers, and that the directions have the width of its sites.
    pub fn check(&self, program: &Program) -> Result<()> {
        let depth = program.architecture().layers.len();
        for &layer in self.directions.keys() {
            let site = Site::layer(layer, self.point);
            if layer >= depth {
                return Err(Error::usage(
                    format!("there is a direction for layer {layer}, and the model has layers 0 to {}", depth - 1),
                    "use vectors of this model, or select some of its layers",
                ));
            }
            let Some(edge) = program.edge_of(site) else {
                return Err(Error::usage(format!("the model has no site `{site}`"), Remedy::ListSites));
            };
            let expected = program.edge(edge).width;
            if self.width() != expected {
                return Err(Error::usage(
                    format!("the directions have {} elements, and `{site}` has {expected}", self.width()),
                    "use vectors that were extracted from this model",
                ));
            }
        }
        Ok(())
    }

    /// Compares the file's model with this one; returns a warning if they differ.
    pub fn warning(&self, loaded: &LoadedModel) -> Option<String> {
        let family = &loaded.model.program().architecture().family;
        if let Some(hint) = &self.info.model_type
            && normalize(hint) != normalize(family)
        {
            return Some(format!(
                "the steering vectors were made for a model of type `{hint}`; this one is `{family}`"
            ));
        }
        let recorded = self.info.fingerprint.as_ref()?;
        let own = loaded.fingerprint.clone().unwrap_or_else(|| fingerprint(&loaded.model));
        (*recorded != own).then(|| {
            format!("the steering vectors were made with another model (fingerprint {recorded}; this one has {own})")
        })
    }
}

/// Checks that the format of the path's extension can hold vectors for this point and these layers,
/// before they are computed.
///
/// # Errors
/// If the extension is neither `.safetensors` nor `.gguf`, or a GGUF control vector cannot hold
/// them.
pub fn check_format<'a>(path: &Path, point: Point, layers: impl IntoIterator<Item = &'a usize>) -> Result<()> {
    if is_gguf(path) {
        return gguf_file::check(point, layers);
    }
    if path.extension().is_some_and(|extension| extension == "safetensors") {
        return Ok(());
    }
    Err(Error::usage(
        format!("{}: steering vectors are saved as .safetensors or .gguf", path.display()),
        "give the file one of these extensions; .gguf is for llama.cpp and repeng",
    ))
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gguf")
}

/// llama.cpp writes `gptneox` where Hugging Face writes `gpt_neox`.
fn normalize(model_type: &str) -> String {
    model_type.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// Returns the point of this name that layers have, such as `resid_post`.
///
/// # Errors
/// If there is none.
pub fn layer_point(name: &str) -> Result<Point> {
    find_point(name).ok_or_else(|| Error::usage(format!("layers have no point `{name}`"), Remedy::ListSites))
}

fn find_point(name: &str) -> Option<Point> {
    let of_layers = Point::ALL.into_iter().filter(|point| point.info().scope == Scope::Layer);
    of_layers.into_iter().find(|point| point.info().name == name)
}

/// Parses the name of a tensor: `direction.N`, `layers.N.POINT`, `layers.N`, `layer.N` or `N`.
/// Returns the layer, and the point if the name has one.
pub(super) fn parse_name(name: &str) -> Option<(usize, Option<Point>)> {
    let after = |prefix: &str| name.strip_prefix(prefix);
    if let Some(number) = after("direction.") {
        return Some((number.parse().ok()?, None));
    }
    let rest = after("layers.").or_else(|| after("layer.")).unwrap_or(name);
    match rest.split_once('.') {
        None => Some((rest.parse().ok()?, None)),
        Some((number, point)) => Some((number.parse().ok()?, Some(find_point(point)?))),
    }
}

/// Collects the directions of a file. `tensors` are names, shapes and elements.
pub(super) fn from_tensors(
    path: &Path,
    tensors: impl Iterator<Item = Result<(String, Vec<usize>, Vec<f32>)>>,
    info: SteeringInfo,
) -> Result<SteeringVectors> {
    let invalid = |problem: String, remedy: &str| Error::invalid(path, problem, remedy);
    let (mut directions, mut point) = (BTreeMap::new(), None);
    for tensor in tensors {
        let (name, shape, values) = tensor?;
        let (layer, named) = parse_name(&name).ok_or_else(|| {
            invalid(
                format!("tensor `{name}` is not the direction of a layer"),
                "a file of steering vectors has tensors `direction.N` or `layers.N.resid_post` only",
            )
        })?;
        if !matches!(shape[..], [_] | [1, _]) {
            return Err(invalid(
                format!("tensor `{name}` has shape {shape:?}"),
                "a direction is a vector, with one element per channel of the residual stream",
            ));
        }
        let named = named.unwrap_or(Point::ResidPost);
        if *point.get_or_insert(named) != named {
            return Err(invalid(
                format!("tensor `{name}` is at another point than the tensors before it"),
                "put the directions of each point into a file of their own",
            ));
        }
        if directions.insert(layer, values).is_some() {
            return Err(invalid(format!("layer {layer} has two directions"), "keep one of them"));
        }
    }
    SteeringVectors::new(point.unwrap_or(Point::ResidPost), directions, info).map_err(|error| in_file(path, error))
}

/// Names the file in an error about its contents.
pub(super) fn in_file(path: &Path, error: Error) -> Error {
    match error {
        Error::Usage { problem, remedy } => Error::Invalid { path: path.to_owned(), problem, remedy },
        other => other,
    }
}
