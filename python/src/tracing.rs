//! Native halves of the Python tracing objects: recorder, views, layers, values and sites.
//!
//! A trace creates one object per access, so creating them dominates the cost of recording. Their
//! fields and the hot path (`t.layers[5].resid_post.save()`) live here. All other methods are
//! Python, in `pellucid/{recorder,views,values,site}.py`: recorder, view and layer are Python
//! subclasses of these classes; the methods of `Value` and `Site` are attached to the native class
//! (`pellucid/native.py`), because instantiating a Python subclass costs about 1 µs.

use crate::array::Array;
use pellucid_engine::{self as engine, Action, Tap};
use pyo3::PyTraverseError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::PyVisit;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

/// The fields of a `Recorder` that every access and save uses.
#[pyclass(name = "Recorder", subclass, module = "pellucid._core")]
pub struct TraceRecorder {
    /// Sequence number of the last recorded access or write. Taps run in this order.
    #[pyo3(get, set)]
    order: usize,
    /// Recorded taps: a tuple each, or a `Site` that is saved whole and captured without a copy.
    #[pyo3(get, set)]
    taps: Py<PyList>,
    /// The `with` block has ended: nothing more can be recorded.
    #[pyo3(get, set)]
    closed: bool,
}

#[pymethods]
impl TraceRecorder {
    #[new]
    #[pyo3(signature = (*_arguments, **_named))]
    fn new(py: Python<'_>, _arguments: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) -> TraceRecorder {
        TraceRecorder { order: 0, taps: PyList::empty(py).unbind(), closed: false }
    }

    /// Increments the sequence number and returns it.
    fn next_order(&mut self) -> usize {
        self.order += 1;
        self.order
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.taps)
    }

    fn __clear__(&mut self, py: Python<'_>) {
        self.taps = PyList::empty(py).unbind();
    }
}

/// The fields of a `View`: a whole trace, or some of its rows or generation steps.
#[pyclass(name = "View", subclass, module = "pellucid._core")]
#[derive(Default)]
pub struct TraceView {
    #[pyo3(get, set, name = "_recorder")]
    recorder: Option<Py<TraceRecorder>>,
    /// A Python `Scope`.
    #[pyo3(get, name = "_scope")]
    scope: Option<Py<PyAny>>,
    /// `scope.select`: the rows and steps that this view's taps select; `None` for all.
    select: Option<Py<PyAny>>,
}

#[pymethods]
impl TraceView {
    #[new]
    #[pyo3(signature = (*_arguments, **_named))]
    fn new(_arguments: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) -> TraceView {
        TraceView::default()
    }

    #[setter(_scope)]
    fn set_scope(&mut self, scope: &Bound<'_, PyAny>) -> PyResult<()> {
        self.select = scope.getattr(intern!(scope.py(), "select"))?.extract()?;
        self.scope = Some(scope.clone().unbind());
        Ok(())
    }

    /// Records an access to a site and returns the `Site`, restricted to the rows of this view.
    #[pyo3(name = "_access")]
    fn access<'py>(&self, py: Python<'py>, info: Py<PyTuple>) -> PyResult<Bound<'py, TraceSite>> {
        let recorder = self.recorder.as_ref().ok_or_else(|| PyRuntimeError::new_err("a view without a recorder"))?;
        let order = recorder.borrow_mut(py).next_order();
        let copy = |object: &Option<Py<PyAny>>| object.as_ref().map(|object| object.clone_ref(py));
        let (scope, select) = (copy(&self.scope), copy(&self.select));
        Bound::new(py, TraceSite::new(recorder.clone_ref(py), scope, info, order, select, None, None))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.recorder)?;
        visit.call(&self.scope)
    }
}

/// The fields of a `Layer` of a view.
#[pyclass(name = "Layer", subclass, frozen, module = "pellucid._core")]
pub struct TraceLayer {
    view: Py<TraceView>,
    index: usize,
    /// The `SiteInfo` of each point of this layer, by point name.
    sites: Py<PyDict>,
}

#[pymethods]
impl TraceLayer {
    #[new]
    fn new(view: Py<TraceView>, index: usize, sites: Py<PyDict>) -> TraceLayer {
        TraceLayer { view, index, sites }
    }

    /// `(view, layer index, sites by point)`.
    #[getter]
    fn _parts(&self, py: Python<'_>) -> (Py<TraceView>, usize, Py<PyDict>) {
        (self.view.clone_ref(py), self.index, self.sites.clone_ref(py))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.view)
    }
}

