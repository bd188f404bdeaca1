//! Runs and generations: with the interpreter released, and stopped by its signals.

use crate::block::BlockValue;
use crate::errors::{Kind, count, error, from_models, guarded, raised};
use crate::found::{Captured, Found};
use crate::model::Model;
use crate::prefix::Prefixes;
use crate::record::{Kept, Plan};
use pellucid_engine::{self as engine, Finish, GenerateOptions, Interrupt, RunOptions, Sampling};
use pellucid_models::prepare;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a run gave back.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Run {
    pub found: Found,
    pub time: Duration,
}

/// What a generation gave back.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Generation {
    found: Found,
    rows: Vec<engine::Generated>,
    texts: Vec<Option<String>>,
    prefill: Duration,
    decode: Duration,
    reused: Vec<usize>,
}

#[pymethods]
impl Run {
    /// Gives each object that the block saved its result.
    fn hand_out(&self, py: Python<'_>) -> PyResult<()> {
        self.found.hand_out(py)
    }

    /// What a recorded tap captured.
    fn captured(&self, tap: usize) -> Vec<Captured> {
        self.found.captured(tap)
    }

    /// Everything that was captured, in the plan's order.
    fn all(&self) -> Vec<Captured> {
        self.found.all()
    }

    /// Sites that patterns passed over.
    #[getter]
    fn passed_over(&self) -> Vec<String> {
        self.found.passed_over()
    }

    /// Seconds in the engine.
    #[getter]
    fn seconds(&self) -> f64 {
        self.time.as_secs_f64()
    }
}

#[pymethods]
impl Generation {
    /// Gives each object that the block saved its result.
    fn hand_out(&self, py: Python<'_>) -> PyResult<()> {
        self.found.hand_out(py)
    }

    /// What a recorded tap captured.
    fn captured(&self, tap: usize) -> Vec<Captured> {
        self.found.captured(tap)
    }

    /// Sites that patterns passed over.
    #[getter]
    fn passed_over(&self) -> Vec<String> {
        self.found.passed_over()
    }

    /// For each row its new tokens, its text and why it ended.
    #[getter]
    fn rows(&self) -> Vec<(Vec<u32>, Option<String>, &'static str)> {
        let finish = |finish| match finish {
            Finish::Eos => "eos",
            Finish::Length => "length",
            Finish::Stop => "stop",
        };
        let rows = self.rows.iter().zip(&self.texts);
        rows.map(|(row, text)| (row.tokens.clone(), text.clone(), finish(row.finish))).collect()
    }

    /// For each row how many tokens were drafted, how many of them were right, and how many of its prompt were taken over from kept
    /// prefixes.
    #[getter]
    fn saved_work(&self) -> Vec<(usize, usize, usize)> {
        let rows = self.rows.iter().zip(&self.reused);
        rows.map(|(row, &reused)| (row.lookup.drafted, row.lookup.accepted, reused)).collect()
    }

    /// Seconds in the prompts, and in the steps after them.
    #[getter]
    fn seconds(&self) -> (f64, f64) {
        (self.prefill.as_secs_f64(), self.decode.as_secs_f64())
    }
}

/// Runs rows of tokens under a plan, after standing edits.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // what Python hands over, one by one
pub fn run(
    py: Python<'_>,
    model: &Model,
    rows: &Bound<'_, PyList>,
    plan: Py<Plan>,
    edits: &Bound<'_, PyTuple>,
    #[pyo3(from_py_with = count)] chunk: Option<usize>,
    recompute: bool,
    #[pyo3(from_py_with = count)] threads: Option<usize>,
    prefixes: Option<Py<Prefixes>>,
) -> PyResult<Run> {
    let (loaded, rows, edits) = (model.loaded(py)?, tokens(py, rows)?, joined(edits)?);
    let prefixes = prefixes.map(|prefixes| prefixes.get().0.clone());
    let (run, time, before) = calling(py, || {
        let whole = Whole::new(plan.get(), edits, &rows, model)?;
        let options = RunOptions { chunk, recompute, threads, prefixes, interrupt: Some(interrupt()) };
        let started = Instant::now();
        let run = loaded.model.run(&rows, &whole.plan, &options)?;
        Ok((run, started.elapsed(), whole.before))
    })?;
    Ok(Run { found: Found::of_run(run, plan, before, rows.len() == 1), time })
}

