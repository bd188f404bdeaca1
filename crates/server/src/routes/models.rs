//! `/v1/models`: the served models and their aliases.

use super::Reply;
use crate::api_error::{ApiResult, ErrorBody};
use crate::extract::PathParam;
use crate::registry::ServedModel;
use crate::state::AppState;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelObject {
    /// Its name in requests.
    id: String,
    /// `model`.
    object: &'static str,
    /// When it was loaded, in seconds since 1970.
    created: u64,
    /// `pellucid`.
    owned_by: &'static str,
    /// The model that an alias stands for; of a model its own name.
    root: String,
    /// Most positions of a row.
    max_model_len: Option<usize>,
}

impl ModelObject {
    fn new(name: &str, model: &ServedModel) -> ModelObject {
        ModelObject {
            id: name.into(),
            object: "model",
            created: model.created,
            owned_by: "pellucid",
            root: model.id.clone(),
            max_model_len: model.context(),
        }
    }
}

/// All models.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    object: &'static str,
    /// The models, then the aliases.
    data: Vec<ModelObject>,
}

/// List the models and their aliases.
#[utoipa::path(get, path = "/v1/models", responses((status = 200, body = ModelList), (status = "default", body = ErrorBody)))]
pub async fn list(State(state): State<AppState>) -> Reply<ModelList> {
    let data = state.models.names().map(|(name, model)| ModelObject::new(name, model)).collect();
    Reply(ModelList { object: "list", data })
}

/// Show a model. Names may contain slashes.
#[utoipa::path(
    get, path = "/v1/models/{*id}", params(("id" = String, Path, description = "Name or alias of a model")),
    responses((status = 200, body = ModelObject), (status = "default", body = ErrorBody))
)]
pub async fn show(State(state): State<AppState>, PathParam(id): PathParam) -> ApiResult<Reply<ModelObject>> {
    let model = state.models.find(Some(&id))?;
    Ok(Reply(ModelObject::new(&id, &model)))
}
