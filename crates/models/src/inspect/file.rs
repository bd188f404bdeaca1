//! The report on a file.

use std::path::Path;

use super::opened::OpenedModel;
use super::report::{Format, Report};
use super::{gguf, weights};
use crate::source::{ModelSource, is_safetensors};

/// Describes a file, by its first bytes.
pub(super) fn describe(path: &Path, opened: &OpenedModel, report: &mut Report) {
    report.file_bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    if let Some(ModelSource::Gguf(file)) = opened.source() {
        return gguf::describe(file, opened, report);
    }
    opened.report_error(report);
    if is_safetensors(path) {
        report.format = Format::Safetensors;
        weights::count_file(path, report);
    }
}
