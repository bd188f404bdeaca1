//! The directory or file of a query, read as far as the query needs.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::answers::SupportCheck;
use super::report::{Format, Report, Support};
use super::{shape, weights};
use crate::category::{self, Category, ConfigKeys, Presence, sae};
use crate::config::Config;
use crate::families::Family;
use crate::gguf::{self, GgufFile};
use crate::listing::Listing;
use crate::select_family::{read_by_type, select_family};
use crate::source::{ModelSource, PathKind, UnknownType, explain_directory};
use crate::{Error, Result, families, header, json};

/// A directory or file that is queried.
pub(super) struct Target {
    pub(super) contents: TargetContents,
    /// The identifying keys of the configuration.
    pub(super) keys: Option<ConfigKeys>,
    /// The full configuration; `None` with `ConfigDepth::KeysOnly`, or if it is missing or invalid.
    config: Option<Arc<Value>>,
    /// Why the configuration or the file cannot be read.
    fault: Option<Error>,
}

/// How much of the configuration a query needs.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ConfigDepth {
    /// The identifying keys.
    KeysOnly,
    /// All of it, to build a family.
    Full,
}

pub(super) enum TargetContents {
    Directory(Listing),
    Gguf(Arc<GgufFile>),
    Nothing,
}

impl Target {
    pub(super) fn read(path: &Path, depth: ConfigDepth) -> Target {
        let without_config =
            |contents: TargetContents, fault: Option<Error>| Target { contents, keys: None, config: None, fault };
        let listing = match Listing::read(path) {
            Ok(listing) => listing,
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                return match ModelSource::open(Some(path)) {
                    Ok(ModelSource::Gguf(file)) => without_config(TargetContents::Gguf(file), None),
                    Ok(_) => without_config(TargetContents::Nothing, None),
                    Err(error) => without_config(TargetContents::Nothing, Some(error)),
                };
            }
            Err(error) => return without_config(TargetContents::Nothing, Some(Error::io(path)(error))),
        };
        let ((keys, config), fault) = match configuration(&listing, depth) {
            Ok(read) => (read, None),
            Err(error) => ((None, None), Some(error)),
        };
        // A directory may be a single GGUF file.
        if keys.is_none()
            && fault.is_none()
            && let PathKind::Gguf(file) = PathKind::of_listing(&listing)
        {
            return match GgufFile::open(file) {
                Ok(file) => without_config(TargetContents::Gguf(Arc::new(file)), None),
                Err(error) => without_config(TargetContents::Directory(listing), Some(error)),
            };
        }
        Target { contents: TargetContents::Directory(listing), keys, config, fault }
    }

    pub(super) fn category(&self) -> Category {
        match &self.contents {
            TargetContents::Directory(listing) => category::of_directory(listing, self.keys.as_ref()),
            TargetContents::Gguf(file) => {
                let kind = file.text("general.type").ok().flatten();
                file.architecture().map_or(Category::Unknown, |name| category::of_gguf(kind, name))
            }
            TargetContents::Nothing => Category::Unknown,
        }
    }

    /// The quick report: everything that file names, the configuration and a GGUF header say.
    pub(super) fn report(&self, path: &Path) -> Report {
        let format = match self.contents {
            TargetContents::Directory(_) => Format::Directory,
            TargetContents::Gguf(_) => Format::Gguf,
            TargetContents::Nothing => Format::Other,
        };
        let mut report = Report::new(path, format);
        report.category = self.category();
        if let Some(keys) = &self.keys {
            report.model_type = keys.model_type().map(str::to_owned);
            report.architecture = keys.class().map(str::to_owned);
            report.modalities.omni = category::is_omni(keys);
            let by_type = keys.model_type().is_some_and(|name| name.contains("talker"));
            report.modalities.talker = keys.talker_config == Presence::Container || by_type;
        } else if let TargetContents::Gguf(file) = &self.contents {
            report.model_type = file.architecture().ok().map(str::to_owned);
        }
        if let TargetContents::Directory(listing) = &self.contents {
            report.custom_code = category::custom_code(listing, self.config.as_deref());
        }
        report.quantization = self.config.as_deref().and_then(shape::quantization);
        report.base_model.extend(self.base_model(report.category));
        match self.check_family(report.category) {
            Ok(family) => (report.support, report.family) = (Support::Native, family),
            Err(error) => {
                let error = self.fault.as_ref().unwrap_or(&error);
                report.support = Support::after_error(error, self.native_type().as_deref(), report.category);
                // A damaged file does not make the family unsupported.
                if report.support != Support::Native {
                    report.refuse_for(error);
                }
            }
        }
        report
    }

    pub(super) fn check(&self, path: &Path) -> SupportCheck {
        let Report { category, support, model_type, architecture, reason, .. } = self.report(path);
        SupportCheck {
            supported: support == Support::Native,
            tier: support,
            has_custom_files: self.has_custom_files(),
            architecture,
            model_type,
            category,
            error: reason,
        }
    }

    /// The model that autoencoders were trained on.
    pub(super) fn base_model(&self, category: Category) -> Option<String> {
        match &self.contents {
            TargetContents::Directory(listing) if category == Category::Sae => sae::base_model(listing),
            TargetContents::Gguf(file) if category == Category::Sae => {
                sae::describe_gguf(file).base_models.into_iter().next()
            }
            _ => None,
        }
    }

    /// The model type that decides the family.
    fn native_type(&self) -> Option<String> {
        match &self.contents {
            TargetContents::Gguf(file) => gguf::hf_config(file).ok()?.get("model_type")?.as_str().map(str::to_owned),
            _ => self.keys.as_ref().and_then(ConfigKeys::model_type).map(str::to_owned),
        }
    }

    /// Checks that the model's family is native and accepts the configuration, with the errors of
    /// loading. Returns the family; `None` if the configuration is damaged.
    fn check_family(&self, category: Category) -> Result<Option<String>> {
        let name = |family: Family| Some(family.architecture.family);
        match (&self.contents, &self.keys) {
            (TargetContents::Nothing, _) => Err(Error::usage("there is no model", "")),
            (TargetContents::Gguf(file), _) => {
                let source = ModelSource::Gguf(Arc::clone(file));
                let config = source.config()?;
                read_by_type(&config, || UnknownType::read(&source, &config)).map(name)
            }
            (TargetContents::Directory(listing), _) if category == Category::Adapter => {
                select_family(Some(&listing.dir), None).map(|selected| name(selected.family)).map_err(Error::into_cause)
            }
            (TargetContents::Directory(listing), None) => Err(explain_directory(listing, category)),
            (TargetContents::Directory(listing), Some(keys)) => {
                let origin = listing.dir.join("config.json");
                let config = match &self.config {
                    Some(config) => Config::new(Arc::clone(config), &origin)?,
                    // A damaged configuration does not make the family unsupported.
                    None if keys.model_type().is_some_and(|name| families::family_of(name).is_some()) => {
                        return Ok(None);
                    }
                    None => Config::new(serde_json::json!({ "model_type": keys.model_type() }), &origin)?,
                };
                read_by_type(&config, || UnknownType::of_directory(listing, category, &config)).map(name)
            }
        }
    }

    pub(super) fn has_custom_files(&self) -> bool {
        let TargetContents::Directory(listing) = &self.contents else { return false };
        let mapped = self.keys.as_ref().is_some_and(|keys| keys.auto_map == Presence::Container);
        mapped || listing.files_with_suffix(".py").any(|name| name.starts_with("modeling_"))
    }

    pub(super) fn is_quantized(&self) -> bool {
        match &self.contents {
            TargetContents::Directory(listing) => {
                self.keys.as_ref().is_some_and(|keys| keys.quantization_config.any())
                    || ["quantize_config.json", "quant_config.json"].iter().any(|name| listing.has(name))
            }
            TargetContents::Gguf(file) => file.tensors().iter().any(|tensor| tensor.encoding.is_quantized()),
            TargetContents::Nothing => false,
        }
    }

    /// Bits per weight (if stated), if the configuration says that the weights are quantized.
    fn quantized_bits(&self) -> Option<Option<u64>> {
        shape::quantization(self.config.as_ref()?).map(|quantization| quantization.bits)
    }

    pub(super) fn parameters(&self) -> Option<u64> {
        let elements = |sizes: &[usize]| sizes.iter().fold(1u64, |product, size| product.saturating_mul(*size as u64));
        match &self.contents {
            TargetContents::Gguf(file) => {
                Some(file.tensors().iter().map(|tensor| elements(&tensor.shape)).fold(0, u64::saturating_add))
            }
            TargetContents::Directory(listing) => {
                let (mut total, mut seen) = (0u64, false);
                let bits = self.quantized_bits();
                for name in weight_files(listing) {
                    // `inspect` reports damaged files; count the others.
                    let _ = header::scan(&listing.dir.join(name), &mut |tensor| {
                        let elements = match bits {
                            Some(bits) => weights::unpacked_elements(tensor.name, tensor.dtype, tensor.elements, bits),
                            None => tensor.elements,
                        };
                        (total, seen) = (total.saturating_add(elements), true);
                    });
                }
                seen.then_some(total)
            }
            TargetContents::Nothing => None,
        }
    }
}

