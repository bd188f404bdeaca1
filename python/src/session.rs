//! Analysis sessions and stores. `pellucid/sessions.py` and `stores.py` hold their classes.

use crate::errors::{ErrorKind, error, from_models, guarded, raised};
use crate::run::{run_engine, signal_interrupt};
use numpy::{IntoPyArray, PyReadonlyArray1};
use pellucid_models::Error;
use pellucid_sessions::config::ConfigSource;
use pellucid_sessions::ops::{AnalysisBatch, Field, Needs, Op, OpContext, OpSpec, Place, Registry};
use pellucid_sessions::session::{Event, replay};
use pellucid_sessions::store::{self, ExportFormat};
use pellucid_sessions::table::{Column, DataType};
use pellucid_sessions::{RunOptions, Session as Inner, Store as InnerStore};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

/// A session that is ready to run.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Session(Inner);

/// A complete store.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Store(InnerStore);

fn to_json(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|fault| error(py, ErrorKind::Input, &fault.to_string(), None))
}

/// Sends events to a Python function as `(kind, value)`.
fn observer(watch: Option<Py<PyAny>>) -> impl FnMut(Event) {
    move |event| {
        let Some(watch) = &watch else { return };
        Python::attach(|py| {
            raised::store_error(match event {
                Event::Phase(name) => watch.call1(py, ("phase", name)),
                Event::Progress(fraction) => watch.call1(py, ("progress", fraction)),
                Event::Note(text) => watch.call1(py, ("note", text)),
            });
        });
    }
}

fn sources(sources: Vec<(String, String)>) -> Result<Vec<ConfigSource>, Error> {
    let source = |(kind, value): (String, String)| match kind.as_str() {
        "file" => Ok(ConfigSource::File(PathBuf::from(value))),
        "set" => Ok(ConfigSource::Set(value)),
        _ => match serde_json::from_str(&value) {
            Ok(value) => Ok(ConfigSource::Json(value)),
            Err(fault) => Err(Error::usage(fault.to_string(), "settings are values that JSON can write")),
        },
    };
    sources.into_iter().map(source).collect()
}

fn registry(py: Python<'_>, ops: &[Bound<'_, PyAny>]) -> PyResult<Registry> {
    let mut registry = Registry::default();
    for op in ops {
        registry.add(Arc::new(PythonOp::new(py, op)?));
    }
    Ok(registry)
}

/// Opens a session: sources are `(kind, value)` with the kinds `file`, `set` and `json`.
#[pyfunction]
pub fn open_session(
    py: Python<'_>,
    from: Vec<(String, String)>,
    ops: Vec<Bound<'_, PyAny>>,
    watch: Option<Py<PyAny>>,
) -> PyResult<Session> {
    let registry = registry(py, &ops)?;
    let mut observer = observer(watch);
    run_engine(py, move || Inner::open(&sources(from)?, &registry, Some(signal_interrupt()), &mut observer))
        .map(Session)
}

/// Repeats the session of a store; returns the report as JSON.
#[pyfunction]
pub fn replay_store(
    py: Python<'_>,
    store: &Store,
    settings: Vec<String>,
    ops: Vec<Bound<'_, PyAny>>,
    watch: Option<Py<PyAny>>,
) -> PyResult<String> {
    let registry = registry(py, &ops)?;
    let (store, mut observer) = (&store.0, observer(watch));
    let report = run_engine(py, move || replay(store, &settings, &registry, Some(signal_interrupt()), &mut observer))?;
    to_json(py, &report)
}

/// The JSON Schema of session files.
#[pyfunction]
pub fn session_schema() -> String {
    pellucid_sessions::config::schema().to_string()
}

/// The ops that come along, as JSON.
#[pyfunction]
pub fn session_ops(py: Python<'_>) -> PyResult<String> {
    let registry = Registry::default();
    to_json(py, &registry.ops().iter().map(|op| op.spec()).collect::<Vec<_>>())
}

#[pymethods]
impl Session {
    /// The merged configuration as JSON.
    #[getter]
    fn config(&self, py: Python<'_>) -> PyResult<String> {
        to_json(py, &self.0.config().config)
    }

    /// Time and memory of the phases before the run, as JSON.
    #[getter]
    fn phases(&self, py: Python<'_>) -> PyResult<String> {
        to_json(py, &self.0.phases())
    }

    /// Results of the debug phase as JSON.
    #[getter]
    fn debug(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.0.debug_report().map(|report| to_json(py, report)).transpose()
    }

    /// What the session will do and cost, as JSON.
    fn check(&self, py: Python<'_>) -> PyResult<String> {
        let report = guarded(py, || self.0.check())?.map_err(|fault| from_models(py, &fault))?;
        to_json(py, &report)
    }

    /// Runs the session: its store, the number of parts, those reused, and the phases as JSON.
    fn run(&self, py: Python<'_>, replace: bool, watch: Option<Py<PyAny>>) -> PyResult<(Store, usize, usize, String)> {
        let mut observer = observer(watch);
        let outcome = run_engine(py, || {
            let options = RunOptions { replace, interrupt: Some(signal_interrupt()) };
            self.0.run(&options, &mut observer)
        })?;
        let phases = to_json(py, &outcome.phases)?;
        Ok((Store(outcome.store), outcome.parts, outcome.reused, phases))
    }
}

