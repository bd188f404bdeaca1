//! What a finished request has seen: its captures, marks and skipped sites.

use super::arrays::CaptureLines;
use super::store::StoredCaptures;
use pellucid_engine::Mark;
use safetensors::View;
use serde::Serialize;
use utoipa::ToSchema;

/// The captures of a prompt, which `GET /v1/captures/{id}` returns.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CaptureInfo {
    /// Their id.
    pub id: String,
    /// The number of the prompt in the request.
    pub prompt: usize,
    /// The arrays.
    pub tensors: Vec<TensorInfo>,
}

/// An array of captures.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TensorInfo {
    /// The site, prefixed by `ROW/` if the prompt has several choices.
    pub name: String,
    /// `F32`, `BF16` or `I64`.
    pub dtype: String,
    /// For a whole site `[positions, width]`.
    pub shape: Vec<usize>,
}

/// What a request has seen.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Inspection {
    /// Captures of each prompt that has some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub captures: Vec<CaptureInfo>,
    /// Positions at which marks of the plan held.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub marks: Vec<Mark>,
    /// Sites of a pattern that the model does not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped_sites: Vec<String>,
    /// In a stream with `stream_captures`: the captured positions since the last chunk.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capture_lines: Vec<CaptureLines>,
}

impl Inspection {
    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.captures.is_empty() && self.marks.is_empty() && self.skipped_sites.is_empty()
    }
}

impl CaptureInfo {
    pub fn new(prompt: usize, stored: &StoredCaptures) -> CaptureInfo {
        let results = stored.results();
        let tensors = results.tensors().into_iter().map(|(name, tensor)| TensorInfo {
            name,
            dtype: format!("{:?}", tensor.dtype()),
            shape: tensor.shape.clone(),
        });
        CaptureInfo { id: stored.id.clone(), prompt, tensors: tensors.collect() }
    }
}
