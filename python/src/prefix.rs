//! Kept prefixes, which later calls need not compute again.

use crate::errors::{from_engine, guarded};
use crate::model::Model;
use crate::run::tokens;
use pellucid_engine as engine;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Kept beginnings of prompts of one model.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Prefixes(pub engine::PrefixCache);

#[pymethods]
impl Prefixes {
    /// A cache of at most `room` bytes that learns from the calls that it is given to.
    #[new]
    fn new(room: usize) -> Prefixes {
        Prefixes(engine::PrefixCache::new(room))
    }

    /// Prefixes that learn nothing more: the given rows.
    #[staticmethod]
    fn of(py: Python<'_>, model: &Model, rows: &Bound<'_, PyList>) -> PyResult<Prefixes> {
        let (loaded, rows) = (model.loaded(py)?, tokens(py, rows)?);
        let made = guarded(py, || {
            let mut rows = rows.iter();
            let cache = loaded.model.prefix(rows.next().map(Vec::as_slice).unwrap_or_default())?;
            rows.try_for_each(|row| loaded.model.keep_prefix(&cache, row))?;
            Ok(cache)
        })?;
        made.map(Prefixes).map_err(|fault: engine::Error| from_engine(py, &fault))
    }

    /// Computes rows and keeps them.
    fn add(&self, py: Python<'_>, model: &Model, rows: &Bound<'_, PyList>) -> PyResult<()> {
        let (loaded, rows) = (model.loaded(py)?, tokens(py, rows)?);
        let made = guarded(py, || rows.iter().try_for_each(|row| loaded.model.keep_prefix(&self.0, row)))?;
        made.map_err(|fault| from_engine(py, &fault))
    }

    /// `(prefixes kept, their bytes, rows that took something over, tokens not computed again)`.
    fn counts(&self) -> (usize, usize, usize, usize) {
        let counts = self.0.counts();
        (counts.kept, counts.bytes, counts.hits, counts.tokens)
    }

    /// Lets go of everything.
    fn clear(&self) {
        self.0.clear();
    }
}
