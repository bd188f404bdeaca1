//! Output files: written under a temporary name, then renamed, so that a reader never sees an
//! incomplete file.

use crate::failure::Failure;
use pellucid_engine::{Action, Array, Capture, CaptureDtype, Generation, Plan, SavedValue};
use pellucid_models::LoadedModel;
use pellucid_models::attach::SaeRecord;
use safetensors::{Dtype, SafeTensorError, View};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use tempfile::NamedTempFile;

/// Writes a file atomically.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    write_with(path, |file| file.write_all(bytes))
}

/// Writes a file atomically: `fill` writes its content to a temporary file.
fn write_with(path: &Path, fill: impl FnOnce(&mut NamedTempFile) -> std::io::Result<()>) -> Result<(), Failure> {
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
    fill(&mut file).map_err(fail)?;
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
    /// The autoencoders attached to the model.
    pub saes: Vec<&'a SaeRecord>,
}

impl<'a> Results<'a> {
    /// The results of a generation by a model.
    pub fn of_generation(loaded: &'a LoadedModel, plan: &'a Plan, generation: &'a Generation) -> Results<'a> {
        let Generation { captures, saved, rows, .. } = generation;
        Results { plan, captures, saved, rows: rows.len(), saes: loaded.saes() }
    }

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

/// Writes results as one safetensors file, one array after the other; integer arrays as I64. Its
/// metadata has the attached autoencoders.
pub fn write_results(path: &Path, results: &Results) -> Result<(), Failure> {
    let arrays: Vec<(String, ResultView)> =
        results.named().into_iter().map(|(name, array)| (name, ResultView(array))).collect();
    let saes = serde_json::to_string(&results.saes).map_err(|error| Failure::internal(error.to_string()))?;
    let metadata = (!results.saes.is_empty()).then(|| HashMap::from([("saes".to_string(), saes)]));
    write_with(path, |file| {
        safetensors::serialize_to_file(arrays, metadata, file.path()).map_err(|error| match error {
            SafeTensorError::IoError(error) => error,
            other => std::io::Error::other(other.to_string()),
        })
    })
}

/// An array as a tensor of a safetensors file.
struct ResultView<'a>(&'a Array);

impl View for ResultView<'_> {
    fn dtype(&self) -> Dtype {
        match self.0.dtype() {
            _ if self.0.is_integer() => Dtype::I64,
            CaptureDtype::F32 => Dtype::F32,
            CaptureDtype::Bf16 => Dtype::BF16,
        }
    }

    fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let array = self.0;
        Cow::Owned(match array.halves() {
            _ if array.is_integer() => array.values().iter().flat_map(|&x| (x as i64).to_le_bytes()).collect(),
            Some(halves) => halves.iter().flat_map(|x| x.to_le_bytes()).collect(),
            None => array.values().iter().flat_map(|x| x.to_le_bytes()).collect(),
        })
    }

    fn data_len(&self) -> usize {
        let bytes = if self.0.is_integer() { 8 } else { self.0.dtype().bytes() };
        bytes * self.0.len()
    }
}
