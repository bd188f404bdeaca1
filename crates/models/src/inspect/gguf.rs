//! The report on a GGUF file, from its header.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;

use super::report::{Category, Format, Problem, Quantization, Report, Support};
use super::{category, native, sae, shape, tokenizer, weights};
use crate::Error;
use crate::gguf::{self, GgufFile, Value};
use crate::tensors::Tensors;

/// Describes a GGUF file.
pub(super) fn inspect(path: &Path, assume: Option<&str>, report: &mut Report) {
    report.format = Format::Gguf;
    report.shards.count = 1;
    let file = match GgufFile::open(path) {
        Ok(file) => file,
        Err(error) => return report.refuse_for(&error),
    };
    count(&file, report);
    model_card(&file, report);
    report.file_bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let text = |key: &str| file.text(key).ok().flatten();
    let Some(architecture) = text("general.architecture") else {
        return report.refuse("general.architecture is missing, so this may not be a model", "convert the model again");
    };
    report.category = category::of_gguf(text("general.type"), architecture);
    report.model_type = Some(architecture.to_owned());
    report.support = Support::InspectOnly;
    match report.category {
        Category::Transformers => model(path, file, assume, report),
        Category::Adapter => report
            .refuse("an adapter is not a model by itself", "merge it into its base model with `llama-export-lora`"),
        Category::Sae => {
            let description = sae::describe_gguf(&file);
            report.base_model.extend(description.base_models.clone());
            report.sae = Some(description);
            report.refuse("control vectors are not a model by themselves", "load the model that they were made for");
        }
        other => report.refuse(
            format!("a GGUF file of the category {} does not run here", other.name()),
            "give the GGUF file of a language model",
        ),
    }
}

fn model(path: &Path, file: GgufFile, assume: Option<&str>, report: &mut Report) {
    let config = match gguf::hf_config(&file) {
        Ok(config) => Arc::new(config),
        Err(error) => {
            report.memory = native::estimate(report);
            tokenizer::inspect_gguf(&file, report);
            // An unsupported architecture is the main reason, so it comes first.
            let remedy = error.remedy().cloned().unwrap_or_else(|| "".into());
            report.problems.insert(0, Problem { what: error.to_string(), remedy });
            report.reason = Some(error.to_string());
            return;
        }
    };
    report.model_type = config.get("model_type").and_then(Json::as_str).map(str::to_owned);
    report.architecture = shape::class(&config).map(str::to_owned);
    let native = native::read(&config, path, assume, report);
    let problem_index = report.problems.len().saturating_sub(1);
    tokenizer::inspect_gguf(&file, report);
    let Some(native) = native else {
        native::suggest_family(&config, path, assume, Tensors::from_gguf(file).ok().as_ref(), problem_index, report);
        report.memory = native::estimate(report);
        return;
    };
    match Tensors::from_gguf(file) {
        Ok(tensors) => native.check(Some(&tensors), path, report),
        Err(error) => {
            report.support =
                if matches!(error, Error::Unsupported { .. }) { Support::InspectOnly } else { Support::Native };
            report.refuse_for(&error);
            native.check(None, path, report);
        }
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