/// The layers of a view. Each `Layer` object is created on first access.
#[pyclass(name = "Layers", subclass, module = "pellucid._core")]
pub struct TraceLayers {
    #[pyo3(get, name = "_view")]
    view: Py<TraceView>,
    layers: Vec<Option<Py<TraceLayer>>>,
}

#[pymethods]
impl TraceLayers {
    #[new]
    fn new(view: Py<TraceView>, count: usize) -> TraceLayers {
        TraceLayers { view, layers: std::iter::repeat_with(|| None).take(count).collect() }
    }

    fn __getitem__<'py>(slf: &Bound<'py, Self>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(index) = index.extract::<isize>() {
            let all = slf.borrow();
            let index = if index < 0 { index + all.layers.len() as isize } else { index };
            if let Some(Some(layer)) = usize::try_from(index).ok().and_then(|index| all.layers.get(index)) {
                return Ok(layer.bind(slf.py()).clone().into_any());
            }
        }
        slf.call_method1(intern!(slf.py(), "_create"), (index,))
    }

    fn __len__(&self) -> usize {
        self.layers.len()
    }

    /// Stores a layer for later accesses.
    fn _store(&mut self, layer: Py<TraceLayer>) {
        let index = layer.get().index;
        self.layers[index] = Some(layer);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.view)?;
        self.layers.iter().try_for_each(|layer| visit.call(layer))
    }
}

/// Descriptor of a hook point: `layer.resid_post` records an access and returns the `Site`.
#[pyclass(frozen, module = "pellucid._core")]
pub struct SiteDescriptor {
    point: Py<PyString>,
    meaning: String,
}

#[pymethods]
impl SiteDescriptor {
    #[new]
    fn new(point: Py<PyString>, meaning: String) -> SiteDescriptor {
        SiteDescriptor { point, meaning }
    }

    fn __get__<'py>(
        slf: &Bound<'py, Self>,
        object: &Bound<'py, PyAny>,
        _owner: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, point) = (slf.py(), &slf.get().point);
        let Ok(layer) = object.cast::<TraceLayer>() else { return Ok(slf.clone().into_any()) };
        let layer = layer.get();
        let info = match layer.sites.bind(py).get_item(point)? {
            Some(info) => info.cast_into::<PyTuple>()?,
            // `Layer._info` raises the error for a point that this layer does not have.
            None => object.call_method1(intern!(py, "_info"), (point,))?.cast_into()?,
        };
        Ok(layer.view.bind(py).borrow().access(py, info.unbind())?.into_any())
    }

    /// Shown by `help` for the attribute.
    fn __repr__(&self) -> String {
        format!("<a site of each layer: {}>", self.meaning)
    }
}

/// The result of a value, before and after the run.
enum SavedResult {
    Unsaved,
    /// Saved, but the run has not computed it yet.
    Pending,
    /// One array, converted to a Python object on first read.
    Array(engine::Array),
    Object(Py<PyAny>),
}

/// The fields of a `Value`: a node of the recorded expression graph.
#[pyclass(name = "Value", subclass, module = "pellucid._core")]
pub struct TraceValue {
    #[pyo3(get, name = "_recorder")]
    recorder: Py<TraceRecorder>,
    #[pyo3(get, set, name = "_scope")]
    scope: Option<Py<PyAny>>,
    /// Index in `Recorder.values`. A site gets one when an expression first reads it.
    #[pyo3(get, set, name = "_node")]
    node: Option<usize>,
    /// Number of axes without the row axis, if known.
    #[pyo3(get, set, name = "_rank")]
    rank: Option<isize>,
    /// The state that was saved: the node of a value, the sequence number of a site.
    #[pyo3(get, set, name = "_saved_at")]
    saved_at: Option<usize>,
    result: SavedResult,
}

#[pymethods]
impl TraceValue {
    #[new]
    fn new(
        recorder: Py<TraceRecorder>,
        scope: Option<Py<PyAny>>,
        node: Option<usize>,
        rank: Option<isize>,
    ) -> TraceValue {
        TraceValue { recorder, scope, node, rank, saved_at: None, result: SavedResult::Unsaved }
    }

    /// The result; `None` if the value was not saved, `...` while it is pending.
    #[getter(_result)]
    fn result(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if let SavedResult::Array(array) = &self.result {
            self.result = SavedResult::Object(Py::new(py, Array(array.clone()))?.into_any());
        }
        Ok(match &self.result {
            SavedResult::Unsaved => py.None(),
            SavedResult::Object(object) => object.clone_ref(py),
            SavedResult::Pending | SavedResult::Array(_) => py.Ellipsis(),
        })
    }

