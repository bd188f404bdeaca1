//! `FILE[@SCALE][:LAYERS]`: steering vectors as the command line names them.

use super::vectors::in_file;
use super::{LayerList, SteeringVectors};
use crate::{Error, LoadedModel, Result};
use pellucid_engine::Tap;
use std::path::{Path, PathBuf};

/// A file of steering vectors, with the scale and the layers to use.
#[derive(Clone, Debug, PartialEq)]
pub struct SteerSpec {
    /// The file.
    pub path: PathBuf,
    /// Scale of every direction; negative scales steer the other way.
    pub scale: f32,
    /// Layers to steer; all layers of the file if absent.
    pub layers: Option<LayerList>,
}

impl SteerSpec {
    /// Parses `FILE[@SCALE][:LAYERS]`.
    ///
    /// ```
    /// use pellucid_models::steer::SteerSpec;
    /// let spec = SteerSpec::parse("happy.gguf@-1.5:5-9")?;
    /// assert_eq!((spec.path.to_str(), spec.scale), (Some("happy.gguf"), -1.5));
    /// assert_eq!(spec.layers.unwrap().as_slice(), [5, 6, 7, 8, 9]);
    /// # Ok::<(), pellucid_models::Error>(())
    /// ```
    pub fn parse(text: &str) -> Result<SteerSpec> {
        let whole = SteerSpec { path: PathBuf::from(text), scale: 1.0, layers: None };
        // A path may contain both separators; a file of this name is meant literally.
        if Path::new(text).is_file() {
            return Ok(whole);
        }
        let wrong = |problem: String| Error::usage(problem, "write FILE[@SCALE][:LAYERS], such as happy.gguf@1.5:5-9");
        let (rest, layers) = match text.rsplit_once(':') {
            // A colon before a separator of directories belongs to the path.
            Some((rest, layers)) if !layers.contains(['/', '\\', '@']) => {
                let layers = layers.parse().map_err(|problem| wrong(format!("in {text:?}: {problem}")))?;
                (rest, Some(layers))
            }
            _ => (text, None),
        };
        let (path, scale) = match rest.rsplit_once('@') {
            Some((path, scale)) if !scale.contains(['/', '\\']) => {
                let number = scale.parse::<f32>().ok().filter(|scale| scale.is_finite());
                (path, number.ok_or_else(|| wrong(format!("in {text:?}: the scale {scale:?} is not a number")))?)
            }
            _ => (rest, 1.0),
        };
        if path.is_empty() {
            return Err(wrong(format!("{text:?} names no file")));
        }
        Ok(SteerSpec { path: PathBuf::from(path), scale, layers })
    }

    /// Reads the file and returns the taps for a model, with a warning if the file was made for
    /// another model.
    ///
    /// # Errors
    /// If the file cannot be read, does not fit the model, or lacks one of the layers.
    pub fn taps(&self, loaded: &LoadedModel) -> Result<(Vec<Tap>, Option<String>)> {
        let mut vectors = SteeringVectors::open(&self.path)?;
        let in_this_file = |error| in_file(&self.path, error);
        if let Some(layers) = &self.layers {
            vectors = vectors.select(layers).map_err(in_this_file)?;
        }
        vectors.check(loaded.model.program()).map_err(in_this_file)?;
        let warning = vectors.warning(loaded).map(|warning| format!("{}: {warning}", self.path.display()));
        Ok((vectors.taps(self.scale).map_err(in_this_file)?, warning))
    }
}
