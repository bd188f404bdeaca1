//! Quick answers to single questions about a directory or file: what is it, and does this build run it?
//!
//! [`inspect`](crate::inspect()) tells everything; these functions tell one thing each, from one reading of the directory and the few keys
//! of `config.json` that decide. They never fail, never execute anything and never look at a tokenizer.
//!
//! | module | its part |
//! |---|---|
//! | [`registry`] | every model type and class of `transformers`, with its category |
//! | `register` | types that stand for a native family |
//! | `peek` | the keys of a configuration that tell |
//! | `category` | files, then `model_type`, then class, then the names of tensors |
//! | [`sae`] | autoencoders in all their layouts |

pub(crate) mod category;
pub(crate) mod peek;
mod register;
pub mod registry;
pub mod sae;
mod tensor_names;

pub use register::{ARCHITECTURES_VARIABLE, family_of, register_architecture, register_file, registered_architectures};
pub(crate) use register::{register_environment, stand_in};

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::config::Config;
use crate::gguf::{self, GgufFile};
use crate::inspect::{Category, Support, shape, weights};
use crate::listing::Listing;
use crate::{Error, Result, families, header, json};
use peek::{Peek, Seen};

/// What there is to know about a model at a glance.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelInfo {
    /// The name of its directory or file.
    pub name: String,
    /// Its parameters, counted in the headers of its weights; nothing where there are none.
    pub size: Option<u64>,
    /// Whether its weights are quantised.
    pub is_quantized: bool,
    /// Whether it has a part that speaks.
    pub has_talker: bool,
    /// The class that `config.json` names.
    pub architecture: Option<String>,
    /// The family that `config.json` names.
    pub model_type: Option<String>,
    /// Whether its family runs here.
    pub is_supported: bool,
    /// Whether it brings Python code, which is never executed.
    pub has_custom_files: bool,
    /// What keeps it from being known or run.
    pub error: Option<String>,
}

/// Whether a model runs here, and why not.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SupportCheck {
    /// Whether its family runs here. Whether this copy of it is whole, [`inspect`](crate::inspect()) tells.
    pub supported: bool,
    /// What this build can do with it.
    pub tier: Support,
    /// Whether it brings Python code, which is never executed.
    pub has_custom_files: bool,
    /// The class that `config.json` names.
    pub architecture: Option<String>,
    /// The family that `config.json` names.
    pub model_type: Option<String>,
    /// What kind of thing it is.
    pub category: Category,
    /// Why it is not supported.
    pub error: Option<String>,
}

/// Describes a model at a glance. It never fails: what is wrong is said in `error`.
///
/// ```
/// let info = pellucid_models::identify::get_model_info(concat!(env!("CARGO_MANIFEST_DIR"), "/builtin").as_ref());
/// assert_eq!((info.model_type.as_deref(), info.is_supported, info.error), (Some("llama"), true, None));
/// assert!(info.size.is_some_and(|parameters| parameters > 100_000));
/// ```
pub fn get_model_info(path: &Path) -> ModelInfo {
    let subject = Subject::read(path, Depth::Whole);
    let check = subject.check();
    let name = path.file_name().map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy()).into_owned();
    let peek = subject.peek.as_ref();
    ModelInfo {
        name,
        size: subject.parameters(),
        is_quantized: subject.is_quantized(),
        has_talker: peek.is_some_and(|peek| {
            let typed = peek.model_type().is_some_and(|name| name.contains("talker"));
            peek.talker_config == Seen::Part || typed
        }),
        architecture: check.architecture,
        model_type: check.model_type,
        is_supported: check.supported,
        has_custom_files: check.has_custom_files,
        error: check.error,
    }
}

/// Whether a model is an omni model: it gives more than one kind of output, has a part that thinks and one that speaks, or is called so by its
/// makers. Language models, and others that look or listen and then write, are none.
pub fn is_omni_model(path: &Path) -> bool {
    // The configuration alone decides, so nothing else is opened.
    let file = path.join("config.json");
    let read = || Peek::read(&read_settings(&file)?, &file).ok();
    read().is_some_and(|peek| category::is_omni(&peek))
}

