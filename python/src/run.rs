//! Runs and generations. The GIL is released meanwhile; Python signals such as Ctrl-C stop them.

use crate::chat::extract_chats;
use crate::errors::{ErrorKind, error, extract_count, from_models, guarded, raised};
use crate::model::Model;
use crate::nan::{NanReport, NanTuple};
use crate::plan::{Plan, SaveSource};
use crate::prefix::Prefixes;
use crate::remote::run_remote;
use crate::results::{CaptureTuple, MarkTuple, RunResults};
use crate::tracing::TraceValue;
use pellucid_client::RemoteRun;
use pellucid_engine::{self as engine, CaptureDtype, Finish, GenerateOptions, Interrupt, RunOptions, Sampling};
use pellucid_models::attach::check_saes;
use pellucid_models::chat::ChatPrompt;
use pellucid_models::{StopStrings, TextPiece, prepare_chats};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyTuple};
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The results of a run.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Run {
    pub results: RunResults,
    pub time: Duration,
    /// A result with NaN, if there is one and the plan does not allow it.
    pub nan: Option<NanReport>,
}

/// The results of a generation.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Generation {
    pub results: RunResults,
    pub rows: Vec<engine::GeneratedRow>,
    pub texts: Vec<Option<String>>,
    pub prefill: Duration,
    pub decode: Duration,
    pub reused: Vec<usize>,
    pub nan: Option<NanReport>,
}

#[pymethods]
impl Run {
    /// Sets the results of the saved values.
    fn assign_saved(&self, py: Python<'_>) -> PyResult<()> {
        self.results.assign_saved(py)
    }

    /// The captures of a recorded tap.
    fn captured(&self, tap: usize) -> Vec<CaptureTuple> {
        self.results.captured(tap)
    }

    /// All captures, in the order of the plan's taps.
    fn all(&self) -> Vec<CaptureTuple> {
        self.results.all()
    }

    /// The positions at which the plan's marks held.
    #[getter]
    fn marks(&self) -> Vec<MarkTuple> {
        self.results.marks()
    }

    /// Sites that patterns skipped because their layer does not have the point.
    #[getter]
    fn passed_over(&self) -> Vec<String> {
        self.results.passed_over()
    }

    /// Seconds spent in the engine.
    #[getter]
    fn seconds(&self) -> f64 {
        self.time.as_secs_f64()
    }

    /// The first result with NaN and where NaN first appears: `(result, (site, row, position,
    /// earlier site with infinity))`.
    #[getter]
    fn nan(&self) -> Option<NanTuple> {
        self.nan.as_ref().map(NanReport::to_tuple)
    }
}

#[pymethods]
impl Generation {
    /// Sets the results of the saved values.
    fn assign_saved(&self, py: Python<'_>) -> PyResult<()> {
        self.results.assign_saved(py)
    }

    /// The captures of a recorded tap.
    fn captured(&self, tap: usize) -> Vec<CaptureTuple> {
        self.results.captured(tap)
    }

    /// The positions at which the plan's marks held.
    #[getter]
    fn marks(&self) -> Vec<MarkTuple> {
        self.results.marks()
    }

    /// Sites that patterns skipped because their layer does not have the point.
    #[getter]
    fn passed_over(&self) -> Vec<String> {
        self.results.passed_over()
    }

    /// All captures, in the order of the plan's taps.
    fn all(&self) -> Vec<CaptureTuple> {
        self.results.all()
    }

    /// For each row: the new tokens, their text, and the finish reason.
    #[getter]
    fn rows(&self) -> Vec<(Vec<u32>, Option<String>, &'static str)> {
        let finish = |finish| match finish {
            Finish::Eos => "eos",
            Finish::Length => "length",
            Finish::Stop => "stop",
            Finish::Condition => "condition",
        };
        let rows = self.rows.iter().zip(&self.texts);
        rows.map(|(row, text)| (row.tokens.clone(), text.clone(), finish(row.finish))).collect()
    }

    /// For each row: speculative tokens, how many of them were accepted, and prompt tokens that
    /// came from the prefix cache.
    #[getter]
    fn saved_work(&self) -> Vec<(usize, usize, usize)> {
        let rows = self.rows.iter().zip(&self.reused);
        rows.map(|(row, &reused)| (row.lookup.drafted, row.lookup.accepted, reused)).collect()
    }

    /// The first result with NaN; see `Run.nan`.
    #[getter]
    fn nan(&self) -> Option<NanTuple> {
        self.nan.as_ref().map(NanReport::to_tuple)
    }

    /// Seconds of prefill and of decode.
    #[getter]
    fn seconds(&self) -> (f64, f64) {
        (self.prefill.as_secs_f64(), self.decode.as_secs_f64())
    }
}

