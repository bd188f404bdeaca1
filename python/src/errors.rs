//! Raises the exceptions of `pellucid/errors.py`. Each has a problem, a hint and, for plans, the
//! tap and site.

use crate::hints;
use pellucid_engine as engine;
use pellucid_models as models;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyModule, PyType};

/// The exception classes of `pellucid.errors`.
#[derive(Clone, Copy)]
pub enum ErrorKind {
    Site,
    Plan,
    Input,
    Load,
    Server,
    Interrupted,
    Internal,
}

impl ErrorKind {
    fn class_name(self) -> &'static str {
        match self {
            ErrorKind::Site => "SiteError",
            ErrorKind::Plan => "PlanError",
            ErrorKind::Input => "InputError",
            ErrorKind::Load => "LoadError",
            ErrorKind::Server => "ServerError",
            ErrorKind::Interrupted => "Interrupted",
            ErrorKind::Internal => "InternalError",
        }
    }
}

/// Creates an exception of the package.
pub fn error(py: Python<'_>, kind: ErrorKind, problem: &str, hint: Option<&str>) -> PyErr {
    new_error(py, kind, problem, hint, None)
}

fn new_error(
    py: Python<'_>,
    kind: ErrorKind,
    problem: &str,
    hint: Option<&str>,
    tap_and_site: Option<(usize, &str)>,
) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let raise = || -> PyResult<PyErr> {
        let module = MODULE.get_or_try_init(py, || PyModule::import(py, "pellucid.errors").map(Bound::unbind))?;
        let class = module.bind(py).getattr(kind.class_name())?.cast_into::<PyType>()?;
        let named = PyDict::new(py);
        if let Some((tap, site)) = tap_and_site {
            named.set_item("tap", tap)?;
            named.set_item("site", site)?;
        }
        Ok(PyErr::from_value(class.call((problem, hint), Some(&named))?))
    };
    raise().unwrap_or_else(|fault| fault)
}

/// Extracts an optional count; anything but `None` or an integer from 0 is an `InputError`.
pub fn extract_count(object: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    let count = if object.is_instance_of::<PyBool>() { None } else { object.extract().ok() };
    count.ok_or_else(|| {
        let problem = format!("{object} is not a valid count");
        error(object.py(), ErrorKind::Input, &problem, Some("threads and chunk are integers, at least 1"))
    })
}

/// Converts an error of the engine to an exception.
pub fn from_engine(py: Python<'_>, fault: &engine::Error) -> PyErr {
    use engine::Error::*;
    let message = fault.to_string();
    let hint = fault.remedy().map(hints::word);
    let hint = hint.as_deref();
    match fault {
        Site { .. } => new_error(py, ErrorKind::Site, &message, hint, None),
        Plan { tap, site, problem, .. } => new_error(py, ErrorKind::Plan, problem, hint, Some((*tap, site))),
        Input { .. } => new_error(py, ErrorKind::Input, &message, hint, None),
        Value { .. } | Several(_) => new_error(py, ErrorKind::Plan, &message, hint, None),
        Interrupted => new_error(py, ErrorKind::Interrupted, &message, None, None),
        Memory { .. } => new_error(py, ErrorKind::Input, &message, hint, None),
        Busy { .. } => new_error(py, ErrorKind::Input, &message, hint, None),
        Internal(_) => internal(py, &message),
        Architecture { .. } => new_error(py, ErrorKind::Load, &message, hint, None),
    }
}

/// Converts an error of the loader, the tokenizer or the engine to an exception.
pub fn from_models(py: Python<'_>, fault: &models::Error) -> PyErr {
    let kind = match fault.cause() {
        models::Error::Engine(fault) => return from_engine(py, fault),
        models::Error::Usage { .. } => ErrorKind::Input,
        _ => ErrorKind::Load,
    };
    let hint = fault.remedy().map(hints::word);
    new_error(py, kind, &fault.to_string(), hint.as_deref(), None)
}

/// Creates the exception for a bug of this package.
fn internal(py: Python<'_>, message: &str) -> PyErr {
    let hint = "this is a bug of Pellucid: please report it with the code and the model";
    new_error(py, ErrorKind::Internal, message, Some(hint), None)
}

/// Runs `work` with the GIL released. A panic (a bug in the engine) becomes an `InternalError`
/// instead of aborting the process.
pub fn guarded<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    py.detach(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))).map_err(|panic| {
        let message = panic.downcast_ref::<String>().cloned();
        let message = message.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        internal(py, &format!("internal error in the engine: {}", message.unwrap_or_default()))
    })
}

/// The first exception that Python code (functions of a plan, `watch`, signal handlers) raised on
/// this thread during a run. The engine calls Python on the calling thread, so a thread-local is
/// enough.
pub mod raised {
    use pyo3::prelude::*;
    use std::cell::RefCell;

    thread_local! {
        static FIRST: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    }

    /// Stores an exception unless there is one already: the first is the cause.
    pub fn store(exception: PyErr) {
        FIRST.with_borrow_mut(|first| {
            first.get_or_insert(exception);
        });
    }

    /// Stores the exception of a failed call.
    pub fn store_error<T>(result: PyResult<T>) {
        if let Err(exception) = result {
            store(exception);
        }
    }

    /// Whether an exception is stored.
    pub fn any() -> bool {
        FIRST.with_borrow(Option::is_some)
    }

    /// Takes the stored exception.
    pub fn take() -> Option<PyErr> {
        FIRST.take()
    }
}
