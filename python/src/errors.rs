//! The package's exceptions, defined in `pellucid/errors.py`: each carries a problem, its place and a hint.

use pellucid_engine as engine;
use pellucid_models as models;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyModule, PyType};

/// The kinds of errors, by their class in `pellucid.errors`.
#[derive(Clone, Copy)]
pub enum Kind {
    Site,
    Plan,
    Input,
    Load,
    Interrupted,
}

impl Kind {
    fn class_name(self) -> &'static str {
        match self {
            Kind::Site => "SiteError",
            Kind::Plan => "PlanError",
            Kind::Input => "InputError",
            Kind::Load => "LoadError",
            Kind::Interrupted => "Interrupted",
        }
    }
}

/// An exception of the package.
pub fn error(py: Python<'_>, kind: Kind, problem: &str, hint: Option<&str>) -> PyErr {
    make(py, kind, problem, hint, None)
}

fn make(py: Python<'_>, kind: Kind, problem: &str, hint: Option<&str>, place: Option<(usize, &str)>) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let raise = || -> PyResult<PyErr> {
        let module = MODULE.get_or_try_init(py, || PyModule::import(py, "pellucid.errors").map(Bound::unbind))?;
        let class = module.bind(py).getattr(kind.class_name())?.cast_into::<PyType>()?;
        let named = PyDict::new(py);
        if let Some((tap, site)) = place {
            named.set_item("tap", tap)?;
            named.set_item("site", site)?;
        }
        Ok(PyErr::from_value(class.call((problem, hint), Some(&named))?))
    };
    raise().unwrap_or_else(|fault| fault)
}

/// How many, where that is said; anything but a whole number from 0 is an error of the package.
pub fn count(object: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    object.extract().map_err(|_| {
        let problem = format!("{object} is not a number to count with");
        error(object.py(), Kind::Input, &problem, Some("threads and chunks are counted in whole numbers from 1"))
    })
}

/// What the engine said, as an exception.
pub fn from_engine(py: Python<'_>, fault: &engine::Error) -> PyErr {
    use engine::Error::*;
    let message = fault.to_string();
    match fault {
        Site { .. } => make(py, Kind::Site, &message, fault.remedy(), None),
        Plan { tap, site, problem, .. } => make(py, Kind::Plan, problem, fault.remedy(), Some((*tap, site))),
        Input { .. } => make(py, Kind::Input, &message, fault.remedy(), None),
        Value { .. } | Several(_) => make(py, Kind::Plan, &message, fault.remedy(), None),
        Interrupted => make(py, Kind::Interrupted, &message, None, None),
        Architecture { .. } => make(py, Kind::Load, &message, fault.remedy(), None),
    }
}

/// What the loader, the tokenizer or the engine beneath them said, as an exception.
pub fn from_models(py: Python<'_>, fault: &models::Error) -> PyErr {
    match fault.cause() {
        models::Error::Engine(fault) => from_engine(py, fault),
        models::Error::Usage { .. } => make(py, Kind::Input, &fault.to_string(), fault.remedy(), None),
        _ => make(py, Kind::Load, &fault.to_string(), fault.remedy(), None),
    }
}

/// Runs without the interpreter; a panic, which would be a fault of ours, becomes an exception and not the end of the process.
pub fn guarded<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    py.detach(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))).map_err(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        PyRuntimeError::new_err(format!("a fault inside the engine: {}", said.unwrap_or_default()))
    })
}

/// Exceptions that Python code raised on this thread while the engine was running: functions of a plan, watchers, handlers of signals.
/// The engine runs them on the thread that called it, so each thread has its own.
pub mod raised {
    use pyo3::prelude::*;
    use std::cell::RefCell;

    thread_local! {
        static FIRST: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    }

    /// Keeps an exception; the first one tells what happened.
    pub fn keep(exception: PyErr) {
        FIRST.with_borrow_mut(|first| {
            first.get_or_insert(exception);
        });
    }

    /// Keeps the exception of an outcome that is one.
    pub fn keep_from<T>(outcome: PyResult<T>) {
        if let Err(exception) = outcome {
            keep(exception);
        }
    }

    /// Whether there is one.
    pub fn any() -> bool {
        FIRST.with_borrow(Option::is_some)
    }

    /// Takes it.
    pub fn take() -> Option<PyErr> {
        FIRST.take()
    }
}