/// Runs rows of tokens under the standing edits followed by a plan.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // one per Python argument
pub fn run(
    py: Python<'_>,
    model: &Model,
    rows: &Bound<'_, PyList>,
    plan: Py<Plan>,
    edits: &Bound<'_, PyTuple>,
    #[pyo3(from_py_with = extract_count)] chunk: Option<usize>,
    recompute: bool,
    #[pyo3(from_py_with = extract_count)] threads: Option<usize>,
    prefixes: Option<Py<Prefixes>>,
) -> PyResult<Run> {
    let chats = extract_chats(rows);
    let (rows, edits) = (extract_rows(py, rows)?, concat_edits(edits)?);
    let prefixes = prefixes.map(|prefixes| prefixes.get().0.clone());
    if let Some(remote) = model.remote() {
        let (run, time, offset, nan) = run_remote(py, || {
            let edited = EditedPlan::new(plan.get(), edits, &rows, &chats, model)?;
            let interrupt = Some(signal_interrupt());
            let options = RunOptions { chunk, recompute, threads, prefixes, interrupt, ..RunOptions::default() };
            let RemoteRun { run, time, nan: origin } =
                remote.run(&rows, &edited.plan, &options, !edited.plan.allow_nan)?;
            let nan = NanReport::of_results(&run, &edited.plan).map(|report| NanReport { origin, ..report });
            Ok((run, time, edited.offset, nan))
        })?;
        return Ok(Run { results: RunResults::from_run(run, plan, offset, rows.len() == 1), time, nan });
    }
    let loaded = model.loaded(py)?;
    let (run, time, offset, nan) = run_engine(py, || {
        let edited = EditedPlan::new(plan.get(), edits, &rows, &chats, model)?;
        let interrupt = Some(signal_interrupt());
        let options = RunOptions { chunk, recompute, threads, prefixes, interrupt, ..RunOptions::default() };
        let started = Instant::now();
        let run = loaded.model.run(&rows, &edited.plan, &options)?;
        let time = started.elapsed();
        let mut nan = NanReport::of_results(&run, &edited.plan);
        if let Some(report) = &mut nan {
            // The search only explains: if it fails, the report goes without it.
            let options = RunOptions { prefixes: None, ..options };
            report.origin = loaded.model.find_nan(&rows, &edited.plan, &options).ok().flatten();
        }
        Ok((run, time, edited.offset, nan))
    })?;
    Ok(Run { results: RunResults::from_run(run, plan, offset, rows.len() == 1), time, nan })
}

/// Generates from rows of tokens under the standing edits followed by a plan. Calls
/// `watch(row, token, text)` for each new token.
#[pyfunction]
pub fn generate(
    py: Python<'_>,
    model: &Model,
    rows: &Bound<'_, PyList>,
    plan: Py<Plan>,
    edits: &Bound<'_, PyTuple>,
    options: &Bound<'_, PyDict>,
    watch: Option<Py<PyAny>>,
) -> PyResult<Generation> {
    let chats = extract_chats(rows);
    let (loaded, rows, edits) = (model.parts(py)?, extract_rows(py, rows)?, concat_edits(edits)?);
    let mut settings = parse_generate_options(py, options)?;
    if settings.eos {
        settings.generate.eos = loaded.eos.clone();
    }
    settings.generate.interrupt = Some(signal_interrupt());
    let GenerateSettings { generate, stop, .. } = &settings;
    let (generation, offset, nan) = run_remote(py, || {
        let edited = EditedPlan::new(plan.get(), edits, &rows, &chats, model)?;
        let mut call_watch = |piece: TextPiece<'_>| {
            if let Some(watch) = watch.as_ref().filter(|_| !raised::any()) {
                let text = (!piece.text.is_empty()).then_some(piece.text);
                Python::attach(|py| raised::store_error(watch.call1(py, (piece.row, piece.token, text))));
            }
        };
        let generation = match model.remote() {
            Some(remote) => remote.generate(&rows, &edited.plan, generate, stop, false, &mut call_watch)?.generation,
            None => loaded.generate(&rows, &edited.plan, generate, stop, &mut call_watch)?,
        };
        // Captures in a file are not read back for this.
        let in_memory = generate.captures.memory_limit.is_none();
        let captures = if in_memory { &generation.captures[..] } else { &[] };
        let nan = NanReport::of(captures, &generation.saved, &edited.plan);
        Ok((generation, edited.offset, nan))
    })?;
    let texts = generation.rows.iter().map(|row| loaded.text(&row.tokens, stop)).collect();
    let engine::Generation { rows, captures, saved, marks, passed_over, reused, prefill, decode, .. } = generation;
    let results =
        RunResults { captures, saved, marks, passed_over, plan, offset, one_row: rows.len() == 1, steps: true };
    Ok(Generation { results, rows, texts, prefill, decode, reused, nan })
}

