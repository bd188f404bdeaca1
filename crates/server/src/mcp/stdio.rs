//! The protocol over stdin and stdout: one client, which starts the process and ends it by closing
//! stdin.

use super::handler::Handler;
use crate::error::{Error, Result};
use crate::options::ServerOptions;
use crate::registry::ModelEntry;
use crate::state::State;
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use std::sync::Arc;
use std::time::Duration;

/// Serves models to the client at stdin and stdout, until stdin is closed. Nothing else may write
/// to stdout.
pub fn serve_stdio(models: Vec<ModelEntry>, options: ServerOptions) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("pellucid-mcp")
        .enable_all()
        .build()
        .map_err(Error::Runtime)?;
    let state = Arc::new(State::new(models.into_iter().map(Into::into).collect(), options)?);
    let served = runtime.block_on(async {
        match Handler::new(state).serve(rmcp::transport::stdio()).await {
            Ok(running) => {
                // However the client left, it reads no more answers.
                let _ = running.waiting().await;
                Ok(())
            }
            // A client that leaves without a word is no error.
            Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
            Err(error) => Err(Error::Protocol(error.to_string())),
        }
    });
    // Calls that still run are dropped, which interrupts them; a read of stdin may still block.
    runtime.shutdown_timeout(Duration::from_millis(100));
    served
}
