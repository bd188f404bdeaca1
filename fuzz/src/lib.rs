//! Fuzz targets: functions of bytes that must return, whatever the bytes are.
//!
//! A target may not panic, abort, hang or take more memory than its limits, and what it accepts
//! must be consistent. `readers` has the targets of files, `plans` those of plans, `requests` that
//! of HTTP requests. The same functions run under libFuzzer (`libfuzzer/`, nightly, guided by
//! coverage) and under the runner of this crate (stable, blind mutations of the seeds), which
//! continuous integration uses.

pub mod mutate;
mod plans;
mod readers;
mod requests;
mod seeds;

use mutate::Kind;

/// A fuzz target.
pub struct Target {
    /// Its name, also of its directory in `crashes/`.
    pub name: &'static str,
    /// The function under test.
    pub run: fn(&[u8]),
    /// Makes the inputs from which mutations start.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// What the inputs are.
    pub kind: Kind,
    /// Executions in continuous integration.
    pub short: u64,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "safetensors",
        run: readers::safetensors,
        seeds: seeds::safetensors,
        kind: Kind::Binary,
        short: 3000,
    },
    Target { name: "index", run: readers::index, seeds: seeds::index, kind: Kind::Json, short: 2000 },
    Target { name: "gguf", run: readers::gguf, seeds: seeds::gguf, kind: Kind::Binary, short: 2000 },
    Target { name: "pickle", run: readers::pickle, seeds: seeds::pickle, kind: Kind::Binary, short: 3000 },
    Target { name: "tokenizer", run: readers::tokenizer, seeds: seeds::tokenizer, kind: Kind::Json, short: 1000 },
    Target { name: "config", run: readers::config, seeds: seeds::config, kind: Kind::Json, short: 5000 },
    Target { name: "template", run: readers::template, seeds: seeds::template, kind: Kind::Text, short: 1000 },
    Target { name: "adapter", run: readers::adapter, seeds: seeds::adapter, kind: Kind::Json, short: 2000 },
    Target { name: "plan", run: plans::json, seeds: seeds::plan, kind: Kind::Json, short: 2000 },
    Target { name: "requests", run: requests::post, seeds: requests::seeds, kind: Kind::Json, short: 1500 },
    Target { name: "edits", run: plans::edits, seeds: seeds::edits, kind: Kind::Binary, short: 500 },
];

/// Finds a target by name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Runs a target by name, for libFuzzer.
///
/// # Panics
/// If there is no such target, and if the target finds a fault.
pub fn run(name: &str, data: &[u8]) {
    let target = target(name).unwrap_or_else(|| panic!("no target `{name}`"));
    (target.run)(data);
}

/// Creates a temporary directory, in memory where that is possible: an execution writes a file.
///
/// # Errors
/// Of the file system.
pub fn scratch_directory() -> std::io::Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}
