//! What kind of thing a directory is: by the files that only such a thing has, then by what its configuration calls it, then by its tensors.

use super::peek::{Peek, Scalar, Seen};
use super::report::Category;
use super::{registry, sae, tensor_names};
use crate::listing::Listing;

/// The endings of classes that look at images, whatever their family.
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

/// Omni models that `transformers` does not have, by `model_type` without separators.
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

/// The category of a directory. `config` is its `config.json`, where there is one that can be read.
pub(crate) fn of_directory(listing: &Listing, config: Option<&Peek>) -> Category {
    if is_pipeline(listing) || config.is_some_and(|config| config.diffusers_version.any()) {
        return Category::Diffusers;
    }
    let whole = listing.has("model.safetensors") || listing.has("model.safetensors.index.json");
    if listing.has("adapter_config.json") && !whole {
        return Category::Adapter;
    }
    if sae::is_here(listing, config) {
        return Category::Sae;
    }
    match config.map_or(Category::Unknown, of_config) {
        // Sentence Transformers writes these beside any model that it makes vectors with.
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
pub(crate) fn of_config(config: &Peek) -> Category {
    let class = config.class();
    let known_class = class.and_then(registry::by_class);
    match (config.model_type(), known_class) {
        (Some(name), known_class) => match registry::by_type(name) {
            // Of one type may be a bare encoder and a model that writes: the class tells them apart.
            Some(info) => known_class
                .filter(|class| class.model_type == Some(info.model_type))
                .map_or(info.category, |class| class.category),
            None => known_class.map_or_else(|| by_ending(class, Some(name)), |class| class.category),
        },
        (None, Some(class)) => class.category,
        (None, None) if class.is_some() => by_ending(class, None),
        (None, None) if config.pretrained_cfg == Seen::Part => Category::VisionEncoder,
        (None, None) => Category::Unknown,
    }
}

/// The category of what no table knows, by how its names end.
fn by_ending(class: Option<&str>, model_type: Option<&str>) -> Category {
    let class = class.map(str::to_ascii_lowercase);
    let ends = |end: &str| class.as_deref().is_some_and(|class| class.ends_with(end));
    let typed = |end: &str| model_type.is_some_and(|name| name.ends_with(end));
    if VISION_HEADS.iter().any(|end| ends(end)) || typed("_vision_model") || typed("_vision_encoder") {
        Category::VisionEncoder
    } else if ends("foraudioclassification") || ends("forctc") || typed("_audio_encoder") {
        Category::AudioEncoder
    } else if ends("forspeechseq2seq") {
        Category::Asr
    } else {
        Category::Transformers
    }
}

/// Whether a configuration is that of an omni model: one that gives more than one kind of output, that thinks and speaks, or that its makers
/// call so. Another model that only looks or listens and then writes is none.
pub(crate) fn is_omni(config: &Peek) -> bool {
    if config.thinker_config == Seen::Part || config.talker_config == Seen::Part {
        return true;
    }
    let named = |name: &str| {
        let plain: String = name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
        plain.contains("omni") || OTHER_OMNI.iter().any(|other| plain.strip_prefix(other).is_some_and(is_ending))
    };
    let of_type = config.model_type().is_some_and(|name| {
        let voice = name.eq_ignore_ascii_case("minicpmo") && config.init_tts == Scalar::True;
        voice || registry::by_type(name).map_or_else(|| named(name), |info| info.omni)
    });
    // Where the type is known the class adds nothing.
    let known = config.model_type().is_some_and(|name| registry::by_type(name).is_some());
    (of_type || (!known && config.class().is_some_and(named))) && of_config(config) == Category::Transformers
}

/// Whether what follows a name is only what a class is for: `NExTGPT` and `NExTGPTForConditionalGeneration`.
fn is_ending(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with("for") || rest == "model"
}

/// The category of a GGUF file.
pub(crate) fn of_gguf(kind: Option<&str>, architecture: &str) -> Category {
    match (kind, architecture) {
        (Some("adapter"), _) => Category::Adapter,
        // The vision tower of a model whose text half is another file.
        (Some("mmproj"), _) | (_, "clip") => Category::VisionEncoder,
        (_, "whisper") => Category::Asr,
        (_, name) if name.contains("bert") || name == "t5encoder" || name == "gemma-embedding" => Category::Embedding,
        // Directions to add to the stream: told among the autoencoders, with which they share their use.
        (_, "controlvector") => Category::Sae,
        _ => Category::Transformers,
    }
}
