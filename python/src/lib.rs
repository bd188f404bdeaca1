//! Python bindings of the engine: the extension module `pellucid._core`.
//!
//! This crate converts between Python and the engine: prompts to token rows, recorded traces to
//! plans, results to arrays that share the engine's memory. The user-facing API is the Python
//! package around it (`pellucid/*.py`). Only objects that a trace creates in large numbers are
//! native (`tracing`).
//!
//! | module | contents |
//! |---|---|
//! | `allocator` | returns freed memory to the system |
//! | `array` | arrays in both directions; engine arrays are shared, not copied |
//! | `branch` | branches: re-runs of a prompt from the middle |
//! | `chat` | conversations as tokens, with the spans of their messages |
//! | `command` | the `pellucid` command, for the script of the package |
//! | `engine` | the scheduler: many requests at once |
//! | `errors` | engine errors and panics as exceptions of the package |
//! | `eval` | evaluation on tasks |
//! | `expression` | recorded values as expressions of a plan |
//! | `hints` | remedies of errors, worded for Python |
//! | `identify` | inspection of a directory or file |
//! | `model` | loading, tokens, sites, weights |
//! | `nan` | NaN in results |
//! | `network` | small networks built layer by layer |
//! | `plan` | a recorded trace as a plan |
//! | `prefix` | the prefix cache |
//! | `remote` | calls to a server |
//! | `results` | captures and saved values of a run |
//! | `run` | runs and generations, with the GIL released and Ctrl-C handled |
//! | `sae` | sparse autoencoders: files, arithmetic, attaching |
//! | `session` | analysis sessions, stores of results, ops in Python |
//! | `sparse` | sparse captures |
//! | `steering` | steering vectors: files, checks, extraction |
//! | `tokenizer` | tokenizers without a model |
//! | `tracing` | native halves of the tracing objects: recorder, views, values, sites |

mod allocator;
mod array;
mod branch;
mod chat;
mod command;
mod engine;
mod errors;
mod eval;
mod expression;
mod hints;
mod identify;
mod model;
mod nan;
mod network;
mod plan;
mod prefix;
mod remote;
mod results;
mod run;
mod sae;
mod session;
mod sparse;
mod steering;
mod tokenizer;
mod tracing;

use pyo3::prelude::*;

/// Native part of the package `pellucid`. Use the package; this module is not a public API.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::array::Array;
    #[pymodule_export]
    use super::branch::{Base, base};
    #[pymodule_export]
    use super::chat::ChatPrompt;
    #[pymodule_export]
    use super::command::run_command;
    #[pymodule_export]
    use super::engine::{Engine, EngineRequest};
    #[pymodule_export]
    use super::eval::{EvalTask, evaluate_task};
    #[pymodule_export]
    use super::identify::{
        identify_path, inspect_path, inspect_schema, register_architecture, register_file, registered_architectures,
    };
    #[pymodule_export]
    use super::model::{Model, pull, strategies_of};
    #[pymodule_export]
    use super::network::Network;
    #[pymodule_export]
    use super::plan::Plan;
    #[pymodule_export]
    use super::prefix::Prefixes;
    #[pymodule_export]
    use super::run::{Generation, Run, check_generate_options, generate, run, scan};
    #[pymodule_export]
    use super::sae::{Sae, attach_path, attach_sae, attached_saes, detach_sae};
    #[pymodule_export]
    use super::session::{Session, Store, open_session, replay_store, session_ops, session_schema};
    #[pymodule_export]
    use super::sparse::SparseArray;
    #[pymodule_export]
    use super::steering::{check_steering, extract_steering, read_steering, steering_file};
    #[pymodule_export]
    use super::tokenizer::Tokenizer;
    #[pymodule_export]
    use super::tracing::{SiteDescriptor, TraceLayer, TraceLayers, TraceRecorder, TraceSite, TraceValue, TraceView};
    #[pymodule_export]
    use super::{after_fork, points, set_memory_limit, version};
}

/// Every point that a model may have: `(name, whether it is per layer, meaning)`.
#[pyfunction]
fn points() -> Vec<(&'static str, bool, &'static str)> {
    use pellucid_engine::point::{Point, Scope};
    let described = Point::ALL.iter().map(|point| point.info());
    described.map(|info| (info.name, info.scope == Scope::Layer, info.meaning)).collect()
}

/// The version of this crate.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Sets the memory that later calls of this process may take: `80%`, `12GB` or `none`.
#[pyfunction]
fn set_memory_limit(py: Python<'_>, limit: &str) -> PyResult<()> {
    let limit = limit.parse().map_err(|problem: String| {
        errors::error(py, errors::ErrorKind::Input, &problem, Some("such as \"80%\", \"12GB\" or \"none\""))
    })?;
    pellucid_engine::set_memory_limit(limit);
    Ok(())
}

/// Called in the child after `os.fork`: the thread pool is not inherited and must be restarted.
#[pyfunction]
fn after_fork() {
    pellucid_kernels::Pool::after_fork();
}
