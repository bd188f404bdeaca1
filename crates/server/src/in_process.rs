//! The routes without a listener, for fuzzing.

use crate::error::{Error, Result};
use crate::mcp;
use crate::options::ServerOptions;
use crate::registry::ModelEntry;
use crate::routes;
use crate::state::State;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// A server that answers requests of this process. All layers are those of a server that listens.
pub struct InProcess {
    runtime: Runtime,
    router: Router,
}

/// The answer to a request.
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The content type, or an empty text.
    pub content_type: String,
    /// The whole body.
    pub body: Vec<u8>,
}

impl InProcess {
    /// Starts a scheduler for each model.
    pub fn new(models: Vec<ModelEntry>, options: ServerOptions) -> Result<InProcess> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)?;
        let state = Arc::new(State::new(models.into_iter().map(Into::into).collect(), options)?);
        let router = routes::router(state.clone(), mcp::router(&state));
        Ok(InProcess { runtime, router })
    }

    /// Posts a body as JSON.
    pub fn post(&self, path: &str, body: Vec<u8>) -> Result<Answer> {
        let io = |error: String| Error::Runtime(std::io::Error::other(error));
        let request = Request::post(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .body(Body::from(body))
            .map_err(|error| io(error.to_string()))?;
        self.runtime.block_on(async {
            let answer = match TowerToHyperService::new(self.router.clone()).call(request).await {
                Ok(answer) => answer,
                Err(never) => match never {},
            };
            let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
            let body = answer.into_body().collect().await.map_err(|error| io(error.to_string()))?.to_bytes().to_vec();
            let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
            Ok(Answer { status, content_type: content_type.to_owned(), body })
        })
    }
}
