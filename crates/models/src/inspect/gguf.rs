//! The report on a GGUF file, from its header.

use super::opened::OpenedModel;
use super::report::{Format, Quantization, Report};
use super::{native, shape, tokenizer, weights};
use crate::category::{self, Category, sae};
use crate::gguf::{self, GgufFile, Value};

/// Describes a GGUF file.
pub(super) fn describe(file: &GgufFile, opened: &OpenedModel, report: &mut Report) {
    report.format = Format::Gguf;
    report.shards.count = 1;
    count(file, report);
    model_card(file, report);
    report.file_bytes = std::fs::metadata(file.path()).map_or(0, |metadata| metadata.len());
    let text = |key: &str| file.text(key).ok().flatten();
    if let Some(architecture) = text("general.architecture") {
        report.category = category::of_gguf(text("general.type"), architecture);
        report.model_type = Some(architecture.to_owned());
    }
    if report.category == Category::Sae {
        let description = sae::describe_gguf(file);
        report.base_model.extend(description.base_models.clone());
        report.sae = Some(description);
    }
    opened.report_error(report);
    if let Some(config) = opened.config() {
        shape::read_names(config.value(), report);
        shape::read(config.value(), report);
    }
    match &opened.selected {
        Ok(selected) => native::check(selected, None, &[], report),
        Err(_) if report.category == Category::Transformers => {
            tokenizer::inspect_gguf(file, report);
            report.memory = native::estimate(report);
        }
        Err(_) => {}
    }
}

fn count(file: &GgufFile, report: &mut Report) {
    let ignored = gguf::ignored(file);
    report.tensors = file.tensors().len();
    let mut types: Vec<(String, u64)> = Vec::new();
    for tensor in file.tensors().iter().filter(|tensor| !ignored.contains(&tensor.name.as_str())) {
        let elements = tensor.shape.iter().fold(1u64, |product, size| product.saturating_mul(*size as u64));
        let name = tensor.encoding.to_string();
        weights::count(report, &tensor.name, &name, elements);
        if tensor.encoding.is_quantized() {
            match types.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum = sum.saturating_add(elements),
                None => types.push((name, elements)),
            }
        }
    }
    types.sort_by_key(|(_, elements)| std::cmp::Reverse(*elements));
    report.quantization = (!types.is_empty()).then(|| Quantization {
        method: "gguf".into(),
        bits: None,
        types: types.into_iter().map(|(name, _)| name).collect(),
    });
}

/// The model-card metadata (license, base models) that the converter stored.
fn model_card(file: &GgufFile, report: &mut Report) {
    let text = |key: &str| match file.value(key) {
        Some(Value::Text(text)) if !text.is_empty() => Some(text.clone()),
        _ => None,
    };
    report.license = text("general.license.name").or_else(|| text("general.license"));
    // Limit of base models.
    report.base_model = (0..16).map_while(|i| text(&format!("general.base_model.{i}.name"))).collect();
}
