//! Decoders in the manner of fairseq: the halves of encoder-decoders that are language models of their own, XGLM and BioGPT.

use super::{Family, activation};
use crate::config::Config;
use crate::error::Result;
use crate::names::Names;
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{AbsolutePositions, Attention, Dense, Embedding, Head, Layer, Mlp, Modules, Norm};
use serde_json::json;

/// What tells these decoders apart.
struct Manner {
    /// The trunk, with a dot.
    trunk: &'static str,
    /// The unembedding.
    head: &'static str,
    /// Norms stand before the sublayers, and one before the head.
    pre_norm: bool,
    /// A norm of the embeddings.
    embedding_norm: bool,
    /// The row or position of position 0.
    offset: usize,
    /// Positions are computed.
    computed: bool,
    /// Whether embeddings are scaled where the configuration does not say.
    scaled: bool,
}

const BART: Manner = Manner {
    trunk: "model.decoder.",
    head: "lm_head",
    pre_norm: false,
    embedding_norm: true,
    offset: 2,
    computed: false,
    scaled: false,
};

/// BART's decoder: norms after the sublayers, learned positions from row two on.
pub(super) fn bart(config: &Config) -> Result<Family> {
    decoder(config, BART)
}

/// mBART's decoder: norms before the sublayers.
pub(super) fn mbart(config: &Config) -> Result<Family> {
    decoder(config, Manner { pre_norm: true, ..BART })
}

/// Pegasus' decoder: norms before the sublayers, a stored table of sines.
pub(super) fn pegasus(config: &Config) -> Result<Family> {
    decoder(config, BLENDERBOT)
}

const BLENDERBOT: Manner = Manner { pre_norm: true, embedding_norm: false, offset: 0, ..BART };

/// Blenderbot's decoder: norms before the sublayers.
pub(super) fn blenderbot(config: &Config) -> Result<Family> {
    decoder(&config.with_defaults([("max_position_embeddings", json!(128))]), BLENDERBOT)
}

/// Marian's decoder: norms after the sublayers, a stored table of sines.
pub(super) fn marian(config: &Config) -> Result<Family> {
    let vocab = config.size_maybe("decoder_vocab_size")?;
    let config = vocab.map_or_else(|| config.clone(), |vocab| config.with("vocab_size", vocab.into()));
    decoder(&config, Manner { embedding_norm: false, offset: 0, ..BART })
}

/// TrOCR's decoder: learned or computed positions, a norm of the embeddings or none.
pub(super) fn trocr(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("max_position_embeddings", json!(512))]);
    let computed = !config.flag_or("use_learned_position_embeddings", true)?;
    // Computed positions begin after the one that padding would have.
    let offset = if computed { config.size_or("pad_token_id", 1)? + 1 } else { 2 };
    let embedding_norm = config.flag_or("layernorm_embedding", true)?;
    decoder(config, Manner { head: "output_projection", embedding_norm, offset, computed, ..BART })
}

/// Whisper's decoder: norms before the sublayers, keys without biases.
pub(super) fn whisper(config: &Config) -> Result<Family> {
    let positions = config.size_or("max_target_positions", 448)?;
    // `scale_embedding` is in its configuration, and nothing reads it.
    let config = config.with("max_position_embeddings", positions.into()).with("scale_embedding", false.into());
    let manner = Manner { head: "proj_out", pre_norm: true, embedding_norm: false, offset: 0, ..BART };
    let mut family = decoder(&config, manner)?;
    family.each_attention(|a| a.unbiased_keys = true);
    Ok(family)
}

/// XGLM: computed positions, scaled embeddings, norms before the sublayers.
pub(super) fn xglm(config: &Config) -> Result<Family> {
    let keys = [
        ("decoder_layers", "num_layers"),
        ("decoder_attention_heads", "attention_heads"),
        ("decoder_ffn_dim", "ffn_dim"),
    ];
    let config = &config.with_defaults([("max_position_embeddings", json!(2048))]);
    let manner =
        Manner { trunk: "model.", pre_norm: true, embedding_norm: false, computed: true, scaled: true, ..BART };
    decoder(&renamed(config, &keys)?, manner)
}

/// BioGPT: learned positions, scaled embeddings, norms before the sublayers.
pub(super) fn biogpt(config: &Config) -> Result<Family> {
    let keys = [
        ("d_model", "hidden_size"),
        ("decoder_layers", "num_hidden_layers"),
        ("decoder_attention_heads", "num_attention_heads"),
        ("decoder_ffn_dim", "intermediate_size"),
    ];
    let config = renamed(config, &keys)?;
    let config = config.with("activation_function", config.text("hidden_act").unwrap_or("gelu").into());
    let manner = Manner {
        trunk: "biogpt.",
        head: "output_projection",
        pre_norm: true,
        embedding_norm: false,
        scaled: true,
        ..BART
    };
    decoder(&config, manner)
}

