//! Decoders of fairseq style: the decoder halves of BART, mBART, Pegasus, Blenderbot, Marian, TrOCR
//! and Whisper, used as causal language models; XGLM and BioGPT.

use super::{Family, activation};
use crate::config::Config;
use crate::error::Result;
use crate::names::Names;
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{AbsolutePositions, Attention, Dense, Embedding, Head, Layer, Mlp, Modules, Norm};
use serde_json::json;

/// Differences between these decoders.
struct DecoderStyle {
    /// Prefix of the backbone's modules, with a trailing dot.
    prefix: &'static str,
    /// Module of the unembedding.
    head: &'static str,
    /// Pre-norms and a final norm; otherwise post-residual norms.
    pre_norm: bool,
    /// Norm on the embeddings.
    embedding_norm: bool,
    /// Offset added to the position.
    offset: usize,
    /// Positions are sinusoidal instead of a stored table.
    sinusoidal: bool,
    /// Default of `scale_embedding`.
    scaled: bool,
}

const BART: DecoderStyle = DecoderStyle {
    prefix: "model.decoder.",
    head: "lm_head",
    pre_norm: false,
    embedding_norm: true,
    offset: 2,
    sinusoidal: false,
    scaled: false,
};

/// BART's decoder: post-residual norms, learned positions with an offset of 2.
pub(super) fn bart(config: &Config) -> Result<Family> {
    decoder(config, BART)
}

/// mBART's decoder: pre-norms.
pub(super) fn mbart(config: &Config) -> Result<Family> {
    decoder(config, DecoderStyle { pre_norm: true, ..BART })
}

/// Pegasus' decoder: pre-norms, a stored table of sinusoidal positions.
pub(super) fn pegasus(config: &Config) -> Result<Family> {
    decoder(config, BLENDERBOT)
}

const BLENDERBOT: DecoderStyle = DecoderStyle { pre_norm: true, embedding_norm: false, offset: 0, ..BART };

/// Blenderbot's decoder: pre-norms.
pub(super) fn blenderbot(config: &Config) -> Result<Family> {
    decoder(&config.with_defaults([("max_position_embeddings", json!(128))]), BLENDERBOT)
}

/// Marian's decoder: post-residual norms, a stored table of sinusoidal positions.
pub(super) fn marian(config: &Config) -> Result<Family> {
    let vocab = config.size_maybe("decoder_vocab_size")?;
    let config = vocab.map_or_else(|| config.clone(), |vocab| config.with("vocab_size", vocab.into()));
    decoder(&config, DecoderStyle { embedding_norm: false, offset: 0, ..BART })
}

/// TrOCR's decoder: learned or sinusoidal positions, optional norm on the embeddings.
pub(super) fn trocr(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("max_position_embeddings", json!(512))]);
    let sinusoidal = !config.flag_or("use_learned_position_embeddings", true)?;
    // Sinusoidal positions start at `pad_token_id + 1`.
    let offset = if sinusoidal { config.size_or("pad_token_id", 1)? + 1 } else { 2 };
    let embedding_norm = config.flag_or("layernorm_embedding", true)?;
    decoder(config, DecoderStyle { head: "output_projection", embedding_norm, offset, sinusoidal, ..BART })
}

/// Whisper's decoder: pre-norms, no biases on keys.
pub(super) fn whisper(config: &Config) -> Result<Family> {
    let positions = config.size_or("max_target_positions", 448)?;
    // transformers ignores Whisper's `scale_embedding`.
    let config = config.with("max_position_embeddings", positions.into()).with("scale_embedding", false.into());
    let style = DecoderStyle { head: "proj_out", pre_norm: true, embedding_norm: false, offset: 0, ..BART };
    let mut family = decoder(&config, style)?;
    family.each_attention(|a| a.no_key_bias = true);
    Ok(family)
}

/// XGLM: sinusoidal positions, scaled embeddings, pre-norms.
pub(super) fn xglm(config: &Config) -> Result<Family> {
    let keys = [
        ("decoder_layers", "num_layers"),
        ("decoder_attention_heads", "attention_heads"),
        ("decoder_ffn_dim", "ffn_dim"),
    ];
    let config = &config.with_defaults([("max_position_embeddings", json!(2048))]);
    let style = DecoderStyle {
        prefix: "model.",
        pre_norm: true,
        embedding_norm: false,
        sinusoidal: true,
        scaled: true,
        ..BART
    };
    decoder(&rename_keys(config, &keys)?, style)
}

