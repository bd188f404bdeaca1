//! What weights are of, by the names of their tensors: the last resort, where no configuration says it.

use super::report::Category;
use crate::header;
use crate::listing::Listing;

/// Parts of names that only such a thing has, in the order in which they are looked for.
const TELLING: &[(Category, &[&str])] = &[
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
    /// Shards of one model are alike; a few of them tell.
    const MOST: usize = 4;
    let mut seen = [false; TELLING.len()];
    let mut speech = false;
    for name in listing.ending(".safetensors").take(MOST) {
        // A damaged file tells nothing, and the others still may.
        let _ = header::scan(&listing.dir.join(name), &mut |tensor| {
            for (found, (category, parts)) in seen.iter_mut().zip(TELLING) {
                // An autoencoder's names are whole; within longer ones they mean other things.
                let whole = *category == Category::Sae;
                *found |= parts
                    .iter()
                    .any(|part| if whole { tensor.name.starts_with(part) } else { tensor.name.contains(part) });
            }
            speech |= tensor.name.contains("encoder.conv1.");
        });
    }
    // Decoders with a memory are also those of translation; the ear tells.
    let found = TELLING.iter().zip(seen).find(|((category, _), seen)| *seen && (*category != Category::Asr || speech));
    found.map_or(Category::Unknown, |((category, _), _)| *category)
}
