//! The prefix cache: KV caches of prompt prefixes that later calls reuse.

use crate::errors::{from_engine, guarded};
use crate::model::Model;
use crate::run::extract_rows;
use pellucid_engine as engine;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// A prefix cache of one model.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Prefixes(pub engine::PrefixCache);

#[pymethods]
impl Prefixes {
    /// An empty cache of at most `capacity` bytes. Calls that use it add their prompts.
    #[new]
    fn new(capacity: usize) -> Prefixes {
        Prefixes(engine::PrefixCache::new(capacity))
    }

    /// A fixed cache: computes `rows` now; later calls add nothing.
    #[staticmethod]
    fn of(py: Python<'_>, model: &Model, rows: &Bound<'_, PyList>) -> PyResult<Prefixes> {
        let (loaded, rows) = (model.loaded(py)?, extract_rows(py, rows)?);
        let cache = guarded(py, || {
            let mut rows = rows.iter();
            let cache = loaded.model.prefix(rows.next().map(Vec::as_slice).unwrap_or_default())?;
            rows.try_for_each(|row| loaded.model.keep_prefix(&cache, row))?;
            Ok(cache)
        })?;
        cache.map(Prefixes).map_err(|fault: engine::Error| from_engine(py, &fault))
    }

    /// Computes `rows` and adds them to the cache.
    fn add(&self, py: Python<'_>, model: &Model, rows: &Bound<'_, PyList>) -> PyResult<()> {
        let (loaded, rows) = (model.loaded(py)?, extract_rows(py, rows)?);
        let added = guarded(py, || rows.iter().try_for_each(|row| loaded.model.keep_prefix(&self.0, row)))?;
        added.map_err(|fault| from_engine(py, &fault))
    }

    /// `(cached prefixes, their bytes, rows that reused one, tokens reused)`.
    fn counts(&self) -> (usize, usize, usize, usize) {
        let counts = self.0.counts();
        (counts.prefixes, counts.bytes, counts.hits, counts.tokens)
    }

    /// Drops all cached prefixes.
    fn clear(&self) {
        self.0.clear();
    }
}