/// Continues rows of tokens under a plan, after standing edits; `watch(row, token, text)` hears of each new token.
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
    let (loaded, rows, edits) = (model.loaded(py)?, tokens(py, rows)?, joined(edits)?);
    let mut settings = settings(py, options)?;
    if settings.eos {
        settings.generate.eos = loaded.eos.clone();
    }
    settings.generate.interrupt = Some(interrupt());
    let Settings { generate, stop, .. } = &settings;
    let (generation, before) = calling(py, || {
        let whole = Whole::new(plan.get(), edits, &rows, model)?;
        let generation = loaded.generate(&rows, &whole.plan, generate, stop, &mut |row, token, text| {
            if let Some(watch) = watch.as_ref().filter(|_| !raised::any()) {
                Python::attach(|py| raised::keep_from(watch.call1(py, (row, token, text))));
            }
        })?;
        Ok((generation, whole.before))
    })?;
    let texts = generation.rows.iter().map(|row| loaded.text(&row.tokens, row.finish, stop)).collect();
    let engine::Generation { rows, captures, saved, passed_over, reused, prefill, decode, .. } = generation;
    let found = Found { captures, saved, passed_over, plan, before, one_row: rows.len() == 1, steps: true };
    Ok(Generation { found, rows, texts, prefill, decode, reused })
}

/// For each of a row, or of all rows at once, a shape; none where it depends on a function.
type RowShapes = Vec<(Option<usize>, Option<Vec<usize>>)>;

/// The shapes of what a block would save for rows of tokens, each with the object that saves it.
#[pyfunction]
pub fn scan(
    py: Python<'_>,
    model: &Model,
    rows: &Bound<'_, PyList>,
    plan: &Plan,
    edits: &Bound<'_, PyTuple>,
) -> PyResult<Vec<(Py<BlockValue>, RowShapes)>> {
    let (rows, edits) = (tokens(py, rows)?, joined(edits)?);
    let (shapes, before) = calling(py, || {
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        model.check_lengths(&lengths)?;
        let whole = Whole::new(plan, edits, &rows, model)?;
        Ok((whole.plan.shapes(model.program(), &lengths)?, whole.before))
    })?;
    let of = |kept: Kept| match before.moved(kept) {
        Kept::Value(id) => {
            shapes.saved.iter().filter(|saved| saved.0 == id).map(|(_, row, shape)| (*row, shape.clone())).collect()
        }
        Kept::Capture(tap) => {
            let captures = shapes.captures.iter().filter(|capture| capture.0 == tap);
            captures.map(|(_, row, shape)| (Some(*row), Some(shape.clone()))).collect()
        }
    };
    Ok(plan.saves.iter().map(|save| (save.value.clone_ref(py), of(save.kept))).collect())
}

/// Standing edits and a plan after them, as one.
pub struct Whole<'a> {
    pub plan: Cow<'a, engine::Plan>,
    pub before: Before,
}

/// How much stands before a block's own plan: what its record speaks of moves along.
#[derive(Clone, Copy, Default)]
pub struct Before {
    pub taps: usize,
    pub values: usize,
}

impl Before {
    /// Where something that comes back is in the whole plan.
    pub fn moved(self, kept: Kept) -> Kept {
        match kept {
            Kept::Value(id) => Kept::Value(id.after(self.values)),
            Kept::Capture(tap) => Kept::Capture(tap + self.taps),
        }
    }
}

impl<'a> Whole<'a> {
    pub fn new(
        plan: &'a Plan,
        edits: engine::Plan,
        rows: &[Vec<u32>],
        model: &Model,
    ) -> pellucid_models::Result<Whole<'a>> {
        if edits == engine::Plan::default() {
            return Ok(Whole { plan: Cow::Borrowed(&plan.inner), before: Before::default() });
        }
        // Files and tokens' texts occur in plans that were read, not in what a block records.
        let edits = prepare(edits, Path::new("."), rows, model.optional_tokenizer())?;
        let before = Before { taps: edits.taps.len(), values: edits.values.len() };
        Ok(Whole { plan: Cow::Owned(edits.then(plan.inner.clone())), before })
    }
}

