//! Single weights.

use super::fault;
use crate::api_error::{ApiError, ApiResult, ErrorBody};
use crate::extract::QueryParams;
use crate::routes::direct::run_alone;
use crate::state::AppState;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use pellucid_engine::{Array, Site};
use pellucid_models::wire::{ArrayFile, RESULTS};
use serde::Deserialize;
use utoipa::IntoParams;

/// The parameters of `/v1/remote/weights`.
#[derive(Debug, Deserialize, IntoParams)]
pub struct WeightsParams {
    /// The model, or an alias of it; the server's first model if absent.
    model: Option<String>,
    /// The name of a weight, such as `layers.3.mlp.down`.
    name: Option<String>,
    /// Instead of a name, a site: the weight and the bias of the op that computes it.
    site: Option<String>,
}

/// Return a weight as f32.
#[utoipa::path(
    get, path = "/v1/remote/weights", params(WeightsParams),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/vnd.pellucid.results"),
        (status = "default", body = ErrorBody)
    )
)]
pub async fn weights(
    State(state): State<AppState>,
    QueryParams(params): QueryParams<WeightsParams>,
) -> ApiResult<Response> {
    let model = state.models.acquire(params.model.as_deref(), None).await?;
    run_alone(&state, move |_| {
        let arrays = read_weights(&model.loaded.model, &params)?;
        let mut file = ArrayFile::default();
        arrays.iter().for_each(|array| _ = file.add(array));
        Ok(([(CONTENT_TYPE, RESULTS)], file.encode(&()).map_err(fault)?).into_response())
    })
    .await
}

fn read_weights(model: &pellucid_engine::Model, params: &WeightsParams) -> ApiResult<Vec<Array>> {
    let program = model.program();
    match (&params.name, &params.site) {
        (Some(name), None) => {
            let unknown = || ApiError::field("name", format!("the model has no weight {name:?}"));
            let id = program.weight_named(name).ok_or_else(unknown)?;
            Ok(vec![Array::new(program.weight(id).shape.clone(), model.weights().floats(id))])
        }
        (None, Some(site)) => {
            let site: Site = site.parse().map_err(|problem: String| ApiError::field("site", problem))?;
            let (weight, bias) = model.weight_of(site).map_err(fault)?;
            Ok(std::iter::once(weight).chain(bias).collect())
        }
        _ => Err(ApiError::field("name", "give either the `name` of a weight or a `site`")),
    }
}
