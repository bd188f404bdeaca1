//! The server side of the protocol: lists the tools and calls them.

use super::error;
use super::progress::Progress;
use super::tool::Entry;
use super::tools;
use crate::api_error::ApiError;
use crate::state::AppState;
use futures_util::FutureExt;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, Implementation, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

/// The description by which an agent chooses a tool.
const INSTRUCTIONS: &str = "\
Pellucid runs a language model on this machine and reads or changes any activation. Start with `describe` (which \
model, which sizes) and `sites` (names of activations). `run` computes prompts once and summarizes activations; \
`generate` continues a prompt, under the same edits; `lens` shows what each layer would predict; `sweep` measures how \
many edits move one token's probability (ablation, patching), far cheaper than separate runs. `explain` estimates the \
cost of a plan before it runs. Activations are named like layers.3.resid_post; edits are plans (see the argument \
`plan` of `run`). A token's text includes its leading space: \" dog\". The same call gives the same numbers.";

/// Answers the requests of one client.
#[derive(Clone)]
pub struct Handler {
    state: AppState,
    tools: Arc<Vec<Entry>>,
}

impl Handler {
    pub fn new(state: AppState) -> Handler {
        Handler { state, tools: Arc::new(tools::table()) }
    }

    fn find(&self, name: &str) -> Option<&Entry> {
        self.tools.iter().find(|entry| entry.description.name == name)
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("pellucid", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.iter().map(|entry| entry.description.clone()).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        Some(self.find(name)?.description.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(entry) = self.find(&request.name) else {
            let names: Vec<&str> = self.tools.iter().map(|entry| &*entry.description.name).collect();
            let message = format!("there is no tool `{}`; the tools are {}", request.name, names.join(", "));
            return Err(ErrorData::invalid_params(message, None));
        };
        let started = Instant::now();
        let (progress, reports) = Progress::new();
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let call = AssertUnwindSafe((entry.call)(self.state.clone(), arguments, progress)).catch_unwind();
        let result = tokio::select! {
            result = call => result,
            never = reports.forward(context.meta.get_progress_token(), context.peer.clone()) => match never {},
            // Dropping the call interrupts the engine.
            () = context.ct.cancelled() => return Err(ErrorData::internal_error("the call was cancelled", None)),
        };
        let internal = |_| pellucid_engine::Error::Internal("a tool panicked; the log shows where".into());
        let result = result.map_err(internal).map_err(ApiError::from).and_then(|result| result);
        let ms = started.elapsed().as_millis();
        Ok(match result {
            Ok(result) => {
                tracing::info!(tool = %request.name, ms, "called");
                result
            }
            Err(error) => {
                tracing::info!(tool = %request.name, ms, error = error.detail.message, "failed");
                self.state.metrics.count_error(error.kind());
                error::result(&error)
            }
        }
        .into())
    }
}