/// Standing edits as one plan.
pub fn joined(edits: &Bound<'_, PyTuple>) -> PyResult<engine::Plan> {
    edits.iter().try_fold(engine::Plan::default(), |all, edit| Ok(all.then(edit.cast::<Plan>()?.get().inner.clone())))
}

/// Does the engine's work with the interpreter released. What Python code raised meanwhile goes before what the engine says.
pub fn calling<T: Send>(py: Python<'_>, work: impl FnOnce() -> pellucid_models::Result<T> + Send) -> PyResult<T> {
    let outcome = guarded(py, work)?;
    match raised::take() {
        Some(exception) => Err(exception),
        None => outcome.map_err(|fault| from_models(py, &fault)),
    }
}

/// Stops the engine when a signal's handler raises (as Ctrl-C does), or when Python code that it called has raised.
pub fn interrupt() -> Interrupt {
    Interrupt(Arc::new(|| {
        Python::attach(|py| raised::keep_from(py.check_signals()));
        raised::any()
    }))
}

pub fn tokens(py: Python<'_>, rows: &Bound<'_, PyList>) -> PyResult<Vec<Vec<u32>>> {
    let of_row = |(row, tokens): (usize, Bound<'_, PyAny>)| {
        tokens.extract().map_err(|fault: PyErr| {
            let problem = format!("row {row} is not a list of token ids: {}", fault.value(py));
            error(py, Kind::Input, &problem, Some("token ids are whole numbers from 0"))
        })
    };
    rows.iter().enumerate().map(of_row).collect()
}

struct Settings {
    generate: GenerateOptions,
    stop: Vec<String>,
    eos: bool,
}

/// How to generate, from keywords.
fn settings(py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<Settings> {
    let (mut generate, mut sampling) = (GenerateOptions::default(), Sampling::default());
    let (mut stop, mut eos) = (Vec::new(), true);
    for (key, value) in options {
        let key: String = key.extract()?;
        let wrong = |fault: PyErr| match fault.is_instance_of::<PyTypeError>(py) {
            true => error(
                py,
                Kind::Input,
                &format!("{key}: {}", fault.value(py)),
                Some("see help(pellucid.Model.generate)"),
            ),
            false => error(py, Kind::Input, &format!("{key} is out of range: {}", fault.value(py)), None),
        };
        match key.as_str() {
            "max_new" => generate.max_new = value.extract().map_err(wrong)?,
            "temperature" => sampling.temperature = value.extract().map_err(wrong)?,
            "top_k" => sampling.top_k = value.extract().map_err(wrong)?,
            "top_p" => sampling.top_p = value.extract().map_err(wrong)?,
            "min_p" => sampling.min_p = value.extract().map_err(wrong)?,
            "repetition_penalty" => sampling.repetition_penalty = value.extract().map_err(wrong)?,
            "seed" => sampling.seed = value.extract().map_err(wrong)?,
            "stop" => stop = value.extract().map_err(wrong)?,
            "eos" => eos = value.extract().map_err(wrong)?,
            "chunk" => generate.chunk = value.extract().map_err(wrong)?,
            "lookup" => generate.lookup = value.extract().map_err(wrong)?,
            "threads" => generate.threads = value.extract().map_err(wrong)?,
            "prefixes" => {
                let given = value.extract::<Option<Py<Prefixes>>>().map_err(|fault| wrong(fault.into()))?;
                generate.prefixes = given.map(|prefixes| prefixes.get().0.clone());
            }
            _ => {
                let known = "max_new, temperature, top_k, top_p, min_p, repetition_penalty, seed, stop, eos, chunk, lookup, \
                             threads, prefixes";
                let problem = format!("generation has no option {key:?}");
                return Err(error(py, Kind::Input, &problem, Some(&format!("the options are {known}"))));
            }
        }
    }
    generate.sampling = sampling;
    Ok(Settings { generate, stop, eos })
}
