//! The objects of a block: its record, its views and their layers, its values and sites.
//!
//! A block makes one of these for each thing that it touches, and what that costs is what recording costs. So their fields are here, and the
//! one path that every plain `t.layers[5].resid_post.save()` takes; everything else that they can do is in
//! `pellucid/{record,views,values,places}.py`: classes that inherit these, and methods that values and sites are given
//! (`pellucid/native.py`), so that they are made here without the way through a subclass.

use crate::array::Array;
use pellucid_engine::{self as engine, Action, Tap};
use pyo3::PyTraverseError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::PyVisit;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

/// What a block records, as far as every access and save has to do with it.
#[pyclass(subclass, module = "pellucid._core")]
pub struct Record {
    /// The place of what was recorded last.
    #[pyo3(get, set)]
    place: usize,
    /// Taps as tuples, and sites whose activation is handed over as it lies.
    #[pyo3(get, set)]
    taps: Py<PyList>,
    /// Whether the block takes nothing more.
    #[pyo3(get, set)]
    closed: bool,
}

#[pymethods]
impl Record {
    #[new]
    #[pyo3(signature = (*_arguments, **_named))]
    fn new(py: Python<'_>, _arguments: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) -> Record {
        Record { place: 0, taps: PyList::empty(py).unbind(), closed: false }
    }

    /// Takes the next place.
    fn next_place(&mut self) -> usize {
        self.place += 1;
        self.place
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.taps)
    }

    fn __clear__(&mut self, py: Python<'_>) {
        self.taps = PyList::empty(py).unbind();
    }
}

/// The fields of a view: a block, some of its rows, some of its steps.
#[pyclass(subclass, module = "pellucid._core")]
#[derive(Default)]
pub struct BlockView {
    #[pyo3(get, set, name = "_recorder")]
    recorder: Option<Py<Record>>,
    #[pyo3(get, name = "_scope")]
    scope: Option<Py<PyAny>>,
    /// What taps of the scope select.
    select: Option<Py<PyAny>>,
}

#[pymethods]
impl BlockView {
    #[new]
    #[pyo3(signature = (*_arguments, **_named))]
    fn new(_arguments: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) -> BlockView {
        BlockView::default()
    }

    #[setter(_scope)]
    fn set_scope(&mut self, scope: &Bound<'_, PyAny>) -> PyResult<()> {
        self.select = scope.getattr(intern!(scope.py(), "select"))?.extract()?;
        self.scope = Some(scope.clone().unbind());
        Ok(())
    }

    /// A site as the view sees it, at the next place of the record.
    #[pyo3(name = "_take")]
    fn take<'py>(&self, py: Python<'py>, info: Py<PyTuple>) -> PyResult<Bound<'py, BlockSite>> {
        let recorder = self.recorder.as_ref().ok_or_else(|| PyRuntimeError::new_err("a view without a record"))?;
        let place = recorder.borrow_mut(py).next_place();
        let copy = |object: &Option<Py<PyAny>>| object.as_ref().map(|object| object.clone_ref(py));
        let (scope, select) = (copy(&self.scope), copy(&self.select));
        Bound::new(py, BlockSite::new(recorder.clone_ref(py), scope, info, place, select, None, None))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.recorder)?;
        visit.call(&self.scope)
    }
}

/// A layer of a view.
#[pyclass(subclass, frozen, module = "pellucid._core")]
pub struct BlockLayer {
    view: Py<BlockView>,
    index: usize,
    /// Its sites by their points.
    points: Py<PyDict>,
}

#[pymethods]
impl BlockLayer {
    #[new]
    fn new(view: Py<BlockView>, index: usize, points: Py<PyDict>) -> BlockLayer {
        BlockLayer { view, index, points }
    }

    /// View, index and sites.
    #[getter]
    fn _of(&self, py: Python<'_>) -> (Py<BlockView>, usize, Py<PyDict>) {
        (self.view.clone_ref(py), self.index, self.points.clone_ref(py))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.view)
    }
}

/// The layers of a view, each made when it is first asked for.
#[pyclass(subclass, module = "pellucid._core")]
pub struct BlockLayers {
    #[pyo3(get, name = "_view")]
    view: Py<BlockView>,
    made: Vec<Option<Py<BlockLayer>>>,
}

