//! The report on a directory.

use serde_json::Value;

use super::opened::OpenedModel;
use super::report::{Format, Report};
use super::{gguf, kinds, model_card, native, parts, shape, tokenizer, weights};
use crate::category::{self, Category, ConfigKeys, custom_code};
use crate::listing::Listing;
use crate::source::ModelSource;

/// Describes a directory.
pub(super) fn describe(listing: &Listing, opened: &OpenedModel, report: &mut Report) {
    // A directory may be a single GGUF file.
    if let Some(ModelSource::Gguf(file)) = opened.source() {
        return gguf::describe(file, opened, report);
    }
    report.format = Format::Directory;
    let config = opened.config();
    let keys = config.and_then(|config| ConfigKeys::from_value(config.value(), config.origin()).ok());
    let value = config.map(|config| config.value().as_ref());
    report.category = category::of_directory(listing, keys.as_ref());
    report.custom_code = custom_code(listing, value);
    model_card::read(listing, report);
    report.modalities.omni = keys.as_ref().is_some_and(category::is_omni);
    match report.category {
        Category::Adapter => return kinds::adapter(listing, opened, report),
        Category::Sae => kinds::sae(listing, report),
        Category::Diffusers => kinds::diffusers(listing, value, report),
        _ => {}
    }
    opened.report_error(report);
    let is_model = !matches!(report.category, Category::Sae | Category::Diffusers | Category::Unknown);
    match (&opened.selected, value) {
        (Ok(selected), Some(value)) => {
            describe_config(value, report);
            native::check(selected, Some(listing), &[], report);
            parts::finish(value, report);
        }
        (Err(_), Some(value)) if is_model => {
            describe_config(value, report);
            native::describe(opened, value, listing, report);
            parts::finish(value, report);
            tokenizer::inspect_directory(listing, report);
        }
        _ => weights::count_all(listing, report),
    }
}

fn describe_config(config: &Value, report: &mut Report) {
    shape::read_names(config, report);
    parts::read(config, report);
    report.quantization = shape::quantization(config);
    report.dtype = shape::dtype(config);
    shape::read(config, report);
}
