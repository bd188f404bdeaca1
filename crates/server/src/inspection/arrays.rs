//! Arrays on the wire: a safetensors body, or base64 with dtype and shape in JSON, as `Accept`
//! says.

use crate::api_error::ApiResult;
use crate::reply::Reply;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pellucid_engine::{Array, Capture};
use pellucid_models::results::Results;
use safetensors::View;
use serde::Serialize;
use utoipa::ToSchema;

/// The content type of safetensors bodies.
pub const SAFETENSORS: &str = "application/vnd.safetensors";

/// An array in JSON.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ArrayObject {
    /// The site, prefixed by `ROW/` if there are several rows, or the name of a saved value.
    pub name: String,
    /// `F32`, `BF16` or `I64`.
    pub dtype: String,
    /// For a whole site `[positions, width]`.
    pub shape: Vec<usize>,
    /// The elements in row-major order, little endian, as base64.
    pub data: String,
}

/// Whether a request asks for a safetensors body.
pub fn wants_safetensors(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut types = accepted.flat_map(|list| list.split(',')).map(|item| item.split(';').next().unwrap_or("").trim());
    types.any(|kind| [SAFETENSORS, "application/octet-stream"].contains(&kind))
}

/// The arrays of results as JSON objects.
pub fn objects(results: &Results) -> Vec<ArrayObject> {
    let object = |(name, tensor): (String, pellucid_models::results::ResultView)| ArrayObject {
        name,
        dtype: format!("{:?}", tensor.dtype()),
        shape: tensor.shape.clone(),
        data: STANDARD.encode(tensor.data()),
    };
    results.tensors().into_iter().map(object).collect()
}

/// Answers with a safetensors body if the request asks for one, or with what `json` makes of the
/// arrays.
pub fn respond<T: Serialize>(
    headers: &HeaderMap,
    results: &Results,
    json: impl FnOnce(Vec<ArrayObject>) -> T,
) -> ApiResult<Response> {
    if wants_safetensors(headers) {
        return Ok(([(CONTENT_TYPE, SAFETENSORS)], results.to_safetensors()?).into_response());
    }
    Ok(Reply(json(objects(results))).into_response())
}

/// New positions of a capture of a running request.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CaptureLines {
    /// The site.
    pub site: String,
    /// The choice.
    pub choice: usize,
    /// The positions, one for each line.
    pub positions: Vec<usize>,
    /// `F32`, `BF16` or `I64`.
    pub dtype: String,
    /// `[positions, width]`.
    pub shape: Vec<usize>,
    /// The elements in row-major order, little endian, as base64.
    pub data: String,
}

impl CaptureLines {
    /// The lines of a capture from line `first` on; `None` if there are none.
    pub fn after(capture: &Capture, first: usize, first_choice: usize) -> Option<CaptureLines> {
        let positions = capture.positions.get(first..).filter(|positions| !positions.is_empty())?;
        let width: usize = capture.array.shape().iter().skip(1).product();
        let mut shape = capture.array.shape().to_vec();
        *shape.first_mut()? = positions.len();
        let (dtype, bytes) = bytes_from(&capture.array, first * width);
        Some(CaptureLines {
            site: capture.site.to_string(),
            choice: first_choice + capture.row,
            positions: positions.to_vec(),
            dtype: dtype.into(),
            shape,
            data: STANDARD.encode(bytes),
        })
    }
}

/// The elements of an array from `start` on, as bytes with their dtype.
fn bytes_from(array: &Array, start: usize) -> (&'static str, Vec<u8>) {
    match array.halves() {
        Some(halves) => {
            ("BF16", halves.get(start..).unwrap_or_default().iter().flat_map(|x| x.to_le_bytes()).collect())
        }
        None => {
            let values = array.values().get(start..).unwrap_or_default();
            match array.is_integer() {
                true => ("I64", values.iter().flat_map(|&x| (x as i64).to_le_bytes()).collect()),
                false => ("F32", values.iter().flat_map(|x| x.to_le_bytes()).collect()),
            }
        }
    }
}
