//! Checks whether a model would load and estimates its memory, with the code that loads models.

use std::path::PathBuf;
use std::sync::Arc;

use pellucid_engine::architecture::Architecture;
use pellucid_engine::{Program, WeightKind, WeightSpec};
use pellucid_kernels::encoding::Encoding;
use serde_json::Value;

use super::opened::OpenedModel;
use super::report::{Format, Memory, Report, Support};
use super::{card, shape, tokenizer, weights};
use crate::Error;
use crate::adapter::Adapter;
use crate::attempt::Strategy;
use crate::category::Category;
use crate::families::Family;
use crate::gguf::RowOrder;
use crate::listing::Listing;
use crate::load::{self, WeightSources};
use crate::names::{Names, WeightSource};
use crate::select_family::{PartialModel, SelectedFamily, family_of_type};
use crate::source::ModelSource;
use crate::tensors::Tensors;

/// Reports a model whose family is selected: its sizes, tokenizer, weights and memory. Checks them
/// in the order in which loading does, so that the first problem is the error of loading. `listing`
/// is the directory of the source, if it is one; `adapters` are merged into the model.
pub(super) fn check(selected: &SelectedFamily, listing: Option<&Listing>, adapters: &[PathBuf], report: &mut Report) {
    let Family { architecture, names } = &selected.family;
    report.support = Support::Native;
    report.family = Some(architecture.family.clone());
    report.strategy = Some(selected.strategy);
    report.warnings = selected.warnings.clone();
    if selected.strategy == Strategy::Mapped {
        report.registered_as = Some(architecture.family.clone());
    }
    report_sizes(architecture, report);
    match (listing, &selected.source) {
        (_, ModelSource::Gguf(file)) => tokenizer::inspect_gguf(file, report),
        (Some(listing), _) => tokenizer::inspect_directory(listing, report),
        (None, _) => {}
    }
    let uncounted = uncounted(architecture, names);
    let tensors = selected.tensors();
    let counted = tensors.as_ref().ok().map(Arc::as_ref);
    if let Some(listing) = listing {
        weights::count_model(listing, counted, &uncounted, report);
    }
    let adapters = Adapter::open_all(&selected.adapters(adapters));
    let found = match (&adapters, tensors.as_deref()) {
        (Ok(adapters), Ok(tensors)) => {
            load::find_weights(&selected.family, tensors, adapters, selected.source.origin())
                .map_err(|error| refuse_weights(&error, true, report))
                .ok()
        }
        (Err(error), _) | (_, Err(error)) => {
            // The weights of a directory can be converted; a GGUF file has no other form.
            refuse_weights(error, matches!(selected.source, ModelSource::Gguf(_)), report);
            None
        }
    };
    report.memory = memory_of(selected, counted, found.as_ref(), report);
    let variants = found.as_ref().map_or(&[][..], |found| &found.name_variants);
    let result = report.reason.clone().map_or(Ok(variants), Err);
    report.strategies = Some(selected.attempts_after(result));
}

/// Reports an error about the weights. An unsupported format is no fault of this copy, if it is
/// `inherent` to the model.
fn refuse_weights(error: &Error, inherent: bool, report: &mut Report) {
    if inherent && matches!(error, Error::Unsupported { .. }) {
        report.support = Support::InspectOnly;
    }
    report.refuse_for(error);
}

/// Reports the source of a model alone; for an adapter that is its base model, merged with it.
pub(super) fn check_source(selected: &SelectedFamily, adapters: &[PathBuf]) -> Report {
    let mut report = Report::new(selected.source.origin(), Format::Other);
    let listing = selected.source.path().and_then(|path| Listing::read(path).ok());
    check(selected, listing.as_ref(), adapters, &mut report);
    report
}

/// Reports a model without a native family: the weights, and the memory by their headers.
pub(super) fn describe(opened: &OpenedModel, config: &Value, listing: &Listing, report: &mut Report) {
    let model_type = config.get("model_type").and_then(Value::as_str);
    let by_type = family_of_type(model_type, None);
    // Encoders and ASR models have no similar native family.
    if by_type.is_none() && report.category == Category::Transformers {
        // The problem names the one whose tensors are nearest, if they could be compared.
        let compared = opened.partial.nearest.map(str::to_owned);
        report.nearest = compared.or_else(|| shape::nearest(config, model_type));
    }
    report.registered_as =
        by_type.filter(|(strategy, _)| *strategy == Strategy::Mapped).map(|(_, family)| family.to_owned());
    let tied = config.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false);
    let uncounted = |name: &str| (tied && name.ends_with("lm_head.weight")) || name.ends_with(".rotary_emb.inv_freq");
    let PartialModel { source, config, tensors, .. } = &opened.partial;
    let tensors = tensors.clone().map(Ok).or_else(|| Some(source.as_ref()?.tensors(config.as_ref()?).map(Arc::new)));
    let counted = tensors.as_ref().and_then(|tensors| tensors.as_deref().ok());
    weights::count_model(listing, counted, &uncounted, report);
    if let Some(Err(error)) = &tensors
        && report.reason.as_deref() != Some(error.to_string().as_str())
    {
        report.refuse_for(error);
    }
    report.memory = estimate(report);
}

/// Reports the sizes of the architecture, including defaults that config.json omits.
fn report_sizes(architecture: &Architecture, report: &mut Report) {
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

/// A predicate for tensors that are not parameters: a copy of a tied head, masks, cached
/// frequencies.
fn uncounted(architecture: &Architecture, names: &Names) -> impl Fn(&str) -> bool + use<> {
    let heads = names.prefixes.iter().flat_map(|prefix| names.sources("head", prefix));
    let heads: Vec<String> = heads.filter(|_| architecture.head.tied).map(|source| source.tensor).collect();
    let ignored = names.ignored_suffixes.clone();
    move |name| heads.iter().any(|head| head == name) || ignored.iter().any(|suffix| name.ends_with(suffix))
}

/// The memory of a native model. Without the stored tensors, its weights count as f32.
fn memory_of(
    selected: &SelectedFamily,
    tensors: Option<&Tensors>,
    found: Option<&WeightSources>,
    report: &Report,
) -> Option<Memory> {
    let built = match found {
        Some(_) => None,
        None => Some(Program::new(selected.family.architecture.clone()).ok()?),
    };
    let program = found.map(|found| &found.program).or(built.as_ref())?;
    let sources = found.map_or(&[][..], |found| &found.sources);
    let (mut as_stored, mut f32, mut bf16) = (0u64, 0u64, 0u64);
    for (index, spec) in program.weights().iter().enumerate() {
        let elements = spec.shape.iter().fold(1u64, |product, size| product.saturating_mul(*size as u64));
        let is_vector = spec.kind == WeightKind::Vector;
        let stored = tensors.and_then(|tensors| stored_bytes(spec, sources.get(index)?, tensors));
        let (four, two) = (elements.saturating_mul(4), elements.saturating_mul(2));
        f32 = f32.saturating_add(four);
        bf16 = bf16.saturating_add(if is_vector { four } else { two });
        as_stored = as_stored.saturating_add(if is_vector { four } else { stored.unwrap_or(four) });
    }
    let layers = program.architecture().layers.iter().filter_map(|layer| layer.attention.as_ref());
    // The KV cache is f32 and keeps all tokens, also in layers with a sliding window.
    let kv = layers.map(|a| (a.kv_heads as u64).saturating_mul((a.head_dim + a.value_dim) as u64).saturating_mul(4));
    Some(memory(as_stored, f32, bf16, Some(kv.fold(0, u64::saturating_add)), report.context))
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
