//! What kind of thing a directory is: by the files that only such a thing has, then by what its configuration calls it.

use serde_json::Value;

use super::listing::Listing;
use super::report::Category;

/// Families that are no language models, by `model_type` or class without separators, capitals and endings. Hugging Face
/// spells one family in several ways (`SiglipModel`, `siglip_vision_model`); this is what remains the same.
const FAMILIES: &[(Category, &str)] = &[
    (
        Category::Asr,
        "whisper speech2text speechtotext speechencoderdecoder moonshine moonshinestreaming parakeetctc \
         parakeettdt parakeetencoder lasrctc canary cohereasr qwen3asr funasrnano glmasr vibevoiceasr \
         kyutaispeechtotext",
    ),
    (
        Category::AudioEncoder,
        "wav2vec2 wav2vec2bert wav2vec2conformer hubert wavlm unispeech unispeechsat data2vecaudio sew sewd \
         mctct audiospectrogramtransformer ast clap clapaudio encodec dac mimi xcodec",
    ),
    (
        Category::VisionEncoder,
        "clip clipvision clipseg siglip siglipvision siglip2 siglip2vision metaclip2 chineseclip altclip \
         align vit vitmae vitmsn vitdet vithybrid vitposebackbone deit beit dinov2 dinov2withregisters \
         dinov3vit dinov3convnext data2vecvision convnext convnextv2 swin swinv2 donutswin videomae vivit \
         timesformer vjepa2 ijepa resnet regnet bit efficientnet mobilenetv1 mobilenetv2 mobilevit \
         mobilevitv2 levit cvt pvt pvtv2 poolformer focalnet swiftformer hiera dinat textnet hgnetv2 pplcnet \
         segformer upernet dpt depthanything depthpro glpn zoedepth detr conditionaldetr deformabledetr \
         dabdetr rtdetr rtdetrv2 rfdetr lwdetr dfine yolos tabletransformer maskformer mask2former oneformer \
         eomt owlvit owlv2 groundingdino sam sam2 superpoint superglue lightglue timmwrapper timmbackbone \
         internvision internvit6b aimv2 aimv2vision pixtralvision mllamavision",
    ),
];

/// Encoders of text: their bare models are used for vectors; with another head they are models like others.
const TEXT_ENCODERS: &str = "albert bert bigbird camembert cliptext convbert data2vectext deberta debertav2 distilbert electra \
    ernie esm eurobert gte ibert jinabert jinaembeddingsv3 longformer megatronbert mobilebert modernbert \
    mpnet neobert nomicbert new nystromformer rembert roberta robertaprelayernorm roformer sigliptext \
    squeezebert t5encoder xlmroberta xlmrobertaxl xmod";

/// The endings of class names that say what a model is for.
const HEADS: &str = "ForCausalLM LMHeadModel ForConditionalGeneration ForMaskedLM ForPreTraining ForCTC ForTDT \
    ForSpeechSeq2Seq ForImageClassification ForVideoClassification ForAudioClassification \
    ForSequenceClassification ForTokenClassification ForQuestionAnswering ForSemanticSegmentation \
    ForObjectDetection ForDepthEstimation ModelWithProjection Model";

/// The endings of classes that look at images, whatever their family.
const VISION_HEADS: &str = "VisionModel Backbone ForImageClassification ForVideoClassification ForObjectDetection \
    ForDepthEstimation ForSemanticSegmentation ForInstanceSegmentation ForUniversalSegmentation ForImageSegmentation \
    ForKeypointDetection ForKeypointMatching ForMaskedImageModeling";

/// The model types that are recognised and are no language models, by category and without separators. Text encoders are
/// here for their bare models; with a head they are models like others.
pub fn others() -> impl Iterator<Item = (Category, Vec<&'static str>)> {
    let encoders = (Category::Embedding, TEXT_ENCODERS);
    FAMILIES.iter().copied().chain([encoders]).map(|(category, names)| (category, names.split_whitespace().collect()))
}

/// The category of a directory. `config` is its `config.json`, where there is one that can be read.
pub(super) fn of_directory(listing: &Listing, config: Option<&Value>) -> Category {
    let part_of_pipeline = config.is_some_and(|config| config.get("_diffusers_version").is_some());
    if listing.has("model_index.json") || (listing.has_dir("unet") && listing.has_dir("vae")) || part_of_pipeline {
        return Category::Diffusers;
    }
    let whole = listing.has("model.safetensors") || listing.has("model.safetensors.index.json");
    if listing.has("adapter_config.json") && !whole {
        return Category::Adapter;
    }
    if is_sae(listing, config) {
        return Category::Sae;
    }
    let category = config.map_or(Category::Unknown, of_config);
    // Sentence Transformers writes these beside any model that it makes vectors with.
    let makes_vectors = listing.has("modules.json") && listing.has("config_sentence_transformers.json");
    match category {
        Category::Transformers if makes_vectors => Category::Embedding,
        Category::Unknown if holds_saes(&listing.dir, 0, &mut 0) => Category::Sae,
        category => category,
    }
}