/// `(row, shape)` of a saved value. The row is `None` for a value that joins all rows, the shape is
/// `None` if it depends on a Python function.
type RowShapes = Vec<(Option<usize>, Option<Vec<usize>>)>;

/// Infers the shapes of a trace's saved values without running it.
#[pyfunction]
pub fn scan(
    py: Python<'_>,
    model: &Model,
    rows: &Bound<'_, PyList>,
    plan: &Plan,
    edits: &Bound<'_, PyTuple>,
) -> PyResult<Vec<(Py<TraceValue>, RowShapes)>> {
    let chats = extract_chats(rows);
    let (rows, edits) = (extract_rows(py, rows)?, concat_edits(edits)?);
    let (shapes, offset) = run_engine(py, || {
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        model.check_lengths(&lengths)?;
        let edited = EditedPlan::new(plan, edits, &rows, &chats, model)?;
        Ok((edited.plan.shapes(model.program(), &lengths)?, edited.offset))
    })?;
    let shapes_of = |source: SaveSource| match offset.shift(source) {
        SaveSource::Value(id) => {
            shapes.saved.iter().filter(|saved| saved.0 == id).map(|(_, row, shape)| (*row, shape.clone())).collect()
        }
        SaveSource::Capture(tap) => {
            let captures = shapes.captures.iter().filter(|capture| capture.0 == tap);
            captures.map(|(_, row, shape)| (Some(*row), Some(shape.clone()))).collect()
        }
    };
    Ok(plan.saves.iter().map(|save| (save.value.clone_ref(py), shapes_of(save.source))).collect())
}

/// One plan: the standing edits followed by the plan of a trace.
pub struct EditedPlan<'a> {
    pub plan: Cow<'a, engine::Plan>,
    pub offset: PlanOffset,
}

/// Number of taps and values of the standing edits, which precede those of the trace's plan.
#[derive(Clone, Copy, Default)]
pub struct PlanOffset {
    pub taps: usize,
    pub values: usize,
}

impl PlanOffset {
    /// Translates a source in the trace's plan to the combined plan.
    pub fn shift(self, source: SaveSource) -> SaveSource {
        match source {
            SaveSource::Value(id) => SaveSource::Value(id.after(self.values)),
            SaveSource::Capture(tap) => SaveSource::Capture(tap + self.taps),
        }
    }
}

impl<'a> EditedPlan<'a> {
    pub fn new(
        plan: &'a Plan,
        edits: engine::Plan,
        rows: &[Vec<u32>],
        chats: &[Option<ChatPrompt>],
        model: &Model,
    ) -> pellucid_models::Result<EditedPlan<'a>> {
        // A server checks the autoencoders that it has attached.
        if model.remote().is_none() {
            check_saes(&model.saes(), &plan.inner, Path::new("."))?;
            check_saes(&model.saes(), &edits, Path::new("."))?;
        }
        if edits == engine::Plan::default() {
            return Ok(EditedPlan { plan: Cow::Borrowed(&plan.inner), offset: PlanOffset::default() });
        }
        // Only plans from JSON name files, token texts and messages; a recorded trace has none.
        let edits = prepare_chats(edits, Path::new("."), rows, chats, model.optional_tokenizer())?;
        let offset = PlanOffset { taps: edits.taps.len(), values: edits.values.len() };
        Ok(EditedPlan { plan: Cow::Owned(edits.then(plan.inner.clone())), offset })
    }
}

/// Concatenates the standing edits to one plan.
pub fn concat_edits(edits: &Bound<'_, PyTuple>) -> PyResult<engine::Plan> {
    edits.iter().try_fold(engine::Plan::default(), |all, edit| Ok(all.then(edit.cast::<Plan>()?.get().inner.clone())))
}

/// Runs `work` with the GIL released. An exception raised by Python code during the run takes
/// precedence over the engine's error.
pub fn run_engine<T: Send>(py: Python<'_>, work: impl FnOnce() -> pellucid_models::Result<T> + Send) -> PyResult<T> {
    let outcome = guarded(py, work)?;
    match raised::take() {
        Some(exception) => Err(exception),
        None => outcome.map_err(|fault| from_models(py, &fault)),
    }
}

/// Interrupt that stops the engine when a signal handler raises (Ctrl-C) or when Python code called
/// by the run has raised.
pub fn signal_interrupt() -> Interrupt {
    Interrupt(Arc::new(|| {
        Python::attach(|py| raised::store_error(py.check_signals()));
        raised::any()
    }))
}