#[pymethods]
impl Store {
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Store> {
        Ok(Store(InnerStore::open(&path).map_err(|fault| from_models(py, &fault))?))
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.0.path().to_path_buf()
    }

    /// The manifest as JSON.
    #[getter]
    fn manifest(&self, py: Python<'_>) -> PyResult<String> {
        to_json(py, self.0.manifest())
    }

    /// Number of rows of a table.
    fn rows(&self, table: &str) -> usize {
        self.0.rows(table)
    }

    /// Names of the columns of a table.
    fn column_names(&self, table: &str) -> Vec<String> {
        self.0.column_names(table).into_iter().map(String::from).collect()
    }

    /// Reads a column: `(dtype, values)`, or `(dtype, values, offsets)` for lists.
    fn column<'py>(&self, py: Python<'py>, table: &str, name: &str) -> PyResult<Bound<'py, PyTuple>> {
        let column = guarded(py, || self.0.column(table, name))?.map_err(|fault| from_models(py, &fault))?;
        column_tuple(py, column)
    }

    /// Reads the first rows of a column, in the form of `column`.
    fn head<'py>(&self, py: Python<'py>, table: &str, name: &str, rows: usize) -> PyResult<Bound<'py, PyTuple>> {
        let column = guarded(py, || self.0.head(table, name, rows))?.map_err(|fault| from_models(py, &fault))?;
        column_tuple(py, column)
    }

    /// Statistics as JSON.
    fn summary(&self, py: Python<'_>) -> PyResult<String> {
        let summary = guarded(py, || store::summarize(&self.0))?.map_err(|fault| from_models(py, &fault))?;
        to_json(py, &summary)
    }

    /// A description as text, or as a page.
    fn show(&self, py: Python<'_>, top: usize, html: bool) -> PyResult<String> {
        let summary = guarded(py, || store::summarize(&self.0))?.map_err(|fault| from_models(py, &fault))?;
        Ok(match html {
            true => store::to_html(&self.0, &summary, top),
            false => store::summary_text(&self.0, &summary, top),
        })
    }

    /// Differences from another store, as JSON.
    fn diff(&self, py: Python<'_>, other: &Store) -> PyResult<String> {
        let found = guarded(py, || store::diff(&self.0, &other.0))?.map_err(|fault| from_models(py, &fault))?;
        to_json(py, &found)
    }

    /// Exports the store; returns the files written.
    fn export(&self, py: Python<'_>, directory: PathBuf, format: &str) -> PyResult<Vec<PathBuf>> {
        let format = match format {
            "csv" => ExportFormat::Csv,
            "jsonl" => ExportFormat::Jsonl,
            "parquet" => ExportFormat::Parquet,
            "safetensors" => ExportFormat::Safetensors,
            other => {
                let problem = format!("unknown format {other:?}");
                return Err(error(py, ErrorKind::Input, &problem, Some("use csv, jsonl, parquet or safetensors")));
            }
        };
        guarded(py, || store::export(&self.0, format, &directory))?.map_err(|fault| from_models(py, &fault))
    }
}

/// A column for Python: arrays of numpy, texts as a list, lists as their elements with offsets.
fn column_tuple(py: Python<'_>, column: Column) -> PyResult<Bound<'_, PyTuple>> {
    fn offsets<T>(lists: &[Vec<T>]) -> Vec<i64> {
        let mut end = 0;
        let ends = lists.iter().map(|list| {
            end += list.len() as i64;
            end
        });
        std::iter::once(0).chain(ends).collect()
    }
    let name = column.dtype().name();
    match column {
        Column::Int64(values) => (name, values.into_pyarray(py)).into_pyobject(py),
        Column::Float32(values) => (name, values.into_pyarray(py)).into_pyobject(py),
        Column::OptionalFloat32(values) => {
            let values: Vec<f32> = values.into_iter().map(|value| value.unwrap_or(f32::NAN)).collect();
            (name, values.into_pyarray(py)).into_pyobject(py)
        }
        Column::Text(values) => (name, texts(py, &values)?).into_pyobject(py),
        Column::Int64List(lists) => {
            let offsets = offsets(&lists).into_pyarray(py);
            (name, lists.concat().into_pyarray(py), offsets).into_pyobject(py)
        }
        Column::Float32List(lists) => {
            let offsets = offsets(&lists).into_pyarray(py);
            (name, lists.concat().into_pyarray(py), offsets).into_pyobject(py)
        }
    }
}

/// A list of texts. Equal neighbors, such as the sites of latents, are one object.
fn texts<'py>(py: Python<'py>, values: &[String]) -> PyResult<Bound<'py, PyList>> {
    let mut last: Option<(&str, Bound<'py, PyString>)> = None;
    let objects = values.iter().map(|value| match &last {
        Some((text, object)) if *text == value.as_str() => object.clone(),
        _ => last.insert((value.as_str(), PyString::new(py, value))).1.clone(),
    });
    PyList::new(py, objects.collect::<Vec<_>>())
}

