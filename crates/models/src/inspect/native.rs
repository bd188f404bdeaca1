//! Checks whether a model would load and estimates its memory, with the code that loads models.

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
use crate::names::{Names, WeightSource};
use crate::select_family::{Fit, check_assumption, describe, family_of_type, find_fit, find_fit_as, read_by_type};
use crate::tensors::Tensors;

/// A model whose configuration a native family accepts.
pub(super) struct NativeModel {
    program: Program,
    names: Names,
}

/// Builds the program for a configuration by its native family and reports the sizes, or the reason
/// why there is none.
pub(super) fn read(
    value: &Arc<Value>,
    origin: &Path,
    assume: Option<&str>,
    report: &mut Report,
) -> Option<NativeModel> {
    shape::read(value, report);
    let model_type = value.get("model_type").and_then(Value::as_str);
    let by_type = family_of_type(model_type, None);
    let is_native = by_type.is_some();
    if let Err(error) = check_assumption(model_type, assume) {
        report.refuse_for(&error);
    }
    // Encoders and ASR models have no similar native family.
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
            report_sizes(&program, report);
            Some(NativeModel { program, names })
        }
        Err(error) => {
            // An invalid configuration of a native family is a damaged file; anything else is not
            // supported.
            let damaged = is_native && !matches!(error, Error::Unsupported { .. });
            report.support = if damaged { Support::Native } else { Support::InspectOnly };
            if !is_native {
                refuse_type(model_type, report);
            } else {
                report.refuse_for(&error);
            }
            None
        }
    }
}

/// Reports why a model of a non-native type does not run.
fn refuse_type(model_type: Option<&str>, report: &mut Report) {
    let native =
        || format!("use a model of one of the native types: {}", families::native().collect::<Vec<_>>().join(", "));
    let remedy = match report.category {
        Category::Transformers => native(),
        category => format!("Pellucid runs language models; use another program for the category {}", category.name()),
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
        (None, _) => report
            .refuse("config.json does not name the model's family (no `model_type`)", "download config.json again"),
    }
}

/// Extends the problem at `problem_index`, which is that the type is not native, with the native
/// family that fits the model, if any.
pub(super) fn suggest_family(
    value: &Arc<Value>,
    origin: &Path,
    assume: Option<&str>,
    tensors: Option<&Tensors>,
    problem_index: usize,
    report: &mut Report,
) {
    let model_type = report.model_type.as_deref();
    let is_native = || family_of_type(model_type, None).is_some();
    let is_text = matches!(report.category, Category::Transformers | Category::Unknown);
    let (Some(tensors), Ok(config), true) = (tensors, Config::new(Arc::clone(value), origin), is_text && !is_native())
    else {
        return;
    };
    let fit = match assume {
        None => find_fit(&config, tensors),
        Some(family) => find_fit_as(&config, family, tensors),
    };
    let (suffix, remedy) = describe(&fit);
    if let Fit::Fits(suggestion) = fit {
        report.assume = Some(suggestion);
    }
    if let Some(problem) = report.problems.get_mut(problem_index) {
        problem.what += &suffix;
        problem.remedy = remedy.unwrap_or_else(|| problem.remedy.clone());
        if problem_index == 0 {
            report.reason = Some(problem.what.clone());
        }
    }
}

/// Reports the sizes of the architecture, including defaults that config.json omits.
fn report_sizes(program: &Program, report: &mut Report) {
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

/// Presents quantized layers as f32 tensors, as loading does.
pub(super) fn dequantize(tensors: Tensors, config: &Arc<Value>, dir: &Path) -> crate::Result<Tensors> {
    let Tensors::Checkpoint(checkpoint) = tensors else { return Ok(tensors) };
    Tensors::from_checkpoint(checkpoint, &Config::new(Arc::clone(config), &dir.join("config.json"))?, dir)
}

impl NativeModel {
    /// A predicate for tensors that are not parameters: a copy of a tied head, masks, cached
    /// frequencies.
    pub(super) fn uncounted(&self) -> impl Fn(&str) -> bool + use<> {
        let (names, tied) = (&self.names, self.program.architecture().head.tied);
        let heads = names.prefixes.iter().flat_map(|prefix| names.sources("head", prefix));
        let heads: Vec<String> = heads.filter(|_| tied).map(|source| source.tensor).collect();
        let ignored = names.ignored_suffixes.clone();
        move |name| heads.iter().any(|head| head == name) || ignored.iter().any(|suffix| name.ends_with(suffix))
    }

    /// Checks the weights as loading does, except their values, and reports the memory they need.
    pub(super) fn check(&self, tensors: Option<&Tensors>, origin: &Path, report: &mut Report) {
        let found =
            tensors.and_then(|tensors| match compare::find_sources(&self.program, &self.names, tensors, origin) {
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

    fn memory(&self, found: Option<&(&Tensors, Vec<WeightSource>)>, report: &Report) -> Memory {
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
        // The KV cache is f32 and keeps all tokens, also in layers with a sliding window.
        let kv =
            layers.map(|a| (a.kv_heads as u64).saturating_mul((a.head_dim + a.value_dim) as u64).saturating_mul(4));
        memory(as_stored, f32, bf16, Some(kv.fold(0, u64::saturating_add)), report.context)
    }
}

/// Estimates the memory of a model that is not native, from the tensor headers.
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
        statement += &format!(", and a KV cache of {} per token and sequence", bytes(token));
    }
    if let (Some(whole), Some(context)) = (kv_at_context, context) {
        statement += &format!(": {} for {context} tokens", bytes(whole));
    }
    // f16 and bf16 have the same size.
    Memory { as_stored, f32, bf16, f16: bf16, kv_per_token, kv_at_context, statement }
}

/// Bytes of a matrix loaded as stored: quantized blocks and 16-bit floats keep their size.
fn stored_bytes(spec: &WeightSpec, source: &WeightSource, tensors: &Tensors) -> Option<u64> {
    let stored = tensors.get(&source.tensor)?;
    let encoding = stored.dequantized.as_ref().map(|tensor| tensor.memory_encoding()).or(stored.encoding.ok())?;
    let (rows, cols) = (spec.shape.first().copied()?, spec.shape.get(1).copied().unwrap_or(1));
    let is_transposed = source.transposed && stored.order != RowOrder::Transposed;
    let row = match encoding {
        Encoding::BF16 | Encoding::F16 => cols.checked_mul(2)?,
        quantized if quantized.is_quantized() && !is_transposed => quantized.bytes_for(cols)?,
        _ => cols.checked_mul(4)?,
    };
    (row as u64).checked_mul(rows as u64)
}

/// Reports the tensors whose dtype no kernel supports; loading stops at the first of them.
fn check_formats(tensors: &Tensors, found: &[WeightSource], report: &mut Report) {
    let format = |source: &WeightSource| {
        tensors.get(&source.tensor)?.encoding.err().map(|format| (format, source.tensor.clone()))
    };
    let bad: Vec<(&str, String)> = found.iter().filter_map(format).collect();
    let Some((format, first)) = bad.first() else { return };
    let what = format!("{} tensors have an unsupported dtype ({first} is {format})", bad.len());
    report.support = Support::InspectOnly;
    report.refuse(what, "convert the weights to F32, F16 or BF16");
}