    #[setter(_result)]
    fn set_result(&mut self, py: Python<'_>, result: Py<PyAny>) {
        self.result = match result {
            none if none.is_none(py) => SavedResult::Unsaved,
            pending if pending.is(py.Ellipsis()) => SavedResult::Pending,
            object => SavedResult::Object(object),
        };
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.recorder)?;
        visit.call(&self.scope)?;
        match &self.result {
            SavedResult::Object(object) => visit.call(object),
            _ => Ok(()),
        }
    }
}

impl TraceValue {
    /// Sets a result that is a single array.
    pub fn set_array(&mut self, array: engine::Array) {
        self.result = SavedResult::Array(array);
    }

    /// Sets any other result (a list with one entry per row or step).
    pub fn set_object(&mut self, object: Py<PyAny>) {
        self.result = SavedResult::Object(object);
    }
}

/// The fields of a `Site`: a value that can also be written.
#[pyclass(name = "Site", subclass, extends = TraceValue, module = "pellucid._core")]
pub struct TraceSite {
    /// A `SiteInfo`; its first field is the address.
    #[pyo3(get, name = "_info")]
    info: Py<PyTuple>,
    /// Sequence number of the access: the site is read after earlier and before later writes.
    #[pyo3(get, set, name = "_order")]
    order: usize,
    /// The selection `(rows, positions, steps, heads, units, keys)`; `None` for everything.
    #[pyo3(get, name = "_select")]
    select: Option<Py<PyAny>>,
    /// An index into the selection that drops the axes picked by an integer.
    #[pyo3(get, name = "_squeeze")]
    squeeze: Option<Py<PyAny>>,
    /// If set, this is the gradient of that metric at the site instead of the activation.
    #[pyo3(get, name = "_metric")]
    metric: Option<usize>,
    /// Sequence number of the last write through this object.
    #[pyo3(get, set, name = "_written_at")]
    written_at: Option<usize>,
}

#[pymethods]
impl TraceSite {
    #[new]
    #[pyo3(signature = (recorder, scope, info, order, select, squeeze=None, metric=None))]
    fn new(
        recorder: Py<TraceRecorder>,
        scope: Option<Py<PyAny>>,
        info: Py<PyTuple>,
        order: usize,
        select: Option<Py<PyAny>>,
        squeeze: Option<Py<PyAny>>,
        metric: Option<usize>,
    ) -> PyClassInitializer<TraceSite> {
        let site = TraceSite { info, order, select, squeeze, metric, written_at: None };
        PyClassInitializer::from(TraceValue::new(recorder, scope, None, None)).add_subclass(site)
    }

    /// Saves the activation as it is at this point of the trace; read `.value` after the block.
    /// Later writes do not change it. With `sparse`, only the nonzero elements are stored and
    /// `.value` is a `SparseArray`: for the features of an SAE.
    #[pyo3(signature = (*, sparse=false))]
    fn save<'py>(slf: &Bound<'py, Self>, sparse: bool) -> PyResult<Bound<'py, PyAny>> {
        if sparse {
            return slf.call_method0(intern!(slf.py(), "_save_sparse"));
        }
        match TraceSite::save_whole(slf)? {
            true => Ok(slf.clone().into_any()),
            false => slf.call_method0(intern!(slf.py(), "_save_general")),
        }
    }
}

impl TraceSite {
    /// Fast path of `save`: a whole site that was not read or saved before. Returns whether it
    /// applied.
    fn save_whole(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let mut site = slf.borrow_mut();
        let (order, whole) = (site.order, site.select.is_none() && site.squeeze.is_none());
        let value = site.as_super();
        let recorder = value.recorder.bind(slf.py()).borrow();
        if !whole || value.node.is_some() || recorder.closed || !matches!(value.result, SavedResult::Unsaved) {
            return Ok(false);
        }
        recorder.taps.bind(slf.py()).append(slf)?;
        drop(recorder);
        value.saved_at = Some(order);
        value.result = SavedResult::Pending;
        Ok(true)
    }

    /// The sequence number at which it was saved, and the tap that captures it.
    pub fn capture_tap(slf: &Bound<'_, Self>) -> PyResult<(usize, Tap)> {
        let site = slf.borrow();
        let address = site.info.bind(slf.py()).get_item(0)?.cast_into::<PyString>()?;
        let tap = Tap::new(address.to_str()?, on_gradient(Action::Capture(None), site.metric));
        Ok((site.into_super().saved_at.unwrap_or_default(), tap))
    }
}

/// Wraps `action` so that it applies to the gradient of `metric`, if there is one.
pub fn on_gradient(action: Action, metric: Option<usize>) -> Action {
    match metric {
        Some(metric) => Action::Grad { metric, action: Box::new(action) },
        None => action,
    }
}
