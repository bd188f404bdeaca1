//! Captures of finished requests, kept until they are fetched or pushed out by newer ones.

use crate::api_error::{ApiError, ApiResult};
use crate::ids;
use crate::registry::ModelUse;
use axum::http::StatusCode;
use pellucid_engine::{Capture, Plan, SavedValue};
use pellucid_models::attach::SaeRecord;
use pellucid_models::results::Results;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The captures of one request.
pub struct StoredCaptures {
    pub id: String,
    /// The name of the model, which may be unloaded meanwhile.
    pub model: String,
    saes: Vec<SaeRecord>,
    plan: Plan,
    captures: Vec<Capture>,
    saved: Vec<SavedValue>,
    rows: usize,
}

impl StoredCaptures {
    pub fn new(
        model: &ModelUse,
        plan: Plan,
        captures: Vec<Capture>,
        saved: Vec<SavedValue>,
        rows: usize,
    ) -> StoredCaptures {
        let saes = model.loaded.saes().into_iter().cloned().collect();
        StoredCaptures { id: ids::new("cap"), model: model.id.clone(), saes, plan, captures, saved, rows }
    }

    /// The arrays under their names.
    pub fn results(&self) -> Results<'_> {
        let StoredCaptures { saes, plan, captures, saved, rows, .. } = self;
        Results { plan, captures, saved, rows: *rows, saes: saes.iter().collect() }
    }

    fn bytes(&self) -> usize {
        use safetensors::View;
        self.results().tensors().iter().map(|(_, tensor)| tensor.data_len()).sum()
    }
}

/// Captures by id, at most so many bytes of them.
pub struct CaptureStore {
    limit: usize,
    stored: Mutex<VecDeque<(usize, Arc<StoredCaptures>)>>,
}

impl CaptureStore {
    pub fn new(limit: usize) -> CaptureStore {
        CaptureStore { limit, stored: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(usize, Arc<StoredCaptures>)>> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps captures; drops the oldest ones beyond the limit, but never these.
    pub fn add(&self, captures: StoredCaptures) -> Arc<StoredCaptures> {
        let (bytes, captures) = (captures.bytes(), Arc::new(captures));
        let mut stored = self.lock();
        stored.push_back((bytes, captures.clone()));
        let mut total: usize = stored.iter().map(|(bytes, _)| bytes).sum();
        while total > self.limit && stored.len() > 1 {
            total -= stored.pop_front().map_or(0, |(bytes, _)| bytes);
        }
        captures
    }

    pub fn get(&self, id: &str) -> ApiResult<Arc<StoredCaptures>> {
        let found = self.lock().iter().find(|(_, captures)| captures.id == id).map(|(_, captures)| captures.clone());
        found.ok_or_else(|| unknown(id))
    }

    pub fn remove(&self, id: &str) -> ApiResult<()> {
        let mut stored = self.lock();
        let index = stored.iter().position(|(_, captures)| captures.id == id).ok_or_else(|| unknown(id))?;
        stored.remove(index);
        Ok(())
    }

    /// Bytes of all captures.
    pub fn bytes(&self) -> usize {
        self.lock().iter().map(|(bytes, _)| bytes).sum()
    }
}

fn unknown(id: &str) -> ApiError {
    let message = format!("there are no captures `{id}`; they were deleted, or newer ones took their memory");
    ApiError::new(StatusCode::NOT_FOUND, message).with_code("captures_not_found")
}
