//! The subject of a question: a directory or file, read as far as the question needs.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::answers::SupportCheck;
use super::peek::{Peek, Seen};
use super::report::{Category, Support};
use super::{category, shape, weights};
use crate::config::Config;
use crate::gguf::{self, GgufFile};
use crate::listing::Listing;
use crate::select_family::read_by_type;
use crate::{Error, Result, families, header, json};

/// A directory or file that questions are asked about.
pub(super) struct Subject {
    pub(super) place: Place,
    /// The configuration's telling keys.
    pub(super) peek: Option<Peek>,
    /// The configuration, for the family that reads it; nothing at a glance, and where there is none that can be read.
    config: Option<Arc<Value>>,
    fault: Option<String>,
}

/// How much of a configuration a question needs.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Depth {
    /// The keys that tell what it is.
    Glance,
    /// All of it, to ask a family.
    Whole,
}

pub(super) enum Place {
    Directory(Listing),
    Gguf(Box<GgufFile>),
    Nothing,
}

impl Subject {
    pub(super) fn read(path: &Path, depth: Depth) -> Subject {
        let of = |place: Place, fault: Option<String>| Subject { place, peek: None, config: None, fault };
        let listing = match Listing::read(path) {
            Ok(listing) => listing,
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                return match open_file(path) {
                    Ok(file) => of(Place::Gguf(Box::new(file)), None),
                    Err(error) => of(Place::Nothing, Some(error.to_string())),
                };
            }
            Err(error) => return of(Place::Nothing, Some(format!("{}: {error}", path.display()))),
        };
        let ((peek, config), fault) = match configuration(&listing, depth) {
            Ok(read) => (read, None),
            Err(error) => ((None, None), Some(error.to_string())),
        };
        // People keep a GGUF file in a directory of its own.
        let mut files = listing.ending(".gguf").filter(|_| peek.is_none() && fault.is_none());
        if let (Some(only), None) = (files.next(), files.next())
            && let Ok(file) = GgufFile::open(listing.dir.join(only))
        {
            return of(Place::Gguf(Box::new(file)), fault);
        }
        drop(files);
        Subject { place: Place::Directory(listing), peek, config, fault }
    }

    pub(super) fn category(&self) -> Category {
        match &self.place {
            Place::Directory(listing) => category::of_directory(listing, self.peek.as_ref()),
            Place::Gguf(file) => {
                let kind = file.text("general.type").ok().flatten();
                file.architecture().map_or(Category::Unknown, |name| category::of_gguf(kind, name))
            }
            Place::Nothing => Category::Unknown,
        }
    }

    pub(super) fn check(&self) -> SupportCheck {
        let category = self.category();
        let (mut model_type, mut architecture) = (None, None);
        if let Some(peek) = &self.peek {
            (model_type, architecture) = (peek.model_type().map(str::to_owned), peek.class().map(str::to_owned));
        } else if let Place::Gguf(file) = &self.place {
            model_type = file.architecture().ok().map(str::to_owned);
        }
        let (tier, error) = match category {
            Category::Unknown => (Support::Unsupported, Some(self.unknown())),
            Category::Sae | Category::Diffusers | Category::Adapter => {
                (Support::InspectOnly, Some(format!("a thing of the kind {} is not a language model", category.name())))
            }
            _ => match self.family() {
                // A fault of this copy is no limit of this build.
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

    /// Asks the family of a model whether it can read the configuration.
    fn family(&self) -> Result<()> {
        let (config, origin) = match &self.place {
            Place::Directory(listing) => (self.config.clone(), listing.dir.join("config.json")),
            Place::Gguf(file) => (Some(Arc::new(gguf::hf_config(file)?)), file.path().to_path_buf()),
            Place::Nothing => return Ok(()),
        };
        let own = self.peek.as_ref().and_then(Peek::model_type);
        let named = config.as_ref().and_then(|config| config.get("model_type")?.as_str());
        let Some(model_type) = named.or(own) else {
            return Err(Error::unsupported("config.json does not say which family this is (no `model_type`)", ""));
        };
        if families::family_of(model_type).is_none() {
            return Err(Error::unsupported(
                format!("models of type `{}` do not run natively in this build", model_type.escape_debug()),
                "",
            ));
        }
        // What cannot be read is damaged, and its family runs all the same.
        let Some(config) = &config else { return Ok(()) };
        read_by_type(&Config::new(Arc::clone(config), &origin)?).map(drop)
    }

    /// Why nothing is known.
    fn unknown(&self) -> String {
        let path = |listing: &Listing| listing.dir.display().to_string();
        match (&self.fault, &self.place, &self.peek) {
            (Some(fault), ..) => fault.clone(),
            (None, Place::Directory(listing), Some(_)) => {
                format!("{}: config.json names neither a `model_type` nor a class", path(listing))
            }
            (None, Place::Directory(listing), None) => format!("{}: there is no config.json here", path(listing)),
            _ => "nothing here is recognised".into(),
        }
    }

    fn has_custom_files(&self) -> bool {
        let Place::Directory(listing) = &self.place else { return false };
        let mapped = self.peek.as_ref().is_some_and(|peek| peek.auto_map == Seen::Part);
        mapped || listing.ending(".py").any(|name| name.starts_with("modeling_"))
    }

    pub(super) fn is_quantized(&self) -> bool {
        match &self.place {
            Place::Directory(listing) => {
                self.peek.as_ref().is_some_and(|peek| peek.quantization_config.any())
                    || ["quantize_config.json", "quant_config.json"].iter().any(|name| listing.has(name))
            }
            Place::Gguf(file) => file.tensors().iter().any(|tensor| tensor.encoding.is_quantised()),
            Place::Nothing => false,
        }
    }

    /// Bits of a weight, where the configuration says that weights are quantised.
    fn quantisation(&self) -> Option<Option<u64>> {
        shape::quantisation(self.config.as_ref()?).map(|quantisation| quantisation.bits)
    }

    pub(super) fn parameters(&self) -> Option<u64> {
        let sum = |sizes: &[usize]| sizes.iter().fold(1u64, |product, size| product.saturating_mul(*size as u64));
        match &self.place {
            Place::Gguf(file) => {
                Some(file.tensors().iter().map(|tensor| sum(&tensor.shape)).fold(0, u64::saturating_add))
            }
            Place::Directory(listing) => {
                let (mut total, mut seen) = (0u64, false);
                let bits = self.quantisation();
                for name in weight_files(listing) {
                    // What is damaged is told by `inspect`; the other files still count.
                    let _ = header::scan(&listing.dir.join(name), &mut |tensor| {
                        let elements = match bits {
                            Some(bits) => weights::packed(tensor.name, tensor.dtype, tensor.elements, bits),
                            None => tensor.elements,
                        };
                        (total, seen) = (total.saturating_add(elements), true);
                    });
                }
                seen.then_some(total)
            }
            Place::Nothing => None,
        }
    }
}

/// What a directory's configuration tells, and the configuration where that was asked for and it is sound.
fn configuration(listing: &Listing, depth: Depth) -> Result<(Option<Peek>, Option<Arc<Value>>)> {
    let Some(bytes) = listing.settings("config.json")? else { return Ok((None, None)) };
    let origin = listing.dir.join("config.json");
    // A fault somewhere inside does not keep the other keys from telling.
    match (depth == Depth::Whole).then(|| json::parse_config(&bytes, &origin)) {
        Some(Ok(config)) => Ok((Some(Peek::of(&config, &origin)?), Some(Arc::new(config)))),
        _ => Ok((Some(Peek::read(&bytes, &origin)?), None)),
    }
}

/// The files that a model's weights are in: the one that wins where there are several, else shards, else whatever there is.
fn weight_files(listing: &Listing) -> Vec<&str> {
    const SINGLE: &str = "model.safetensors";
    if listing.has(SINGLE) {
        return vec![SINGLE];
    }
    let all: Vec<&str> = listing.ending(".safetensors").collect();
    let is_shard = |name: &&str| name.starts_with("model-") && name.contains("-of-");
    let shards: Vec<&str> = all.iter().copied().filter(is_shard).collect();
    if shards.is_empty() { all } else { shards }
}

/// A file that is given instead of a directory can only be a GGUF file. Opening a pipe would wait forever.
fn open_file(path: &Path) -> Result<GgufFile> {
    let metadata = std::fs::metadata(path).map_err(Error::io(path))?;
    if metadata.is_file() {
        return GgufFile::open(path);
    }
    Err(Error::invalid(path, "this is neither a file nor a directory", "give a model's directory or a .gguf file"))
}
