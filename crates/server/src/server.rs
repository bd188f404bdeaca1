//! The listener: connections, timeouts, shutdown.

use crate::error::{Error, Result};
use crate::mcp;
use crate::options::ServerOptions;
use crate::registry::ModelSpec;
use crate::routes;
use crate::state::{AppState, State};
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// A server that listens. [`run`](Server::run) serves until a signal or a [`ShutdownHandle`] ends
/// it.
///
/// ```no_run
/// use pellucid_server::{ModelEntry, Server, ServerOptions};
/// # fn example(loaded: pellucid_models::LoadedModel) -> pellucid_server::Result<()> {
/// let models = vec![ModelEntry { id: "stories".into(), loaded }];
/// let server = Server::bind(models, ServerOptions::default())?;
/// println!("http://{}/v1", server.address());
/// server.run()
/// # }
/// ```
pub struct Server {
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    state: AppState,
    shutdown: ShutdownHandle,
}

/// Ends a server from another thread.
#[derive(Clone, Default)]
pub struct ShutdownHandle(Arc<Notify>);

impl ShutdownHandle {
    /// Begins the shutdown: running requests finish, new ones are refused. A second call ends the
    /// server at once.
    pub fn shutdown(&self) {
        self.0.notify_one();
    }
}

impl Server {
    /// Checks the options and all models, starts a scheduler for each loaded one and listens.
    ///
    /// Models are [`ModelEntry`](crate::ModelEntry)s, which are loaded, or
    /// [`ModelFiles`](crate::ModelFiles), which are loaded on demand.
    pub fn bind<M: Into<ModelSpec>>(models: Vec<M>, mut options: ServerOptions) -> Result<Server> {
        options.check()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("pellucid-http")
            .enable_all()
            .build()
            .map_err(Error::Runtime)?;
        let address = options.address;
        let listener =
            runtime.block_on(TcpListener::bind(address)).map_err(|source| Error::Bind { address, source })?;
        let address = listener.local_addr().map_err(|source| Error::Bind { address, source })?;
        options.address = address;
        let models = models.into_iter().map(Into::into).collect();
        let state = State::new(models, options)?;
        Ok(Server { runtime, listener, address, state: Arc::new(state), shutdown: ShutdownHandle::default() })
    }

    /// Loads the first model, which otherwise the first request that names it loads. `progress`
    /// receives the fraction of weights loaded.
    pub fn preload(&self, progress: &mut dyn FnMut(f32)) -> Result<()> {
        self.state.models.preload(progress)
    }

    /// The address it listens on, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that ends this server.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        self.shutdown.clone()
    }

    /// Serves until SIGINT, SIGTERM or [`ShutdownHandle::shutdown`]. Then running requests have
    /// [`shutdown_timeout`](crate::Limits::shutdown_timeout) to finish; a second signal ends them
    /// at once.
    pub fn run(self) -> Result<()> {
        let Server { runtime, listener, state, shutdown, .. } = self;
        runtime.block_on(async {
            let signals = shutdown.clone();
            tokio::spawn(async move {
                while wait_for_signal().await.is_ok() {
                    signals.shutdown();
                }
            });
            serve(listener, state, shutdown).await;
        });
        // Handlers that still run are dropped, which cancels their requests.
        runtime.shutdown_timeout(Duration::from_secs(1));
        Ok(())
    }
}

/// Waits for SIGINT or SIGTERM.
async fn wait_for_signal() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}

/// Accepts connections until the shutdown, then waits for the open ones.
async fn serve(listener: TcpListener, state: AppState, shutdown: ShutdownHandle) {
    let router = routes::router(state.clone(), mcp::router(&state));
    let connections = Arc::new(Semaphore::new(state.options.limits.connections));
    let graceful = GracefulShutdown::new();
    loop {
        let next = async {
            let permit = connections.clone().acquire_owned().await.map_err(std::io::Error::other)?;
            Ok::<_, std::io::Error>((listener.accept().await?.0, permit))
        };
        tokio::select! {
            accepted = next => match accepted {
                Ok((stream, permit)) => serve_connection(stream, router.clone(), &state, &graceful, permit),
                // Such as too many open files: others may close some.
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            _ = shutdown.0.notified() => break,
        }
    }
    drop(listener);
    state.closing.store(true, Ordering::Relaxed);
    let timeout = state.options.limits.shutdown_timeout;
    tracing::info!(seconds = timeout.as_secs(), "shutting down: running requests finish");
    tokio::select! {
        () = graceful.shutdown() => tracing::info!("all requests have finished"),
        () = tokio::time::sleep(timeout) => tracing::warn!("some requests were cancelled after the timeout"),
        _ = shutdown.0.notified() => tracing::warn!("running requests were cancelled by a second signal"),
    }
}

/// Serves the requests of a connection in a task of its own.
fn serve_connection(
    stream: TcpStream,
    router: Router,
    state: &AppState,
    graceful: &GracefulShutdown,
    permit: OwnedSemaphorePermit,
) {
    // Tokens are small writes that should leave at once.
    let _ = stream.set_nodelay(true);
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(state.options.limits.read_timeout);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended");
        }
        drop(permit);
    });
}
