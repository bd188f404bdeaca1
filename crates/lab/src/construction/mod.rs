//! The suite `construction`: time and memory to construct a model, a tokenizer or a run, relative
//! to an empty process.
//!
//! A [`Fixture`] is a registered constructor ([`registry`]). Each runs in a fresh process
//! ([`child`]) paired with an empty one ([`measure`]); [`report`](mod@report) writes the result as
//! a Markdown page.

pub mod child;
pub mod measure;
pub mod registry;
pub mod report;

use crate::Result;
use child::Phases;
use serde::{Deserialize, Serialize};
use std::any::Any;

/// The name of this suite.
pub const NAME: &str = "construction";
/// Its former name, still accepted.
pub const OLD_NAME: &str = "sessions";
/// One-line description.
pub const TITLE: &str = "Time and memory to construct a model, a tokenizer or a run, relative to an empty process";
/// Name of the empty fixture.
pub const NONE: &str = "none";

/// How long tests share what a fixture constructs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One instance per test process.
    Process,
    /// One instance per test file.
    Suite,
    /// One instance per test.
    Test,
}

impl Scope {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Process => "process",
            Scope::Suite => "suite",
            Scope::Test => "test",
        }
    }
}

/// What a fixture constructs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Category {
    /// A published model.
    #[serde(rename = "Real Model")]
    Real,
    /// The small built-in model.
    #[serde(rename = "Custom Model")]
    Custom,
    /// Configuration and program, without weights.
    #[serde(rename = "Config Only")]
    Config,
    /// Objects that need no model.
    Static,
}

impl Category {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Category::Real => "Real Model",
            Category::Custom => "Custom Model",
            Category::Config => "Config Only",
            Category::Static => "Static",
        }
    }
}

/// Whether the constructed object depends on a model and options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Depends on a model and options.
    Dynamic,
    /// Always the same.
    Static,
}

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Dynamic => "dynamic",
            Kind::Static => "static",
        }
    }
}

/// A registered constructor.
pub struct Fixture {
    /// Its name in the report.
    pub name: &'static str,
    /// How long tests share it.
    pub scope: Scope,
    /// What it constructs.
    pub category: Category,
    /// Whether it depends on a model and options.
    pub kind: Kind,
    /// The model that it loads: the built-in one, or one that must be pulled.
    pub model: Option<&'static str>,
    /// Constructs the object and returns it, so that it stays alive while memory is measured.
    pub build: fn(&mut Phases) -> Result<Box<dyn Any>>,
}
