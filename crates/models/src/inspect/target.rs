//! The directory or file of a query, read as far as the query needs.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::answers::SupportCheck;
use super::config_keys::{ConfigKeys, Presence};
use super::report::{Category, Support};
use super::{category, shape, weights};
use crate::config::Config;
use crate::gguf::{self, GgufFile};
use crate::listing::Listing;
use crate::select_family::read_by_type;
use crate::{Error, Result, families, header, json};

/// A directory or file that is queried.
pub(super) struct Target {
    pub(super) contents: TargetContents,
    /// The identifying keys of the configuration.
    pub(super) keys: Option<ConfigKeys>,
    /// The full configuration; `None` with `ConfigDepth::KeysOnly`, or if it is missing or invalid.
    config: Option<Arc<Value>>,
    fault: Option<String>,
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
    Gguf(Box<GgufFile>),
    Nothing,
}

impl Target {
    pub(super) fn read(path: &Path, depth: ConfigDepth) -> Target {
        let without_config =
            |contents: TargetContents, fault: Option<String>| Target { contents, keys: None, config: None, fault };
        let listing = match Listing::read(path) {
            Ok(listing) => listing,
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                return match open_file(path) {
                    Ok(file) => without_config(TargetContents::Gguf(Box::new(file)), None),
                    Err(error) => without_config(TargetContents::Nothing, Some(error.to_string())),
                };
            }
            Err(error) => return without_config(TargetContents::Nothing, Some(format!("{}: {error}", path.display()))),
        };
        let ((keys, config), fault) = match configuration(&listing, depth) {
            Ok(read) => (read, None),
            Err(error) => ((None, None), Some(error.to_string())),
        };
        // A directory may contain a single GGUF file.
        let mut files = listing.files_with_suffix(".gguf").filter(|_| keys.is_none() && fault.is_none());
        if let (Some(only), None) = (files.next(), files.next())
            && let Ok(file) = GgufFile::open(listing.dir.join(only))
        {
            return without_config(TargetContents::Gguf(Box::new(file)), fault);
        }
        drop(files);
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

    pub(super) fn check(&self) -> SupportCheck {
        let category = self.category();
        let (mut model_type, mut architecture) = (None, None);
        if let Some(keys) = &self.keys {
            (model_type, architecture) = (keys.model_type().map(str::to_owned), keys.class().map(str::to_owned));
        } else if let TargetContents::Gguf(file) = &self.contents {
            model_type = file.architecture().ok().map(str::to_owned);
        }
        let (tier, error) = match category {
            Category::Unknown => (Support::Unsupported, Some(self.unknown_reason())),
            Category::Sae | Category::Diffusers | Category::Adapter => (
                Support::InspectOnly,
                Some(format!("the category is {}, which is not a language model", category.name())),
            ),
            _ => match self.check_family() {
                // A damaged file does not make the family unsupported.
                Ok(()) | Err(Error::Invalid { .. }) => (Support::Native, None),
                Err(error) => (Support::InspectOnly, Some(error.to_string())),
            },
        };
        SupportCheck {
            supported: tier == Support::Native,
            tier,
            has_custom_files: self.has_custom_files(),
            architecture,
            model_type,
            category,
            error,
        }
    }

    /// Checks that the model's family is native and accepts the configuration.
    fn check_family(&self) -> Result<()> {
        let (config, origin) = match &self.contents {
            TargetContents::Directory(listing) => (self.config.clone(), listing.dir.join("config.json")),
            TargetContents::Gguf(file) => (Some(Arc::new(gguf::hf_config(file)?)), file.path().to_path_buf()),
            TargetContents::Nothing => return Ok(()),
        };
        let from_keys = self.keys.as_ref().and_then(ConfigKeys::model_type);
        let from_config = config.as_ref().and_then(|config| config.get("model_type")?.as_str());
        let Some(model_type) = from_config.or(from_keys) else {
            return Err(Error::unsupported("config.json does not name the model's family (no `model_type`)", ""));
        };
        if families::family_of(model_type).is_none() {
            return Err(Error::unsupported(
                format!("models of type `{}` do not run natively in this build", model_type.escape_debug()),
                "",
            ));
        }
        // A damaged configuration does not make the family unsupported.
        let Some(config) = &config else { return Ok(()) };
        read_by_type(&Config::new(Arc::clone(config), &origin)?).map(drop)
    }

    /// Why the category is unknown.
    fn unknown_reason(&self) -> String {
        let path = |listing: &Listing| listing.dir.display().to_string();
        match (&self.fault, &self.contents, &self.keys) {
            (Some(fault), ..) => fault.clone(),
            (None, TargetContents::Directory(listing), Some(_)) => {
                format!("{}: config.json names neither a `model_type` nor a class", path(listing))
            }
            (None, TargetContents::Directory(listing), None) => {
                format!("{}: there is no config.json here", path(listing))
            }
            _ => "the contents are not recognized".into(),
        }
    }

    fn has_custom_files(&self) -> bool {
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
        _ => Ok((Some(ConfigKeys::read(&bytes, &origin)?), None)),
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

/// Opens a GGUF file, the only kind of file accepted. A named pipe is refused: opening it would
/// block.
fn open_file(path: &Path) -> Result<GgufFile> {
    let metadata = std::fs::metadata(path).map_err(Error::io(path))?;
    if metadata.is_file() {
        return GgufFile::open(path);
    }
    Err(Error::invalid(path, "this is neither a file nor a directory", "give a model's directory or a .gguf file"))
}
