//! Tests of the command line, in one binary. They run the real `pellucid`.

mod batch;
mod commands;
mod eval;
#[cfg(target_os = "linux")]
mod faults;
mod guide;
mod lab;
mod lab_capture;
mod mcp;
mod remote;
mod saes;
mod sessions;
mod steering;
mod trust;
mod untrusted;

/// The directory of a golden model, as an argument.
fn golden_path(name: &str) -> String {
    golden::path(name).to_string_lossy().into_owned()
}
