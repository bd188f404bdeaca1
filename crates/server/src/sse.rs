//! Server-sent events: one JSON object per event, then `[DONE]`.

use crate::api_error::ApiResult;
use crate::state::AppState;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use serde::Serialize;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;
use tokio::sync::mpsc::{Sender, channel};

/// Silence after which a comment keeps the connection open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Objects that wait for a slow client; its tokens wait in the scheduler's handle.
const WAITING_OBJECTS: usize = 16;

/// Streams the objects that `produce` sends. An error becomes an event `{"error": …}`; nothing
/// should follow it. When the client disconnects, `produce` is dropped, which cancels its requests.
pub fn respond<T, F>(state: AppState, produce: impl FnOnce(Sender<ApiResult<T>>) -> F) -> Response
where
    T: Serialize + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (to, from) = channel::<ApiResult<T>>(WAITING_OBJECTS);
    let (closed, producing) = (to.clone(), produce(to));
    tokio::spawn(async move {
        tokio::select! {
            () = producing => {}
            () = closed.closed() => {}
        }
    });
    let objects = stream::unfold(from, |mut from| async move { from.recv().await.map(|object| (object, from)) });
    let events = objects.map(move |object| match object {
        Ok(object) => json_event(&object),
        Err(error) => {
            state.metrics.count_error(error.kind());
            tracing::warn!(message = error.detail.message, "a stream ended with an error");
            json_event(&error.body())
        }
    });
    let events = events.map(Ok::<Event, Infallible>);
    let done = stream::once(async { Ok(Event::default().data("[DONE]")) });
    Sse::new(events.chain(done)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

fn json_event(object: &impl Serialize) -> Event {
    // The objects are structs of texts and numbers, whose serialization does not fail.
    Event::default().data(serde_json::to_string(object).unwrap_or_default())
}
