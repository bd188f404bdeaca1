//! The suite `construction`: what it costs to construct a model, a tokenizer or a run, relative to an empty process.
//!
//! A [`Fixture`] is a registered constructor ([`registry`]). Each is built in a fresh process ([`child`]) beside an empty one
//! ([`measure`]); [`report`](mod@report) prints the survey as one Markdown page.

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
/// Its earlier name, which is still accepted.
pub const OLD_NAME: &str = "sessions";
/// What it is about.
pub const TITLE: &str = "Time and memory to construct a model, a tokenizer or a run, relative to an empty process";
/// The child that constructs nothing.
pub const NONE: &str = "none";

/// For how long tests keep what a fixture constructs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One for all tests of a process.
    Process,
    /// One for the tests of a file.
    Suite,
    /// One for each test.
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
    /// A model that people use.
    #[serde(rename = "Real Model")]
    Real,
    /// A small model of our own.
    #[serde(rename = "Custom Model")]
    Custom,
    /// What is known of a model before its weights are read.
    #[serde(rename = "Config Only")]
    Config,
    /// What needs no model.
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

/// Whether what is constructed depends on what it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// From a model and options.
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
    /// For how long tests keep it.
    pub scope: Scope,
    /// What it constructs.
    pub category: Category,
    /// Whether that depends on anything.
    pub kind: Kind,
    /// The model that it needs: the built-in one, or one that has to be pulled.
    pub model: Option<&'static str>,
    /// Constructs it, and returns what has to stay alive while its memory is looked at.
    pub build: fn(&mut Phases) -> Result<Box<dyn Any>>,
}