/// The category of a configuration: by its `model_type`, then by its class.
pub(super) fn of_config(config: &Value) -> Category {
    let class = class(config);
    let model_type = config.get("model_type").and_then(Value::as_str);
    if class.is_none() && model_type.is_none() {
        return Category::Unknown;
    }
    let stems: Vec<String> = model_type.into_iter().chain(class).map(stem).collect();
    let known = FAMILIES.iter().find(|(_, names)| stems.iter().any(|stem| lists(names, stem)));
    if let Some((category, _)) = known {
        return *category;
    }
    let ends = |end: &str| class.is_some_and(|class| class.ends_with(end));
    let typed = |end: &str| model_type.is_some_and(|name| name.ends_with(end));
    if VISION_HEADS.split_whitespace().any(ends) || typed("_vision_model") || typed("_vision_encoder") {
        return Category::VisionEncoder;
    }
    if ends("ForAudioClassification") || ends("ForCTC") || typed("_audio_encoder") {
        return Category::AudioEncoder;
    }
    // ESM and others: only the bare model is for vectors.
    let bare = ends("Model") && !ends("LMHeadModel");
    if bare && stems.iter().any(|stem| lists(TEXT_ENCODERS, stem)) {
        return Category::Embedding;
    }
    Category::Transformers
}

/// The category of a GGUF file.
pub(super) fn of_gguf(kind: Option<&str>, architecture: &str) -> Category {
    match (kind, architecture) {
        (Some("adapter"), _) => Category::Adapter,
        // The vision tower of a model whose text half is another file.
        (Some("mmproj"), _) | (_, "clip") => Category::VisionEncoder,
        (_, "whisper") => Category::Asr,
        (_, name) if name.contains("bert") || name == "t5encoder" || name == "gemma-embedding" => Category::Embedding,
        (_, "controlvector") => Category::Unknown,
        _ => Category::Transformers,
    }
}

/// The first class that a configuration names.
pub(super) fn class(config: &Value) -> Option<&str> {
    config.get("architectures")?.as_array()?.first()?.as_str()
}

/// Whether a name is one of those, which are written with spaces between.
fn lists(names: &str, name: &str) -> bool {
    names.split_whitespace().any(|known| known == name)
}

/// `SiglipVisionModel`, `siglip_vision_model` → `siglipvision`.
fn stem(name: &str) -> String {
    let name = HEADS.split_whitespace().find_map(|head| name.strip_suffix(head)).unwrap_or(name);
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    plain.strip_suffix("model").map(str::to_owned).unwrap_or(plain)
}

/// Whether this very directory holds one autoencoder.
fn is_sae(listing: &Listing, config: Option<&Value>) -> bool {
    let has_all = |names: &[&str]| names.iter().all(|name| listing.has(name));
    // dictionary_learning and Gemma Scope 2 have a config.json of their own.
    let sae_config = config.is_some_and(|config| {
        config.get("model_type").is_none()
            && (config.pointer("/trainer/dict_class").is_some()
                || config.get("hf_hook_point_in").is_some()
                || (listing.has("params.safetensors") && config.get("width").is_some()))
    });
    sae_config
        || listing.has("sae_weights.safetensors")
        || listing.has("params.npz")
        || listing.has("ae.pt")
        || has_all(&["cfg.json", "sae.safetensors"])
        || (listing.has("hyperparams.json") && listing.has_dir("checkpoints"))
}

/// How deep autoencoders may lie (`layer_3/width_16k/average_l0_71/params.npz`), and how many directories are looked at.
const DEPTH: usize = 4;
const MOST: usize = 64;

/// Whether a directory inside holds one: releases have one directory for each site, width and sparsity.
fn holds_saes(dir: &std::path::Path, depth: usize, seen: &mut usize) -> bool {
    if depth > DEPTH || *seen > MOST {
        return false;
    }
    *seen += 1;
    let Ok(listing) = Listing::read(dir) else { return false };
    let config = listing.json("config.json").ok().flatten();
    is_sae(&listing, config.as_ref()) || listing.dirs().any(|name| holds_saes(&dir.join(name), depth + 1, seen))
}
