//! The engine as the Python module `pellucid._core`.
//!
//! This crate translates: Python objects become rows of tokens and plans, what a run gives back becomes objects that share the engine's
//! memory. Only what a block makes by the dozen lives here itself (`block`). What people use is the package around it (`pellucid/*.py`).
//!
//! | module | its part |
//! |---|---|
//! | `identify` | what a directory or file is |
//! | `model` | loading, tokens, sites, weights |
//! | `run` | runs and generations: with the interpreter released, and stopped by its signals |
//! | `branch` | re-runs from the middle |
//! | `prefix` | beginnings of prompts, kept for later calls |
//! | `found` | what came back |
//! | `block` | the objects of a block: its record, its views, its values and sites |
//! | `record` | what a block recorded, as a plan |
//! | `expression` | the values among it |
//! | `tokenizer` | tokenizers by themselves |
//! | `network` | small networks built by hand |
//! | `array` | arrays in both directions, without copies where the memory is ours |
//! | `errors` | the package's exceptions |

mod array;
mod block;
mod branch;
mod errors;
mod expression;
mod found;
mod identify;
mod model;
mod network;
mod prefix;
mod record;
mod run;
mod tokenizer;

use pyo3::prelude::*;

/// The engine: what the package `pellucid` is made of.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::array::Array;
    #[pymodule_export]
    use super::block::{BlockLayer, BlockLayers, BlockSite, BlockValue, BlockView, PointOfLayer, Record};
    #[pymodule_export]
    use super::branch::{Base, base};
    #[pymodule_export]
    use super::identify::{
        identify_path, inspect_path, inspect_schema, register_architecture, register_file, registered_architectures,
    };
    #[pymodule_export]
    use super::model::{Model, pull, strategies_of};
    #[pymodule_export]
    use super::network::Network;
    #[pymodule_export]
    use super::prefix::Prefixes;
    #[pymodule_export]
    use super::record::Plan;
    #[pymodule_export]
    use super::run::{Generation, Run, generate, run, scan};
    #[pymodule_export]
    use super::tokenizer::Tokenizer;
    #[pymodule_export]
    use super::{after_fork, points, version};
}

/// Every point that a model may have: its name, whether it is in layers, and what it is.
#[pyfunction]
fn points() -> Vec<(&'static str, bool, &'static str)> {
    use pellucid_engine::point::{Point, Scope};
    let described = Point::ALL.iter().map(|point| point.info());
    described.map(|info| (info.name, info.scope == Scope::Layer, info.meaning)).collect()
}

/// The version of the engine.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Tells the engine that this process is the child of a fork: threads are not inherited, and start anew.
#[pyfunction]
fn after_fork() {
    pellucid_kernels::Pool::after_fork();
}