/// BioGPT: learned positions, scaled embeddings, pre-norms.
pub(super) fn biogpt(config: &Config) -> Result<Family> {
    let keys = [
        ("d_model", "hidden_size"),
        ("decoder_layers", "num_hidden_layers"),
        ("decoder_attention_heads", "num_attention_heads"),
        ("decoder_ffn_dim", "intermediate_size"),
    ];
    let config = rename_keys(config, &keys)?;
    let config = config.with("activation_function", config.text("hidden_act").unwrap_or("gelu").into());
    let style = DecoderStyle {
        prefix: "biogpt.",
        head: "output_projection",
        pre_norm: true,
        embedding_norm: false,
        scaled: true,
        ..BART
    };
    decoder(&config, style)
}

/// Returns the configuration with each key `theirs` copied to `ours`.
fn rename_keys(config: &Config, keys: &[(&str, &str)]) -> Result<Config> {
    let mut renamed = config.clone();
    for (ours, theirs) in keys {
        renamed = renamed.with(ours, config.size(theirs)?.into());
    }
    Ok(renamed)
}

fn decoder(config: &Config, style: DecoderStyle) -> Result<Family> {
    let (width, depth, heads) =
        (config.size("d_model")?, config.size("decoder_layers")?, config.size("decoder_attention_heads")?);
    let positions = config.size_or("max_position_embeddings", 1024)?;
    let norm = Norm::layer(1e-5);
    let attention =
        Attention { qkv_bias: true, out_bias: true, ..Attention::plain(heads, heads, width / heads.max(1)) };
    let activation = activation(config, "activation_function", "gelu")?;
    let mlp = Dense::plain(config.size("decoder_ffn_dim")?, activation).with_bias(true);
    let mut layer = Layer::pre_norm(norm, attention, Mlp::Dense(mlp));
    if !style.pre_norm {
        (layer.attn_post_residual_norm, layer.mlp_post_residual_norm) = (layer.attn_norm.take(), layer.mlp_norm.take());
    }
    let scaled = config.flag_or("scale_embedding", style.scaled)?;
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: Some(positions),
        embedding: Embedding {
            scale: scaled.then(|| (width as f32).sqrt()),
            positions: Some(if style.sinusoidal {
                AbsolutePositions::Sinusoidal { frequencies: sinusoids(width), offset: style.offset }
            } else {
                AbsolutePositions::Learned { rows: positions + style.offset, offset: style.offset }
            }),
            norm: style.embedding_norm.then_some(norm),
            ..Embedding::default()
        },
        layers: vec![layer; depth],
        final_norm: style.pre_norm.then_some(norm),
        head: Head { tied: config.flag_or("tie_word_embeddings", true)?, ..Head::default() },
        ropes: vec![],
        modules: Modules {
            layers: format!("{}layers", style.prefix),
            attention: Some("self_attn".into()),
            mlp: None,
            // With scaling, the module's output is not the `embed` site.
            embedding: (!scaled).then(|| format!("{}embed_tokens", style.prefix)),
            final_norm: Some(format!("{}layer_norm", style.prefix)),
            head: Some(style.head.into()),
        },
    };
    // The stored names are the same for pre-norms and post-residual norms.
    let norm_module = if style.pre_norm { "norm" } else { "stream_norm" };
    let mut names = Names::new(&[style.prefix, "decoder.", ""])
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
            (&format!("layers.{{l}}.attn.{norm_module}"), "layers.{l}.self_attn_layer_norm"),
            (&format!("layers.{{l}}.mlp.{norm_module}"), "layers.{l}.final_layer_norm"),
            ("final_norm", "layer_norm"),
        ])
        // Encoder-decoder checkpoints share one embedding.
        .without_prefix("embed", "model.shared")
        .without_prefix("embed", "shared")
        .without_prefix("head", style.head)
        .without_prefix("head", "lm_head")
        .ignoring(&["final_logits_bias", "decoder.version", "shared.weight", "decoder.embed_tokens.weight"])
        .ignoring(&["embed_positions._float_tensor", "embed_positions.weights"]);
    // The encoder and the cross-attention are not used in a language model.
    names.ignored_prefixes = vec!["model.encoder.", "encoder."];
    names.ignored_infixes = vec![".encoder_attn.", ".encoder_attn_layer_norm."];
    Ok(Family { architecture, names })
}

/// Frequencies of sinusoidal positions, from 1 down to 1e-4.
fn sinusoids(width: usize) -> Vec<f32> {
    let half = width / 2;
    let step = 10_000f32.ln() / (half.max(2) - 1) as f32;
    (0..half).map(|i| (-step * i as f32).exp()).collect()
}
