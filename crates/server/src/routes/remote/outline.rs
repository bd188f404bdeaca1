//! The model without its weights, for clients that keep everything else local.

use crate::api_error::{ApiResult, ErrorBody};
use crate::extract::QueryParams;
use crate::reply::Reply;
use crate::state::AppState;
use axum::extract::State;
use pellucid_models::wire::{Hello, PROTOCOL};
use serde::Deserialize;
use utoipa::IntoParams;

/// The parameters of `/v1/remote/outline`.
#[derive(Debug, Deserialize, IntoParams)]
pub struct OutlineParams {
    /// The model, or an alias of it; the server's first model if absent.
    model: Option<String>,
    /// The version of the formats that the client knows.
    protocol: u32,
}

/// Everything about a model except its weights: architecture, tokenizer, chat template.
#[utoipa::path(
    get, path = "/v1/remote/outline", params(OutlineParams),
    responses((status = 200, body = Object), (status = "default", body = ErrorBody))
)]
pub async fn outline(
    State(state): State<AppState>,
    QueryParams(params): QueryParams<OutlineParams>,
) -> ApiResult<Reply<Hello>> {
    let model = state.models.acquire(params.model.as_deref(), None).await?;
    super::super::blocking(move || {
        let outline =
            (params.protocol == PROTOCOL).then(|| model.loaded.outline()).transpose().map_err(super::fault)?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Reply(Hello { protocol: PROTOCOL, version, id: model.id.clone(), outline }))
    })
    .await
}