/// An op that a Python function computes.
struct PythonOp {
    spec: OpSpec,
    function: Py<PyAny>,
}

impl PythonOp {
    /// Reads an object with `name`, `version`, `about`, `function`, and `inputs` and `outputs` as
    /// lists of `(name, table, dtype)`.
    fn new(py: Python<'_>, op: &Bound<'_, PyAny>) -> PyResult<PythonOp> {
        let text = |name: &str| -> PyResult<Cow<'static, str>> { Ok(op.getattr(name)?.extract::<String>()?.into()) };
        let fields = |list: &str| -> PyResult<Cow<'static, [Field]>> {
            let fields: Vec<(String, String, String)> = op.getattr(list)?.extract()?;
            // An input takes the type of its column; an output declares it.
            let any = list == "inputs";
            fields.into_iter().map(|(name, table, dtype)| field(py, name, &table, &dtype, any)).collect()
        };
        let spec = OpSpec {
            name: text("name")?,
            aliases: &[],
            version: text("version")?,
            about: text("about")?,
            inputs: fields("inputs")?,
            outputs: fields("outputs")?,
            needs: Needs { saes: op.getattr("needs_saes")?.extract()?, gradients: false },
        };
        Ok(PythonOp { spec, function: op.getattr("function")?.unbind() })
    }
}

fn field(py: Python<'_>, name: String, table: &str, dtype: &str, any: bool) -> PyResult<Field> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let bad = |problem: String, hint: &str| error(py, ErrorKind::Input, &problem, Some(hint));
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(bad(format!("{name:?} is not a name of a column"), "use letters, digits and underscores"));
    }
    let place = match table {
        "examples" => Place::Example,
        "latents" => Place::Latent,
        other => return Err(bad(format!("there is no table {other:?}"), "tables are \"examples\" and \"latents\"")),
    };
    let all = [DataType::Int64, DataType::Float32, DataType::Text, DataType::Int64List, DataType::Float32List];
    let known = all.into_iter().find(|known| known.name() == dtype);
    if known.is_none() && !any {
        let names = all.map(DataType::name).join(", ");
        return Err(bad(format!("unknown type {dtype:?} of the column {name:?}"), &format!("types are {names}")));
    }
    Ok(Field { name: name.into(), place, dtype: known, optional: false })
}

impl Op for PythonOp {
    fn spec(&self) -> &OpSpec {
        &self.spec
    }

    fn run(&self, _: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<(), Error> {
        Python::attach(|py| match self.call(py, batch) {
            Ok(columns) => columns.into_iter().try_for_each(|(place, name, column)| match place {
                Place::Latent => batch.set_latent(&name, column),
                _ => batch.set_example(&name, column),
            }),
            Err(exception) => {
                // The exception itself is raised when the session returns.
                let text = exception.to_string();
                raised::store(exception);
                Err(Error::usage(text, "correct the function"))
            }
        })
    }

    fn reads_saes(&self) -> bool {
        // The function sees columns only.
        self.spec.needs.saes
    }
}

impl PythonOp {
    /// Calls the function with its inputs as keyword arguments; returns its outputs as columns.
    fn call(&self, py: Python<'_>, batch: &AnalysisBatch) -> PyResult<Vec<(Place, String, Column)>> {
        let inputs = PyDict::new(py);
        for input in self.spec.inputs.iter() {
            let table = if input.place == Place::Latent { &batch.latents } else { &batch.examples };
            let Some(column) = table.get(&input.name) else { continue };
            inputs.set_item(input.name.as_ref(), column_tuple(py, column.clone())?)?;
        }
        let results = self.function.bind(py).call1((inputs,))?.cast_into::<PyDict>()?;
        let output = |field: &Field| {
            let value = results.get_item(field.name.as_ref())?.ok_or_else(|| {
                let problem = format!("the op {:?} did not return {:?}", self.spec.name, field.name);
                error(py, ErrorKind::Input, &problem, Some("return every declared output"))
            })?;
            let dtype = field.dtype.unwrap_or(DataType::Float32);
            Ok((field.place, field.name.to_string(), to_column(&value, dtype)?))
        };
        self.spec.outputs.iter().map(output).collect()
    }
}

fn to_column(value: &Bound<'_, PyAny>, dtype: DataType) -> PyResult<Column> {
    Ok(match dtype {
        DataType::Int64 => Column::Int64(value.extract::<PyReadonlyArray1<'_, i64>>()?.as_array().to_vec()),
        DataType::Float32 | DataType::OptionalFloat32 => {
            Column::Float32(value.extract::<PyReadonlyArray1<'_, f32>>()?.as_array().to_vec())
        }
        DataType::Text => Column::Text(value.extract()?),
        DataType::Int64List => Column::Int64List(value.extract()?),
        DataType::Float32List => Column::Float32List(value.extract()?),
    })
}
