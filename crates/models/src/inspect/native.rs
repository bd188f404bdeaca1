//! Whether a model would load, and what it would take: asked of the functions that load models.

use std::path::Path;
use std::sync::Arc;

use pellucid_engine::{Program, WeightKind, WeightSpec};
use pellucid_kernels::encoding::Encoding;
use serde_json::Value;

use super::card;
use super::report::{Category, Memory, Report, Support};
use super::shape;
use crate::Error;
use crate::attempt::Strategy;
use crate::compare;
use crate::config::Config;
use crate::families;
use crate::gguf::RowOrder;
use crate::names::{Names, Source};
use crate::select_family::{Fit, check_assumption, describe, family_of_type, find_fit, find_fit_as, read_by_type};
use crate::tensors::Tensors;

/// A model whose configuration a native family understands.
pub(super) struct Native {
    program: Program,
    names: Names,
}

/// Reads a configuration by its family, and writes into the report what the family makes of it, or why none does.
pub(super) fn read(value: &Arc<Value>, origin: &Path, assume: Option<&str>, report: &mut Report) -> Option<Native> {
    shape::read(value, report);
    let model_type = value.get("model_type").and_then(Value::as_str);
    let by_type = family_of_type(model_type, None);
    let is_native = by_type.is_some();
    if let Err(error) = check_assumption(model_type, assume) {
        report.refuse_for(&error);
    }
    // What a text encoder or a Whisper is like, no native family tells.
    if !is_native && report.category == Category::Transformers {
        report.nearest = shape::nearest(value, model_type);
    }
    let mapped = by_type.filter(|(strategy, _)| *strategy == Strategy::Mapped);
    report.registered_as = mapped.map(|(_, family)| family.to_owned());
    let built = Config::new(Arc::clone(value), origin)
        .and_then(|config| read_by_type(&config))
        .and_then(|family| Ok((Program::new(family.architecture)?, family.names)));
    match built {
        Ok((program, names)) => {
            report.support = Support::Native;
            sizes(&program, report);
            Some(Native { program, names })
        }
        Err(error) => {
            // A damaged configuration of a native family is a fault of this copy; anything else, a limit of this build.
            let damaged = is_native && !matches!(error, Error::Unsupported { .. });
            report.support = if damaged { Support::Native } else { Support::InspectOnly };
            if !is_native {
                explain(model_type, report);
            } else {
                report.refuse_for(&error);
            }
            None
        }
    }
}

/// Says why a model of another family does not run.
fn explain(model_type: Option<&str>, report: &mut Report) {
    let native =
        || format!("use a model of one of the native types: {}", families::native().collect::<Vec<_>>().join(", "));
    let remedy = match report.category {
        Category::Transformers => native(),
        category => format!("use it where {} things run; Pellucid runs language models", category.name()),
    };
    match (model_type, report.custom_code.first()) {
        (Some(name), Some(file)) => {
            let what =
                format!("models of type `{name}` do not run natively, and its own code ({file}) is never executed");
            report.refuse(what, remedy);
        }
        (Some(name), None) => {
            report.refuse(format!("models of type `{name}` do not run natively in this build"), remedy)
        }
        (None, _) => {
            report.refuse("config.json does not say which family this is (no `model_type`)", "get config.json anew")
        }
    }
}

/// Says in the problem at `place`, which is that the type is not native, whether a native family fits all the same.
pub(super) fn offer(
    value: &Arc<Value>,
    origin: &Path,
    assume: Option<&str>,
    tensors: Option<&Tensors>,
    place: usize,
    report: &mut Report,
) {
    let own = report.model_type.as_deref();
    let is_native = || family_of_type(own, None).is_some();
    let is_text = matches!(report.category, Category::Transformers | Category::Unknown);
    let (Some(tensors), Ok(config), true) = (tensors, Config::new(Arc::clone(value), origin), is_text && !is_native())
    else {
        return;
    };
    let fit = match assume {
        None => find_fit(&config, tensors),
        Some(family) => find_fit_as(&config, family, tensors),
    };
    let (more, remedy) = describe(&fit);
    if let Fit::Fits(suggestion) = fit {
        report.assume = Some(suggestion);
    }
    if let Some(problem) = report.problems.get_mut(place) {
        problem.what += &more;
        problem.remedy = remedy.unwrap_or_else(|| problem.remedy.clone());
        if place == 0 {
            report.reason = Some(problem.what.clone());
        }
    }
}

/// The architecture's own sizes are what would run, defaults and all.
fn sizes(program: &Program, report: &mut Report) {
    let architecture = program.architecture();
    report.layers = Some(architecture.layers.len());
    report.width = Some(architecture.width);
    report.vocab = Some(architecture.vocab);
    report.context = architecture.context.or(report.context);
    if let Some(attention) = architecture.layers.iter().find_map(|layer| layer.attention.as_ref()) {
        report.heads = Some(attention.heads);
        report.kv_heads = Some(attention.kv_heads);
        report.head_dim = Some(attention.head_dim);
    }
}

/// The tensors as loading sees them: quantised layers as ordinary ones.
pub(super) fn dequantised(tensors: Tensors, config: &Arc<Value>, dir: &Path) -> crate::Result<Tensors> {
    let Tensors::Checkpoint(checkpoint) = tensors else { return Ok(tensors) };
    Tensors::from_checkpoint(checkpoint, &Config::new(Arc::clone(config), &dir.join("config.json"))?, dir)
}