#[pymethods]
impl BlockLayers {
    #[new]
    fn new(view: Py<BlockView>, count: usize) -> BlockLayers {
        BlockLayers { view, made: std::iter::repeat_with(|| None).take(count).collect() }
    }

    fn __getitem__<'py>(slf: &Bound<'py, Self>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(index) = index.extract::<isize>() {
            let layers = slf.borrow();
            let place = if index < 0 { index + layers.made.len() as isize } else { index };
            if let Some(Some(layer)) = usize::try_from(place).ok().and_then(|place| layers.made.get(place)) {
                return Ok(layer.bind(slf.py()).clone().into_any());
            }
        }
        slf.call_method1(intern!(slf.py(), "_make"), (index,))
    }

    fn __len__(&self) -> usize {
        self.made.len()
    }

    /// Keeps a layer for the next time that it is asked for.
    fn _keep(&mut self, layer: Py<BlockLayer>) {
        let place = layer.get().index;
        self.made[place] = Some(layer);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.view)?;
        self.made.iter().try_for_each(|layer| visit.call(layer))
    }
}

/// A point as an attribute of layers: taken of one, it is a site.
#[pyclass(frozen, module = "pellucid._core")]
pub struct PointOfLayer {
    point: Py<PyString>,
    meaning: String,
}

#[pymethods]
impl PointOfLayer {
    #[new]
    fn new(point: Py<PyString>, meaning: String) -> PointOfLayer {
        PointOfLayer { point, meaning }
    }

    fn __get__<'py>(
        slf: &Bound<'py, Self>,
        object: &Bound<'py, PyAny>,
        _owner: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, point) = (slf.py(), &slf.get().point);
        let Ok(layer) = object.cast::<BlockLayer>() else { return Ok(slf.clone().into_any()) };
        let layer = layer.get();
        let info = match layer.points.bind(py).get_item(point)? {
            Some(info) => info.cast_into::<PyTuple>()?,
            // A layer says itself what it does not have.
            None => object.call_method1(intern!(py, "_info"), (point,))?.cast_into()?,
        };
        Ok(layer.view.bind(py).borrow().take(py, info.unbind())?.into_any())
    }

    /// What `help` shows of the attribute.
    fn __repr__(&self) -> String {
        format!("<a site of each layer: {}>", self.meaning)
    }
}

/// What has become of a value.
enum Outcome {
    Unsaved,
    /// Saved, and the run has yet to give it.
    Awaited,
    /// One array, which becomes an object when somebody asks for it.
    Array(engine::Array),
    Object(Py<PyAny>),
}

/// The fields of a value.
#[pyclass(name = "Value", subclass, module = "pellucid._core")]
pub struct BlockValue {
    #[pyo3(get, name = "_recorder")]
    recorder: Py<Record>,
    #[pyo3(get, set, name = "_scope")]
    scope: Option<Py<PyAny>>,
    /// Its number among the record's values; of a site only once it is read.
    #[pyo3(get, set, name = "_node")]
    node: Option<usize>,
    /// How many axes it has besides that of the rows, where that is known.
    #[pyo3(get, set, name = "_rank")]
    rank: Option<isize>,
    /// What it was when it was saved: the node of a value, the place of a site.
    #[pyo3(get, set, name = "_kept")]
    kept: Option<usize>,
    outcome: Outcome,
}

#[pymethods]
impl BlockValue {
    #[new]
    fn new(recorder: Py<Record>, scope: Option<Py<PyAny>>, node: Option<usize>, rank: Option<isize>) -> BlockValue {
        BlockValue { recorder, scope, node, rank, kept: None, outcome: Outcome::Unsaved }
    }

    /// What came back; `None` of a value that was not saved, and `...` of one that is awaited.
    #[getter(_result)]
    fn result(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if let Outcome::Array(array) = &self.outcome {
            self.outcome = Outcome::Object(Py::new(py, Array(array.clone()))?.into_any());
        }
        Ok(match &self.outcome {
            Outcome::Unsaved => py.None(),
            Outcome::Object(object) => object.clone_ref(py),
            Outcome::Awaited | Outcome::Array(_) => py.Ellipsis(),
        })
    }

