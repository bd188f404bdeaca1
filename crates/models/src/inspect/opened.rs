//! A path opened by the code that loads models.
//!
//! The verdict of a report comes from here: the family, strategy, warnings and attempts of a model
//! that would load, or the error of one that would not. The rest of `inspect` only describes.

use std::path::Path;

use super::report::{Report, Support};
use crate::category::Category;
use crate::config::Config;
use crate::select_family::{PartialModel, SelectedFamily, family_of_type, select_and_keep};
use crate::source::ModelSource;
use crate::{Error, Result};

/// A path as loading sees it.
pub(super) struct OpenedModel {
    /// The selected family, or the error of loading.
    pub(super) selected: Result<SelectedFamily>,
    /// The parts that were read, even if no family was selected.
    pub(super) partial: PartialModel,
    /// Whether the path is an adapter, so that the model is its base merged with it.
    is_adapter: bool,
}

impl OpenedModel {
    pub(super) fn open(path: &Path, assume: Option<&str>) -> OpenedModel {
        let mut partial = PartialModel::default();
        let selected = select_and_keep(Some(path), assume, &mut partial);
        OpenedModel { selected, partial, is_adapter: crate::adapter::is_adapter(path) }
    }

    /// The configuration; `None` for an adapter, where it is that of the base model.
    pub(super) fn config(&self) -> Option<&Config> {
        self.partial.config.as_ref().filter(|_| !self.is_adapter)
    }

    /// The source; `None` for an adapter, where it is the base model.
    pub(super) fn source(&self) -> Option<&ModelSource> {
        self.partial.source.as_ref().filter(|_| !self.is_adapter)
    }

    /// Adds the error of loading to the report, with the level of support. Nothing if a family was
    /// selected.
    pub(super) fn report_error(&self, report: &mut Report) {
        let Err(error) = &self.selected else { return };
        let own = self.config().and_then(|config| config.model_type().ok());
        report.support = Support::after_error(error.cause(), own, report.category);
        report.refuse_for(error.cause());
        if let Error::Load { attempts, .. } = error {
            report.strategies = Some(attempts.clone());
        }
    }
}

impl Support {
    /// The level of support of a model that does not load, by its type and category. An invalid
    /// file of a native family is damaged; anything else is not supported.
    pub(super) fn after_error(error: &Error, model_type: Option<&str>, category: Category) -> Support {
        let is_native = family_of_type(model_type, None).is_some();
        match category {
            Category::Unknown => Support::Unsupported,
            _ if is_native && !matches!(error, Error::Unsupported { .. }) => Support::Native,
            _ => Support::InspectOnly,
        }
    }
}
