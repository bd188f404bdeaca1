//! Parameters in paths and queries, with errors in the shape of the API.

use crate::api_error::{ApiError, ApiResult};
use crate::state::AppState;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

/// The parameter of a path, such as an id.
pub struct PathParam(pub String);

impl FromRequestParts<AppState> for PathParam {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> ApiResult<PathParam> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) => Ok(PathParam(text)),
            Err(rejection) => Err(ApiError::new(StatusCode::BAD_REQUEST, rejection.body_text())),
        }
    }
}

/// The parameters of a query.
pub struct QueryParams<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<AppState> for QueryParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> ApiResult<QueryParams<T>> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(QueryParams(params)),
            Err(rejection) => Err(ApiError::new(StatusCode::BAD_REQUEST, rejection.body_text())),
        }
    }
}