/// The identifying keys of a directory's configuration and, with `Full`, the configuration if it is
/// valid.
fn configuration(listing: &Listing, depth: ConfigDepth) -> Result<(Option<ConfigKeys>, Option<Arc<Value>>)> {
    let Some(bytes) = listing.settings("config.json")? else { return Ok((None, None)) };
    let origin = listing.dir.join("config.json");
    // An invalid value elsewhere does not affect the identifying keys.
    match (depth == ConfigDepth::Full).then(|| json::parse_config(&bytes, &origin)) {
        Some(Ok(config)) => Ok((Some(ConfigKeys::from_value(&config, &origin)?), Some(Arc::new(config)))),
        Some(Err(error)) => Ok((Some(ConfigKeys::read(&bytes, &origin).map_err(|_| error)?), None)),
        None => Ok((Some(ConfigKeys::read(&bytes, &origin)?), None)),
    }
}

/// The weight files of a model: model.safetensors, else its shards, else all safetensors files.
fn weight_files(listing: &Listing) -> Vec<&str> {
    const SINGLE: &str = "model.safetensors";
    if listing.has(SINGLE) {
        return vec![SINGLE];
    }
    let all: Vec<&str> = listing.files_with_suffix(".safetensors").collect();
    let is_shard = |name: &&str| name.starts_with("model-") && name.contains("-of-");
    let shards: Vec<&str> = all.iter().copied().filter(is_shard).collect();
    if shards.is_empty() { all } else { shards }
}