    #[setter(_result)]
    fn set_result(&mut self, py: Python<'_>, result: Py<PyAny>) {
        self.outcome = match result {
            none if none.is_none(py) => Outcome::Unsaved,
            awaited if awaited.is(py.Ellipsis()) => Outcome::Awaited,
            object => Outcome::Object(object),
        };
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.recorder)?;
        visit.call(&self.scope)?;
        match &self.outcome {
            Outcome::Object(object) => visit.call(object),
            _ => Ok(()),
        }
    }
}

impl BlockValue {
    /// Gives the value its one array.
    pub fn give(&mut self, array: engine::Array) {
        self.outcome = Outcome::Array(array);
    }

    /// Gives the value whatever else came back for it.
    pub fn give_object(&mut self, object: Py<PyAny>) {
        self.outcome = Outcome::Object(object);
    }
}

/// The fields of a site in a block.
#[pyclass(name = "Site", subclass, extends = BlockValue, module = "pellucid._core")]
pub struct BlockSite {
    /// A `SiteInfo`, whose first entry is the address.
    #[pyo3(get, name = "_info")]
    info: Py<PyTuple>,
    /// Where in the record it was taken.
    #[pyo3(get, set, name = "_place")]
    place: usize,
    #[pyo3(get, name = "_select")]
    select: Option<Py<PyAny>>,
    #[pyo3(get, name = "_drop")]
    drop: Option<Py<PyAny>>,
    /// The metric whose gradient is meant.
    #[pyo3(get, name = "_metric")]
    metric: Option<usize>,
    /// The place of the last write through this object.
    #[pyo3(get, set, name = "_written")]
    written: Option<usize>,
}

#[pymethods]
impl BlockSite {
    #[new]
    #[pyo3(signature = (recorder, scope, info, place, select, drop=None, metric=None))]
    fn new(
        recorder: Py<Record>,
        scope: Option<Py<PyAny>>,
        info: Py<PyTuple>,
        place: usize,
        select: Option<Py<PyAny>>,
        drop: Option<Py<PyAny>>,
        metric: Option<usize>,
    ) -> PyClassInitializer<BlockSite> {
        let site = BlockSite { info, place, select, drop, metric, written: None };
        PyClassInitializer::from(BlockValue::new(recorder, scope, None, None)).add_subclass(site)
    }

    /// Keeps what stands here now: after the block `.value` has it, and nothing changes it any more.
    fn save<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        match BlockSite::save_whole(slf)? {
            true => Ok(slf.clone().into_any()),
            false => slf.call_method0(intern!(slf.py(), "_save_part")),
        }
    }
}

impl BlockSite {
    /// Records a site that is taken whole and was not used before; says whether it was one.
    fn save_whole(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let mut site = slf.borrow_mut();
        let (place, whole) = (site.place, site.select.is_none() && site.drop.is_none());
        let value = site.as_super();
        let recorder = value.recorder.bind(slf.py()).borrow();
        if !whole || value.node.is_some() || recorder.closed || !matches!(value.outcome, Outcome::Unsaved) {
            return Ok(false);
        }
        recorder.taps.bind(slf.py()).append(slf)?;
        drop(recorder);
        value.kept = Some(place);
        value.outcome = Outcome::Awaited;
        Ok(true)
    }

    /// The place at which it was saved, and the tap that captures it.
    pub fn captured(slf: &Bound<'_, Self>) -> PyResult<(usize, Tap)> {
        let site = slf.borrow();
        let address = site.info.bind(slf.py()).get_item(0)?.cast_into::<PyString>()?;
        let tap = Tap::new(address.to_str()?, gradient(Action::Capture(None), site.metric));
        Ok((site.into_super().kept.unwrap_or_default(), tap))
    }
}

/// An action, done to the gradient of a metric where there is one.
pub fn gradient(action: Action, metric: Option<usize>) -> Action {
    match metric {
        Some(metric) => Action::Grad { metric, action: Box::new(action) },
        None => action,
    }
}
