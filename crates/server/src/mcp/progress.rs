//! Progress of a call, sent to clients that ask for it.

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::{Peer, RoleServer};
use std::convert::Infallible;
use tokio::sync::watch;

/// Where a tool reports its progress. Only the latest report is kept, so a slow client slows
/// nothing.
pub struct Progress(watch::Sender<(usize, usize)>);

/// The reports of a call.
pub struct Reports(watch::Receiver<(usize, usize)>);

impl Progress {
    pub fn new() -> (Progress, Reports) {
        let (to, from) = watch::channel((0, 0));
        (Progress(to), Reports(from))
    }

    /// Reports that `done` of `total` parts are done.
    pub fn report(&self, done: usize, total: usize) {
        self.0.send_replace((done, total));
    }
}

impl Reports {
    /// Sends the reports as notifications, for as long as it is polled.
    pub async fn forward(mut self, token: Option<ProgressToken>, peer: Peer<RoleServer>) -> Infallible {
        let Some(token) = token else { return std::future::pending().await };
        while self.0.changed().await.is_ok() {
            let (done, total) = *self.0.borrow_and_update();
            let report = ProgressNotificationParam::new(token.clone(), done as f64).with_total(total as f64);
            // A client that is gone cancels the call itself.
            let _ = peer.notify_progress(report).await;
        }
        std::future::pending().await
    }
}
