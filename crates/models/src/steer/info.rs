//! How steering vectors were made: metadata that travels with the file.

use serde::{Deserialize, Serialize};
use std::path::Path;

use crate::{Error, Result};

/// Metadata key, in both formats. Its value is [`SteeringInfo`] as JSON: one key, so that the bytes
/// of a file do not depend on the order of a map.
pub(super) const KEY: &str = "pellucid.steering";

/// How steering vectors were made. Every field may be absent: other programs do not write them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SteeringInfo {
    /// Type of the model (`llama`); `controlvector.model_hint` in GGUF files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_type: Option<String>,
    /// [`fingerprint`](super::fingerprint()) of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Method of extraction (`mean`, `pca_diff`, `pca_center`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Positions whose activations were read (`last`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub positions: Option<String>,
    /// Number of contrastive pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<usize>,
    /// The meaning of scale 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<ScaleConvention>,
}

/// The meaning of scale 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleConvention {
    /// Each direction has length 1, so a useful scale depends on the norm of the activations.
    Unit,
    /// Each direction is the mean difference of activations, so scale 1 moves the mean negative
    /// example to the mean positive one.
    Difference,
}

impl ScaleConvention {
    /// Returns its name in files.
    pub fn name(self) -> &'static str {
        match self {
            ScaleConvention::Unit => "unit",
            ScaleConvention::Difference => "difference",
        }
    }
}

impl SteeringInfo {
    /// Parses the metadata of the file `path`, as [`to_json`](Self::to_json) writes it.
    pub fn parse(json: &str, path: &Path) -> Result<SteeringInfo> {
        serde_json::from_str(json).map_err(|error| {
            Error::invalid(path, format!("the metadata {KEY:?} is not valid: {error}"), "extract the vectors again")
        })
    }

    /// Returns the metadata as it is stored in files.
    pub fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }
}