impl Native {
    /// A test for the tensors that are no parameters: a tied head stored once more, masks, cached frequencies.
    pub(super) fn uncounted(&self) -> impl Fn(&str) -> bool + use<> {
        let (names, tied) = (&self.names, self.program.architecture().head.tied);
        let heads = names.prefixes.iter().flat_map(|prefix| names.sources("head", prefix));
        let heads: Vec<String> = heads.filter(|_| tied).map(|source| source.tensor).collect();
        let ignored = names.ignored.clone();
        move |name| heads.iter().any(|head| head == name) || ignored.iter().any(|end| name.ends_with(end))
    }

    /// Checks the weights as loading would, all but their numbers, and says what they would take in memory.
    pub(super) fn check(&self, tensors: Option<&Tensors>, origin: &Path, report: &mut Report) {
        let found = tensors.and_then(|tensors| match compare::find(&self.program, &self.names, tensors, origin) {
            Ok((found, _)) => Some((tensors, found)),
            Err(error) => {
                report.refuse_for(&error);
                None
            }
        });
        if let Some((tensors, found)) = &found {
            check_formats(tensors, found, report);
        }
        report.memory = Some(self.memory(found.as_ref(), report));
    }

    fn memory(&self, found: Option<&(&Tensors, Vec<Source>)>, report: &Report) -> Memory {
        let (mut as_stored, mut f32, mut bf16) = (0u64, 0u64, 0u64);
        for (index, spec) in self.program.weights().iter().enumerate() {
            let elements = spec.shape.iter().fold(1u64, |product, size| product.saturating_mul(*size as u64));
            let is_vector = spec.kind == WeightKind::Vector;
            let stored = found.and_then(|(tensors, sources)| stored_bytes(spec, sources.get(index)?, tensors));
            let (four, two) = (elements.saturating_mul(4), elements.saturating_mul(2));
            f32 = f32.saturating_add(four);
            bf16 = bf16.saturating_add(if is_vector { four } else { two });
            as_stored = as_stored.saturating_add(if is_vector { four } else { stored.unwrap_or(four) });
        }
        let layers = self.program.architecture().layers.iter().filter_map(|layer| layer.attention.as_ref());
        // Keys and values are kept in f32, and all of them, whatever a layer's window.
        let kv =
            layers.map(|a| (a.kv_heads as u64).saturating_mul((a.head_dim + a.value_dim) as u64).saturating_mul(4));
        memory(as_stored, f32, bf16, Some(kv.fold(0, u64::saturating_add)), report.context)
    }
}

/// The memory of a model that does not run here, as far as its headers tell.
pub(super) fn estimate(report: &Report) -> Option<Memory> {
    if report.parameters == 0 {
        return None;
    }
    let kv = (|| {
        Some(
            [report.layers?, report.kv_heads?, report.head_dim?]
                .iter()
                .fold(8u64, |n, size| n.saturating_mul(*size as u64)),
        )
    })();
    let (f32, bf16) = (report.parameters.saturating_mul(4), report.parameters.saturating_mul(2));
    Some(memory(report.file_bytes, f32, bf16, kv, report.context))
}

fn memory(as_stored: u64, f32: u64, bf16: u64, kv_per_token: Option<u64>, context: Option<usize>) -> Memory {
    let bytes = card::bytes;
    let kv_at_context = kv_per_token.zip(context).map(|(token, context)| token.saturating_mul(context as u64));
    let mut statement =
        format!("about {} of weights as stored ({} in f32, {} in bf16)", bytes(as_stored), bytes(f32), bytes(bf16));
    if let Some(token) = kv_per_token {
        statement += &format!(", and {} for each token of each sequence", bytes(token));
    }
    if let (Some(whole), Some(context)) = (kv_at_context, context) {
        statement += &format!(": {} for {context} tokens", bytes(whole));
    }
    // f16 takes what bf16 takes.
    Memory { as_stored, f32, bf16, f16: bf16, kv_per_token, kv_at_context, statement }
}

/// What a matrix takes when it is kept as stored: quantised rows stay in their file, plain floats keep their width.
fn stored_bytes(spec: &WeightSpec, source: &Source, tensors: &Tensors) -> Option<u64> {
    let stored = tensors.get(&source.tensor)?;
    let encoding = stored.made.as_ref().map(|made| made.kept()).or(stored.encoding.ok())?;
    let (rows, cols) = (spec.shape.first().copied()?, spec.shape.get(1).copied().unwrap_or(1));
    let across = source.transposed && stored.order != RowOrder::Transposed;
    let row = match encoding {
        Encoding::BF16 | Encoding::F16 => cols.checked_mul(2)?,
        quantised if quantised.is_quantised() && !across => quantised.bytes_for(cols)?,
        _ => cols.checked_mul(4)?,
    };
    (row as u64).checked_mul(rows as u64)
}

/// Formats that nothing can compute with stop the loading at the first such tensor; all are named here.
fn check_formats(tensors: &Tensors, found: &[Source], report: &mut Report) {
    let format =
        |source: &Source| tensors.get(&source.tensor)?.encoding.err().map(|format| (format, source.tensor.clone()));
    let bad: Vec<(&str, String)> = found.iter().filter_map(format).collect();
    let Some((format, first)) = bad.first() else { return };
    let what =
        format!("{} tensors are stored in a format that nothing here computes with ({first} as {format})", bad.len());
    report.support = Support::InspectOnly;
    report.refuse(what, "convert the weights to F32, F16 or BF16");
}
