//! The category of a directory: by characteristic files, then by its configuration, then by tensor
//! names.

mod config_keys;
mod custom_code;
pub mod registry;
pub mod sae;
mod tensor_names;

pub(crate) use config_keys::{ConfigKeys, Presence, Scalar};
pub(crate) use custom_code::custom_code;

use crate::adapter;
use crate::listing::Listing;
use schemars::JsonSchema;
use serde::Serialize;

/// Category of a directory or file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// A language model, possibly with other input modalities.
    Transformers,
    /// Sparse autoencoders or transcoders.
    Sae,
    /// Weights that modify a base model (LoRA).
    Adapter,
    /// An image pipeline of the `diffusers` library, or a part of one.
    Diffusers,
    /// A text-embedding model.
    Embedding,
    /// A vision encoder.
    VisionEncoder,
    /// An audio encoder.
    AudioEncoder,
    /// A speech-recognition model.
    Asr,
    /// Not recognized.
    Unknown,
}

impl Category {
    /// All categories.
    pub const ALL: [Category; 9] = [
        Category::Transformers,
        Category::Sae,
        Category::Adapter,
        Category::Diffusers,
        Category::Embedding,
        Category::VisionEncoder,
        Category::AudioEncoder,
        Category::Asr,
        Category::Unknown,
    ];

    /// Returns the category of this name.
    pub fn from_name(name: &str) -> Option<Category> {
        Category::ALL.into_iter().find(|category| category.name() == name)
    }

    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Category::Transformers => "transformers",
            Category::Sae => "sae",
            Category::Adapter => "adapter",
            Category::Diffusers => "diffusers",
            Category::Embedding => "embedding",
            Category::VisionEncoder => "vision_encoder",
            Category::AudioEncoder => "audio_encoder",
            Category::Asr => "asr",
            Category::Unknown => "unknown",
        }
    }
}

/// Suffixes of vision classes of any family.
const VISION_HEADS: &[&str] = &[
    "visionmodel",
    "backbone",
    "forimageclassification",
    "forvideoclassification",
    "forobjectdetection",
    "fordepthestimation",
    "forsemanticsegmentation",
    "forinstancesegmentation",
    "foruniversalsegmentation",
    "forimagesegmentation",
    "forkeypointdetection",
    "forkeypointmatching",
    "formaskedimagemodeling",
];

/// Omni models outside `transformers`, by `model_type` without separators.
const OTHER_OMNI: &[&str] = &[
    "anytoany",
    "any2any",
    "anygpt",
    "bagel",
    "bailingmm",
    "bailingmmmoev2lite",
    "kimiaudio",
    "lfm2audio",
    "multimodality",
    "nextgpt",
    "showo",
    "unifiedio2",
];

/// The category of a directory. `config` is its `config.json`, if readable.
pub(crate) fn of_directory(listing: &Listing, config: Option<&ConfigKeys>) -> Category {
    if adapter::is_adapter_with(&|file| listing.has(file)) {
        return Category::Adapter;
    }
    if is_pipeline(listing) || config.is_some_and(|config| config.diffusers_version.any()) {
        return Category::Diffusers;
    }
    if sae::is_here(listing, config) {
        return Category::Sae;
    }
    match config.map_or(Category::Unknown, of_config) {
        // Sentence Transformers writes these files for embedding models.
        Category::Transformers if listing.has("modules.json") && listing.has("config_sentence_transformers.json") => {
            Category::Embedding
        }
        Category::Unknown if sae::is_inside(listing) => Category::Sae,
        Category::Unknown => tensor_names::category(listing),
        category => category,
    }
}

/// Whether a directory is a pipeline of the `diffusers` library.
pub(crate) fn is_pipeline(listing: &Listing) -> bool {
    listing.has("model_index.json") || (listing.has_dir("unet") && listing.has_dir("vae"))
}

/// The category of a configuration: by its `model_type`, then by its class.
pub(crate) fn of_config(config: &ConfigKeys) -> Category {
    let class = config.class();
    let known_class = class.and_then(registry::by_class);
    match (config.model_type(), known_class) {
        (Some(name), known_class) => match registry::by_type(name) {
            // One type may have an encoder and a generative model; the class decides.
            Some(info) => known_class
                .filter(|class| class.model_type == Some(info.model_type))
                .map_or(info.category, |class| class.category),
            None => known_class.map_or_else(|| by_suffix(class, Some(name)), |class| class.category),
        },
        (None, Some(class)) => class.category,
        (None, None) if class.is_some() => by_suffix(class, None),
        (None, None) if config.pretrained_cfg == Presence::Container => Category::VisionEncoder,
        (None, None) => Category::Unknown,
    }
}

/// The category of an unregistered class or type, by suffix.
fn by_suffix(class: Option<&str>, model_type: Option<&str>) -> Category {
    let class = class.map(str::to_ascii_lowercase);
    let class_ends = |suffix: &str| class.as_deref().is_some_and(|class| class.ends_with(suffix));
    let type_ends = |suffix: &str| model_type.is_some_and(|name| name.ends_with(suffix));
    if VISION_HEADS.iter().any(|suffix| class_ends(suffix))
        || type_ends("_vision_model")
        || type_ends("_vision_encoder")
    {
        Category::VisionEncoder
    } else if class_ends("foraudioclassification") || class_ends("forctc") || type_ends("_audio_encoder") {
        Category::AudioEncoder
    } else if class_ends("forspeechseq2seq") {
        Category::Asr
    } else {
        Category::Transformers
    }
}

/// Whether a configuration is that of an omni model: several output modalities, or a thinker and a
/// talker, or named so. A multimodal model that outputs only text is not.
pub(crate) fn is_omni(config: &ConfigKeys) -> bool {
    if config.thinker_config == Presence::Container || config.talker_config == Presence::Container {
        return true;
    }
    let is_omni_name = |name: &str| {
        let plain: String = name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
        plain.contains("omni") || OTHER_OMNI.iter().any(|other| plain.strip_prefix(other).is_some_and(is_class_suffix))
    };
    let of_type = config.model_type().is_some_and(|name| {
        let voice = name.eq_ignore_ascii_case("minicpmo") && config.init_tts == Scalar::True;
        voice || registry::by_type(name).map_or_else(|| is_omni_name(name), |info| info.omni)
    });
    // The class matters only if the type is unknown.
    let known = config.model_type().is_some_and(|name| registry::by_type(name).is_some());
    (of_type || (!known && config.class().is_some_and(is_omni_name))) && of_config(config) == Category::Transformers
}

/// Whether `rest` is only a class suffix: `NExTGPT` and `NExTGPTForConditionalGeneration`.
fn is_class_suffix(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with("for") || rest == "model"
}

/// The category of a GGUF file.
pub(crate) fn of_gguf(kind: Option<&str>, architecture: &str) -> Category {
    match (kind, architecture) {
        (Some("adapter"), _) => Category::Adapter,
        // The vision encoder of a model whose language model is another file.
        (Some("mmproj"), _) | (_, "clip") => Category::VisionEncoder,
        (_, "whisper") => Category::Asr,
        (_, name) if name.contains("bert") || name == "t5encoder" || name == "gemma-embedding" => Category::Embedding,
        // Steering vectors for the residual stream; grouped with SAEs, which are used similarly.
        (_, "controlvector") => Category::Sae,
        _ => Category::Transformers,
    }
}