/// Extracts token ids, `[rows][tokens]`.
pub fn extract_rows(py: Python<'_>, rows: &Bound<'_, PyList>) -> PyResult<Vec<Vec<u32>>> {
    let extract = |(row, tokens): (usize, Bound<'_, PyAny>)| {
        tokens.extract().map_err(|fault: PyErr| {
            let problem = format!("row {row} is not a list of token ids: {}", fault.value(py));
            error(py, ErrorKind::Input, &problem, Some("token ids are whole numbers from 0"))
        })
    };
    rows.iter().enumerate().map(extract).collect()
}

/// Checks the keyword arguments of `Model.generate`, without prompts.
#[pyfunction]
pub fn check_generate_options(py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<()> {
    let settings = parse_generate_options(py, options)?;
    let problem = match settings.generate.sampling.problem() {
        None if settings.generate.max_new == 0 => "max_new is 0: generation needs at least one new token".into(),
        None => return Ok(()),
        Some(problem) => problem,
    };
    Err(error(py, ErrorKind::Input, &problem, Some("see `help(pellucid.Model.generate)`")))
}

pub struct GenerateSettings {
    pub generate: GenerateOptions,
    /// Strings that end a row.
    pub stop: StopStrings,
    /// End a row at the model's end-of-text tokens.
    pub eos: bool,
}

/// Parses the keyword arguments of `Model.generate`.
pub fn parse_generate_options(py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<GenerateSettings> {
    let (mut generate, mut sampling) = (GenerateOptions::default(), Sampling::default());
    let (mut stop, mut eos) = (StopStrings::default(), true);
    for (key, value) in options {
        let key: String = key.extract()?;
        let wrong = |fault: PyErr| match fault.is_instance_of::<PyTypeError>(py) {
            true => error(
                py,
                ErrorKind::Input,
                &format!("{key}: {}", fault.value(py)),
                Some("see help(pellucid.Model.generate)"),
            ),
            false => error(py, ErrorKind::Input, &format!("{key} is out of range: {}", fault.value(py)), None),
        };
        // A boolean is an integer in Python, but never a sensible number of these options.
        if key != "eos" && value.is_instance_of::<PyBool>() {
            let problem = format!("{key} is {value}, which is not a number");
            return Err(error(py, ErrorKind::Input, &problem, Some("see `help(pellucid.Model.generate)`")));
        }
        match key.as_str() {
            "max_new" => generate.max_new = value.extract().map_err(wrong)?,
            "temperature" => sampling.temperature = value.extract().map_err(wrong)?,
            "top_k" => sampling.top_k = value.extract().map_err(wrong)?,
            "top_p" => sampling.top_p = value.extract().map_err(wrong)?,
            "min_p" => sampling.min_p = value.extract().map_err(wrong)?,
            "repetition_penalty" => sampling.repetition_penalty = value.extract().map_err(wrong)?,
            "seed" => sampling.seed = value.extract().map_err(wrong)?,
            "stop" => {
                let strings = match value.extract::<String>() {
                    Ok(one) => vec![one],
                    Err(_) => value.extract().map_err(wrong)?,
                };
                stop = StopStrings::new(strings).map_err(|fault| from_models(py, &fault))?;
            }
            "eos" => eos = value.extract().map_err(wrong)?,
            "capture_dtype" => {
                let name: String = value.extract().map_err(wrong)?;
                generate.captures.dtype = parse_capture_dtype(py, &name)?;
            }
            "capture_memory" => generate.captures.memory_limit = value.extract().map_err(wrong)?,
            "capture_folder" => generate.captures.spill_folder = value.extract().map_err(wrong)?,
            "chunk" => generate.chunk = value.extract().map_err(wrong)?,
            "lookup" => generate.lookup = value.extract().map_err(wrong)?,
            "threads" => generate.threads = value.extract().map_err(wrong)?,
            "prefixes" => {
                let given = value.extract::<Option<Py<Prefixes>>>().map_err(|fault| wrong(fault.into()))?;
                generate.prefixes = given.map(|prefixes| prefixes.get().0.clone());
            }
            _ => {
                let known = "max_new, temperature, top_k, top_p, min_p, repetition_penalty, seed, stop, eos, chunk, lookup, \
                             threads, prefixes, capture_dtype, capture_memory, capture_folder";
                let problem = format!("generation has no option {key:?}");
                return Err(error(py, ErrorKind::Input, &problem, Some(&format!("the options are {known}"))));
            }
        }
    }
    generate.sampling = sampling;
    Ok(GenerateSettings { generate, stop, eos })
}

fn parse_capture_dtype(py: Python<'_>, name: &str) -> PyResult<CaptureDtype> {
    match name {
        "f32" => Ok(CaptureDtype::F32),
        "bf16" => Ok(CaptureDtype::Bf16),
        _ => {
            let problem = format!("captures cannot be stored as {name:?}");
            Err(error(py, ErrorKind::Input, &problem, Some("capture_dtype is \"f32\" or \"bf16\"")))
        }
    }
}
