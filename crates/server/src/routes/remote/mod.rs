//! `/v1/remote/…`: calls of the clients of this project (`pellucid.connect`, `--server`).
//!
//! They send rows of tokens with a plan and get everything that the engine returns, bit for bit, in
//! the formats of [`pellucid_models::wire`]. Standing plans do not apply: the result is that of the
//! same call in the client's own process.

mod branches;
mod generate;
mod outline;
mod run;
mod weights;

pub use branches::{__path_branches, branches};
pub use generate::{__path_generate, generate};
pub use outline::{__path_outline, outline};
pub use run::{__path_run, run};
pub use weights::{__path_weights, weights};

use crate::api_error::{ApiError, ApiResult};
use crate::hints;
use crate::inspection::refuse_files;
use crate::registry::ModelUse;
use crate::state::AppState;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use pellucid_engine::Plan;
use pellucid_models::Error;
use pellucid_models::attach::check_saes;
use pellucid_models::wire::{FRAMES, Fault, Frame, RESULTS, WireResults, encode_frame};
use std::convert::Infallible;
use std::future::Future;
use std::path::Path;
use tokio::sync::mpsc::{Sender, channel};

/// Frames that wait for a slow client.
const WAITING_FRAMES: usize = 16;

/// Makes an error with its data, from which the client makes the same error.
fn fault(error: impl Into<Error>) -> ApiError {
    let error = error.into();
    let fault = Fault::new(&error, hints::word);
    let mut error = ApiError::from(error);
    error.detail.fault = Some(Box::new(fault));
    error
}

/// Refuses plans that name files or autoencoders that are not attached, and calls with too many
/// rows.
fn check_plan(state: &AppState, model: &ModelUse, plan: &Plan, rows: usize) -> ApiResult<()> {
    check_saes(&model.loaded.saes(), plan, Path::new("")).map_err(fault)?;
    refuse_files(plan, "plan")?;
    let limit = state.options.limits.rows;
    match rows > limit {
        true => Err(ApiError::field("rows", format!("the call has {rows} rows; the limit is {limit}"))),
        false => Ok(()),
    }
}

/// Refuses a run whose captures are larger than the server permits. The scheduler checks those of
/// generations.
fn check_captures(state: &AppState, model: &ModelUse, plan: &Plan, lengths: &[usize]) -> ApiResult<()> {
    let needed = plan.explain(&model.loaded.model, lengths).map_err(fault)?.capture_bytes;
    let limit = state.options.limits.capture_bytes;
    match needed > limit {
        true => {
            let message = format!("the captures need {needed} bytes; the limit of this server is {limit}");
            Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).with_code("captures_too_large"))
        }
        false => Ok(()),
    }
}

/// Answers with results.
fn respond(results: &WireResults, plan: &Plan) -> ApiResult<Response> {
    let bytes = results.encode(plan).map_err(fault)?;
    Ok(([(CONTENT_TYPE, RESULTS)], bytes).into_response())
}

/// Bytes of results as a frame.
fn results_frame(results: &WireResults, plan: &Plan) -> ApiResult<Vec<u8>> {
    let bytes = results.encode(plan).map_err(fault)?;
    let mut frame = encode_frame(&Frame::Results { bytes: bytes.len() });
    frame.extend(bytes);
    Ok(frame)
}

/// Answers with the frames that `produce` sends, and a last one. When the client disconnects,
/// `produce` is dropped, which cancels its call.
fn respond_frames<F>(state: AppState, produce: impl FnOnce(Sender<Vec<u8>>) -> F) -> Response
where
    F: Future<Output = ApiResult<()>> + Send + 'static,
{
    let (to, from) = channel::<Vec<u8>>(WAITING_FRAMES);
    let producing = produce(to.clone());
    tokio::spawn(async move {
        tokio::select! {
            result = producing => {
                let last = match result {
                    Ok(()) => Frame::End,
                    Err(error) => {
                        state.metrics.count_error(error.kind());
                        tracing::warn!(message = error.detail.message, "a stream ended with an error");
                        Frame::Failed { message: error.detail.message, fault: error.detail.fault.map(|fault| *fault) }
                    }
                };
                let _ = to.send(encode_frame(&last)).await;
            }
            () = to.closed() => {}
        }
    });
    let frames = stream::unfold(from, |mut from| async move {
        let frame = from.recv().await?;
        Some((Ok::<Bytes, Infallible>(frame.into()), from))
    });
    ([(CONTENT_TYPE, FRAMES)], Body::from_stream(frames)).into_response()
}
