//! `/v1/models`: the served models and their aliases.

use super::Reply;
use crate::api_error::{ApiResult, ErrorBody};
use crate::extract::PathParam;
use crate::registry::ListedModel;
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
    /// When the server began to serve it, in seconds since 1970.
    created: u64,
    /// `pellucid`.
    owned_by: &'static str,
    /// The name that an alias stands for; of a model its own name.
    root: String,
    /// The model that an adapter belongs to; otherwise null.
    parent: Option<String>,
    /// Most positions of a row.
    max_model_len: Option<usize>,
    /// Whether it is in memory; otherwise the first request that names it loads it.
    loaded: bool,
    /// The model's family.
    family: String,
    /// Number of layers.
    layers: usize,
    /// Storage formats of the weights, such as `bf16` or `Q4_K + Q6_K`.
    dtype: String,
    /// Bytes of the weights, adapters and SAEs; a prediction until the model was loaded once.
    bytes: usize,
}

impl ModelObject {
    fn new(model: ListedModel<'_>, created: u64) -> ModelObject {
        let root = model.root();
        let ListedModel { name, model, adapter, description, is_loaded } = model;
        ModelObject {
            id: name.into(),
            object: "model",
            created,
            owned_by: "pellucid",
            root,
            parent: adapter.map(|_| model.to_owned()),
            max_model_len: description.context,
            loaded: is_loaded,
            family: description.family,
            layers: description.layers,
            dtype: description.storage,
            bytes: description.bytes,
        }
    }
}

/// All models.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    object: &'static str,
    /// The models, then their adapters, then the aliases.
    data: Vec<ModelObject>,
}

/// List the models, their adapters and the aliases.
#[utoipa::path(get, path = "/v1/models", responses((status = 200, body = ModelList), (status = "default", body = ErrorBody)))]
pub async fn list(State(state): State<AppState>) -> Reply<ModelList> {
    let models = &state.models;
    let data = models.listed().into_iter().map(|model| ModelObject::new(model, models.created)).collect();
    Reply(ModelList { object: "list", data })
}

/// Show a model. Names may contain slashes.
#[utoipa::path(
    get, path = "/v1/models/{*id}", params(("id" = String, Path, description = "Name of a model, `MODEL:ADAPTER`, or an alias")),
    responses((status = 200, body = ModelObject), (status = "default", body = ErrorBody))
)]
pub async fn show(State(state): State<AppState>, PathParam(id): PathParam) -> ApiResult<Reply<ModelObject>> {
    let models = &state.models;
    Ok(Reply(ModelObject::new(models.show(&id)?, models.created)))
}
