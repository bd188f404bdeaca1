//! `/v1/sites`: the named activations of a model.

use super::Reply;
use crate::api_error::{ApiResult, ErrorBody};
use crate::extract::QueryParams;
use crate::state::AppState;
use axum::extract::State;
use pellucid_engine::program::Layout;
use pellucid_engine::{Program, Site, site};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
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
    shape: Vec<Axis>,
    /// What it is.
    meaning: String,
    /// Other names of it.
    aliases: Vec<String>,
}

/// The size of an axis.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema, JsonSchema)]
#[serde(untagged)]
pub enum Axis {
    /// A number.
    Size(usize),
    /// `tokens`: the number of positions.
    Tokens(&'static str),
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Axis::Size(size) => size.fmt(f),
            Axis::Tokens(name) => name.fmt(f),
        }
    }
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
    let model = state.models.acquire(query.model.as_deref(), None).await?;
    let program = model.loaded.model.program();
    let object = |site: Site| SiteObject {
        site: site.to_string(),
        shape: shape(program, site),
        meaning: site.meaning().to_string(),
        aliases: site::aliases(program, site).into_iter().map(|alias| alias.to_string()).collect(),
    };
    Ok(Reply(SiteList { model: model.id.clone(), sites: program.sites().map(object).collect() }))
}

/// The shape of a site.
pub fn shape(program: &Program, site: Site) -> Vec<Axis> {
    let tokens = || Axis::Tokens("tokens");
    let Some(edge) = program.edge_of(site) else { return Vec::new() };
    let edge = program.edge(edge);
    match edge.layout {
        Layout::Flat => vec![tokens(), Axis::Size(edge.width)],
        Layout::Heads(heads) => vec![tokens(), Axis::Size(heads), Axis::Size(edge.width / heads)],
        Layout::QueryKey => vec![Axis::Size(edge.width), tokens(), tokens()],
    }
}