fn renamed(config: &Config, keys: &[(&str, &str)]) -> Result<Config> {
    let mut renamed = config.clone();
    for (ours, theirs) in keys {
        renamed = renamed.with(ours, config.size(theirs)?.into());
    }
    Ok(renamed)
}

fn decoder(config: &Config, manner: Manner) -> Result<Family> {
    let (width, depth, heads) =
        (config.size("d_model")?, config.size("decoder_layers")?, config.size("decoder_attention_heads")?);
    let positions = config.size_or("max_position_embeddings", 1024)?;
    let norm = Norm::layer(1e-5);
    let attention =
        Attention { qkv_bias: true, out_bias: true, ..Attention::plain(heads, heads, width / heads.max(1)) };
    let activation = activation(config, "activation_function", "gelu")?;
    let mlp = Dense::plain(config.size("decoder_ffn_dim")?, activation).with_bias(true);
    let mut layer = Layer::pre_norm(norm, attention, Mlp::Dense(mlp));
    if !manner.pre_norm {
        (layer.attn_stream_norm, layer.mlp_stream_norm) = (layer.attn_norm.take(), layer.mlp_norm.take());
    }
    let scaled = config.flag_or("scale_embedding", manner.scaled)?;
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: Some(positions),
        embedding: Embedding {
            scale: scaled.then(|| (width as f32).sqrt()),
            positions: Some(if manner.computed {
                AbsolutePositions::Sinusoidal { frequencies: sinusoids(width), offset: manner.offset }
            } else {
                AbsolutePositions::Learned { rows: positions + manner.offset, offset: manner.offset }
            }),
            norm: manner.embedding_norm.then_some(norm),
            ..Embedding::default()
        },
        layers: vec![layer; depth],
        final_norm: manner.pre_norm.then_some(norm),
        head: Head { tied: config.flag_or("tie_word_embeddings", true)?, ..Head::default() },
        ropes: vec![],
        modules: Modules {
            layers: format!("{}layers", manner.trunk),
            attention: Some("self_attn".into()),
            mlp: None,
            // The module may return its rows already scaled.
            embedding: (!scaled).then(|| format!("{}embed_tokens", manner.trunk)),
            final_norm: Some(format!("{}layer_norm", manner.trunk)),
            head: Some(manner.head.into()),
        },
    };
    // The same two norms of a layer, before or after.
    let place = if manner.pre_norm { "norm" } else { "stream_norm" };
    let mut names = Names::new(&[manner.trunk, "decoder.", ""])
        .with(&[
            ("embed", "embed_tokens"),
            ("pos_embed", "embed_positions"),
            ("embed.norm", "layernorm_embedding"),
            ("layers.{l}.attn.q", "layers.{l}.self_attn.q_proj"),
            ("layers.{l}.attn.k", "layers.{l}.self_attn.k_proj"),
            ("layers.{l}.attn.v", "layers.{l}.self_attn.v_proj"),
            ("layers.{l}.attn.out", "layers.{l}.self_attn.out_proj"),
            ("layers.{l}.mlp.up", "layers.{l}.fc1"),
            ("layers.{l}.mlp.down", "layers.{l}.fc2"),
            (&format!("layers.{{l}}.attn.{place}"), "layers.{l}.self_attn_layer_norm"),
            (&format!("layers.{{l}}.mlp.{place}"), "layers.{l}.final_layer_norm"),
            ("final_norm", "layer_norm"),
        ])
        // A whole encoder-decoder keeps one table for both halves.
        .outside("embed", "model.shared")
        .outside("embed", "shared")
        .outside("head", manner.head)
        .outside("head", "lm_head")
        .ignoring(&["final_logits_bias", "decoder.version", "shared.weight", "decoder.embed_tokens.weight"])
        .ignoring(&["embed_positions._float_tensor", "embed_positions.weights"]);
    // Attention to an encoder has nothing to read in a language model.
    names.other_parts = vec!["model.encoder.", "encoder."];
    names.other_places = vec![".encoder_attn.", ".encoder_attn_layer_norm."];
    Ok(Family { architecture, names })
}

/// The frequencies of computed positions, from one down to one in ten thousand.
fn sinusoids(width: usize) -> Vec<f32> {
    let half = width / 2;
    let step = 10_000f32.ln() / (half.max(2) - 1) as f32;
    (0..half).map(|i| (-step * i as f32).exp()).collect()
}
