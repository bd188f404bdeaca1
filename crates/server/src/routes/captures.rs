//! `/v1/captures/{id}`: the captures of a finished completion request.

use super::Reply;
use crate::api_error::{ApiResult, ErrorBody};
use crate::extract::PathParam;
use crate::inspection::{ArrayObject, arrays};
use crate::state::AppState;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

/// Stored captures.
#[derive(Debug, Serialize, ToSchema)]
pub struct CapturesObject {
    /// Their id.
    id: String,
    /// The model.
    model: String,
    /// The arrays.
    tensors: Vec<ArrayObject>,
}

/// Something that was deleted.
#[derive(Debug, Serialize, ToSchema)]
pub struct Deleted {
    /// Its id or name.
    pub id: String,
    /// Always true.
    pub deleted: bool,
}

/// Fetch captures. With `Accept: application/vnd.safetensors` the body is a safetensors file.
#[utoipa::path(
    get, path = "/v1/captures/{id}", params(("id" = String, Path, description = "Id of the captures")),
    responses((status = 200, body = CapturesObject), (status = "default", body = ErrorBody))
)]
pub async fn show(State(state): State<AppState>, PathParam(id): PathParam, headers: HeaderMap) -> ApiResult<Response> {
    let stored = state.captures.get(&id)?;
    super::blocking(move || {
        let (id, model) = (stored.id.clone(), stored.model.clone());
        arrays::respond(&headers, &stored.results(), |tensors| CapturesObject { id, model, tensors })
    })
    .await
}

/// Delete captures and free their memory.
#[utoipa::path(
    delete, path = "/v1/captures/{id}", params(("id" = String, Path, description = "Id of the captures")),
    responses((status = 200, body = Deleted), (status = "default", body = ErrorBody))
)]
pub async fn delete(State(state): State<AppState>, PathParam(id): PathParam) -> ApiResult<Reply<Deleted>> {
    state.captures.remove(&id)?;
    Ok(Reply(Deleted { id, deleted: true }))
}
