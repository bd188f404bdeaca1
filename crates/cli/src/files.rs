//! Output files: written under a temporary name, then renamed, so that a reader never sees an
//! incomplete file.

use crate::failure::Failure;
use pellucid_engine::{Action, Array, Capture, Plan, SavedValue};
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

/// Writes a file atomically.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let fail = |error: std::io::Error| {
        Failure::usage(
            format!("cannot write {}: {error}", path.display()),
            "check that the directory exists and the disk is not full",
        )
    };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    // Temporary files are private by default; a result gets the usual permissions (the umask
    // applies).
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(dir).map_err(fail)?;
    file.write_all(bytes).map_err(fail)?;
    file.persist(path).map_err(|error| fail(error.error))?;
    Ok(())
}

/// Fails early if a file cannot be written, before minutes of work are done for it.
pub fn check(path: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() || !dir.is_dir() {
        let problem = if path.is_dir() { "it is a directory" } else { "there is no such directory" };
        return Err(Failure::usage(
            format!("cannot write {}: {problem}", path.display()),
            "give a file in a directory that exists",
        ));
    }
    Ok(())
}

/// Creates a directory if it does not exist, and checks that files can be written to it.
pub fn create_directory(path: &Path) -> Result<(), Failure> {
    let fail = |error: std::io::Error| {
        Failure::usage(
            format!("cannot write to the directory {}: {error}", path.display()),
            "give a directory that exists or can be created, and may be written",
        )
    };
    std::fs::create_dir_all(path).map_err(fail)?;
    tempfile::tempfile_in(path).map_err(fail)?;
    Ok(())
}

/// Captures and saved values of a run.
pub struct Results<'a> {
    pub plan: &'a Plan,
    pub captures: &'a [Capture],
    pub saved: &'a [SavedValue],
    /// Number of rows in the call.
    pub rows: usize,
}

impl<'a> Results<'a> {
    /// Returns every result with its name: the site (with `.grad` for gradients) or the value's own
    /// name, prefixed by the row if there are several, followed by `@step` in a generation, and
    /// numbered if the name repeats.
    pub fn named(&self) -> Vec<(String, &'a Array)> {
        let mut seen: HashMap<String, usize> = HashMap::new();
        let mut unique = |name: String| {
            let count = seen.entry(name.clone()).or_default();
            *count += 1;
            if *count > 1 { format!("{name}#{count}") } else { name }
        };
        let of_row = |row: Option<usize>, name: String| match row {
            Some(row) if self.rows > 1 => format!("{row}/{name}"),
            _ => name,
        };
        let mut named = Vec::new();
        for capture in self.captures {
            let is_gradient = matches!(self.plan.taps[capture.tap].action, Action::Grad { .. });
            let site = if is_gradient { format!("{}.grad", capture.site) } else { capture.site.to_string() };
            let name = unique(of_row(Some(capture.row), site));
            named.push((name.clone(), &capture.array));
            named.extend(capture.units.as_ref().map(|units| (format!("{name}.units"), units)));
        }
        for saved in self.saved {
            let value = &self.plan.values[saved.value];
            let name = value.name.clone().unwrap_or_else(|| format!("value{}", saved.value));
            let name = if saved.step > 0 { format!("{name}@{}", saved.step) } else { name };
            named.push((unique(of_row(saved.row, name)), &saved.array));
        }
        named
    }
}

/// Writes results as one safetensors file; integer arrays as I64.
pub fn write_results(path: &Path, results: &Results) -> Result<(), Failure> {
    let data: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = results
        .named()
        .into_iter()
        .map(|(name, array)| {
            let (dtype, bytes) = if array.is_integer() {
                (Dtype::I64, array.values().iter().flat_map(|&x| (x as i64).to_le_bytes()).collect())
            } else {
                (Dtype::F32, array.values().iter().flat_map(|x| x.to_le_bytes()).collect())
            };
            (name, dtype, array.shape().to_vec(), bytes)
        })
        .collect();
    let mut views = Vec::with_capacity(data.len());
    for (name, dtype, shape, bytes) in &data {
        let view = TensorView::new(*dtype, shape.clone(), bytes)
            .map_err(|error| Failure::internal(format!("{name}: {error}")))?;
        views.push((name.clone(), view));
    }
    let bytes = safetensors::serialize(views, None).map_err(|error| Failure::internal(error.to_string()))?;
    write(path, &bytes)
}
