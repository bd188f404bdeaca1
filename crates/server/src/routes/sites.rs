//! `/v1/sites`: the named activations of a model.

use super::Reply;
use crate::api_error::{ApiResult, ErrorBody};
use crate::extract::QueryParams;
use crate::state::AppState;
use axum::extract::State;
use pellucid_engine::program::Layout;
use pellucid_engine::{Program, Site, site};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

/// Which model to describe.
#[derive(Debug, Deserialize, IntoParams)]
pub struct ModelQuery {
    /// The model, or an alias of it; the server's first model if absent.
    pub model: Option<String>,
}

/// The sites of a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct SiteList {
    /// The model.
    model: String,
    /// The sites, in the order of computation.
    sites: Vec<SiteObject>,
}

/// A site.
#[derive(Debug, Serialize, ToSchema)]
pub struct SiteObject {
    /// Its address in plans.
    site: String,
    /// Its shape, with `tokens` for the number of positions.
    #[schema(value_type = Vec<Object>)]
    shape: Vec<Value>,
    /// What it is.
    meaning: String,
    /// Other names of it.
    aliases: Vec<String>,
}

/// List the sites of a model.
#[utoipa::path(
    get, path = "/v1/sites", params(ModelQuery),
    responses((status = 200, body = SiteList), (status = "default", body = ErrorBody))
)]
pub async fn list(
    State(state): State<AppState>,
    QueryParams(query): QueryParams<ModelQuery>,
) -> ApiResult<Reply<SiteList>> {
    let model = state.models.find(query.model.as_deref())?;
    let program = model.loaded.model.program();
    let object = |site: Site| SiteObject {
        site: site.to_string(),
        shape: shape(program, site),
        meaning: site.meaning().to_string(),
        aliases: site::aliases(program, site).into_iter().map(|alias| alias.to_string()).collect(),
    };
    Ok(Reply(SiteList { model: model.id.clone(), sites: program.sites().map(object).collect() }))
}

/// The shape of a site, with `tokens` for the number of positions.
pub fn shape(program: &Program, site: Site) -> Vec<Value> {
    let Some(edge) = program.edge_of(site) else { return Vec::new() };
    let edge = program.edge(edge);
    match edge.layout {
        Layout::Flat => vec![json!("tokens"), json!(edge.width)],
        Layout::Heads(heads) => vec![json!("tokens"), json!(heads), json!(edge.width / heads)],
        Layout::QueryKey => vec![json!(edge.width), json!("tokens"), json!("tokens")],
    }
}