/// Whether a model runs here, and why not.
///
/// ```
/// let check = pellucid_models::identify::is_model_supported("no/such/directory".as_ref());
/// assert!(!check.supported && check.error.is_some());
/// ```
pub fn is_model_supported(path: &Path) -> SupportCheck {
    Subject::read(path, Depth::Whole).check()
}

/// What kind of thing is here. It needs no `config.json`: pipelines and autoencoders are told by their files, lone weights by their tensors.
pub fn detect_model_category(path: &Path) -> Category {
    Subject::read(path, Depth::Glance).category()
}

/// Whether these are sparse autoencoders or transcoders, in any layout and at any depth.
pub fn is_sae_model(path: &Path) -> bool {
    detect_model_category(path) == Category::Sae
}

/// The model that autoencoders were trained on, where they say so.
pub fn get_sae_base_model(path: &Path) -> Option<String> {
    let subject = Subject::read(path, Depth::Glance);
    match &subject.place {
        Place::Directory(listing) if subject.category() == Category::Sae => sae::base_model(listing),
        Place::Gguf(file) if subject.category() == Category::Sae => {
            sae::describe_gguf(file).base_models.into_iter().next()
        }
        _ => None,
    }
}

/// Whether this is an image pipeline of the `diffusers` library, or a part of one.
pub fn is_diffusers_model(path: &Path) -> bool {
    detect_model_category(path) == Category::Diffusers
}

/// Whether this is a model that looks at images and does not write.
pub fn is_vision_encoder(path: &Path) -> bool {
    detect_model_category(path) == Category::VisionEncoder
}

/// Whether this is a model that writes down speech.
pub fn is_asr_model(path: &Path) -> bool {
    detect_model_category(path) == Category::Asr
}

/// What a question is about, read as far as the questions need.
struct Subject {
    place: Place,
    /// The configuration's telling keys.
    peek: Option<Peek>,
    /// The configuration, for the family that reads it; nothing at a glance, and where there is none that can be read.
    config: Option<Arc<Value>>,
    fault: Option<String>,
}

/// How much of a configuration a question needs.
#[derive(Clone, Copy, PartialEq)]
enum Depth {
    /// The keys that tell what it is.
    Glance,
    /// All of it, to ask a family.
    Whole,
}

enum Place {
    Directory(Listing),
    Gguf(Box<GgufFile>),
    Nothing,
}

impl Subject {
    fn read(path: &Path, depth: Depth) -> Subject {
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

    fn category(&self) -> Category {
        match &self.place {
            Place::Directory(listing) => category::of_directory(listing, self.peek.as_ref()),
            Place::Gguf(file) => {
                let kind = file.text("general.type").ok().flatten();
                file.architecture().map_or(Category::Unknown, |name| category::of_gguf(kind, name))
            }
            Place::Nothing => Category::Unknown,
        }
    }

    fn check(&self) -> SupportCheck {
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
        let Some(family) = family_of(model_type) else {
            return Err(Error::unsupported(
                format!("models of type `{}` do not run natively in this build", model_type.escape_debug()),
                "",
            ));
        };
        // What cannot be read is damaged, and its family runs all the same.
        let Some(config) = &config else { return Ok(()) };
        let own = Config::new(Arc::clone(config), &origin)?;
        families::read(&if family == model_type { own } else { own.with("model_type", family.into()) }).map(drop)
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

    fn is_quantized(&self) -> bool {
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

    fn parameters(&self) -> Option<u64> {
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

fn read_settings(file: &Path) -> Option<Vec<u8>> {
    const LONGEST: u64 = 32 << 20;
    // Opening a pipe would wait forever.
    if !std::fs::metadata(file).ok()?.is_file() {
        return None;
    }
    crate::listing::first_bytes(file, LONGEST + 1).ok().filter(|bytes| bytes.len() as u64 <= LONGEST)
}
