//! The category by tensor names: the last resort, without a configuration.

use super::Category;
use crate::header;
use crate::listing::Listing;

/// Substrings of tensor names that are specific to a category, in order of precedence.
const TYPICAL_NAMES: &[(Category, &[&str])] = &[
    (Category::Adapter, &["lora_A", "lora_B", "lora_down", "lora_up"]),
    (Category::Sae, &["W_enc", "w_enc", "encoder.weight", "direction."]),
    (Category::Diffusers, &["down_blocks.", "single_transformer_blocks.", "diffusion_model.", "time_embedding."]),
    (Category::Asr, &["decoder.layers.0.encoder_attn.k_proj.weight"]),
    (Category::AudioEncoder, &["feature_extractor.conv_layers.", "feature_projection."]),
    (
        Category::Transformers,
        &["lm_head.", "embed_tokens.", "transformer.h.", "wte.", "embed_in.", "backbone.embeddings."],
    ),
    (Category::Embedding, &["encoder.layer.0.attention.self.query", "embeddings.word_embeddings"]),
    (Category::VisionEncoder, &["patch_embed", "vision_model.encoder.", "visual.transformer."]),
];

/// The category of a directory's safetensors files.
pub(crate) fn category(listing: &Listing) -> Category {
    /// A few shards are enough, because shards of one model are alike.
    const MAX_FILES: usize = 4;
    let mut seen = [false; TYPICAL_NAMES.len()];
    let mut speech = false;
    for name in listing.files_with_suffix(".safetensors").take(MAX_FILES) {
        // Skip a damaged file; the others may be enough.
        let _ = header::scan(&listing.dir.join(name), &mut |tensor| {
            for (matched, (category, parts)) in seen.iter_mut().zip(TYPICAL_NAMES) {
                // The names of autoencoders must match from the start; inside longer names they
                // mean other things.
                let is_sae = *category == Category::Sae;
                *matched |= parts
                    .iter()
                    .any(|part| if is_sae { tensor.name.starts_with(part) } else { tensor.name.contains(part) });
            }
            speech |= tensor.name.contains("encoder.conv1.");
        });
    }
    // Translation models also have cross-attention; only ASR has the audio convolution.
    let first =
        TYPICAL_NAMES.iter().zip(seen).find(|((category, _), seen)| *seen && (*category != Category::Asr || speech));
    first.map_or(Category::Unknown, |((category, _), _)| *category)
}
