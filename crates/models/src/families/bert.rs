//! Encoders used as causal language models (`is_decoder`): BERT, RoBERTa, XLM-RoBERTa, CamemBERT,
//! ELECTRA; and the ModernBERT decoder.

use super::llama::set_sliding_window;
use super::{Family, activation};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::names::{Names, StoredPart};
use crate::rope::{rope_parameters_by_layer_type, ropes_by_layer_type};
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{
    AbsolutePositions, Activation, Attention, Dense, Embedding, Head, HeadTransform, Layer, Mlp, Modules, Norm,
};

/// BERT: post-residual norms, token type embeddings, a head with an additional dense layer.
pub(super) fn bert(config: &Config) -> Result<Family> {
    let mut family = encoder(config, "bert.", 0)?;
    if let Some(transform) = &mut family.architecture.head.transform {
        transform.activation = activation(config, "hidden_act", "gelu")?;
    }
    family.names = family
        .names
        .without_prefix("head.transform", "cls.predictions.transform.dense")
        .without_prefix("head.norm", "cls.predictions.transform.LayerNorm")
        .without_prefix("head", "cls.predictions.decoder")
        .bare_without_prefix("head.bias", "cls.predictions.bias")
        .ignoring(&["cls.predictions.decoder.bias"]);
    family.names.ignored_prefixes.push("cls.seq_relationship.");
    Ok(family)
}

/// RoBERTa, XLM-RoBERTa and CamemBERT: BERT with positions that start at `pad_token_id + 1`.
pub(super) fn roberta(config: &Config) -> Result<Family> {
    let mut family = encoder(config, "roberta.", config.size_or("pad_token_id", 1)? + 1)?;
    family.names = family
        .names
        .without_prefix("head.transform", "lm_head.dense")
        .without_prefix("head.norm", "lm_head.layer_norm")
        .without_prefix("head", "lm_head.decoder")
        .bare_without_prefix("head.bias", "lm_head.bias")
        .ignoring(&["lm_head.decoder.bias"]);
    Ok(family)
}

/// ELECTRA's generator: input and output embeddings narrower than the residual stream.
pub(super) fn electra(config: &Config) -> Result<Family> {
    let width = config.size("hidden_size")?;
    let table = config.size_or("embedding_size", 128)?;
    let mut family = encoder(config, "electra.", 0)?;
    let narrow = (table != width).then_some(table);
    (family.architecture.embedding.table_width, family.architecture.head.table_width) = (narrow, narrow);
    family.architecture.embedding.projected_last = true;
    family.names = family
        .names
        .with(&[("embed.project", "embeddings_project")])
        .without_prefix("head.transform", "generator_predictions.dense")
        .without_prefix("head.norm", "generator_predictions.LayerNorm")
        .without_prefix("head", "generator_lm_head");
    Ok(family)
}

fn encoder(config: &Config, backbone: &'static str, offset: usize) -> Result<Family> {
    if !config.flag_or("is_decoder", false)? {
        return Err(Error::unsupported(
            "this model attends in both directions (`is_decoder` is not set), so it is not a causal language model",
            "only models that predict the next token can run; set `is_decoder` in config.json if this one does",
        ));
    }
    if config.flag_or("add_cross_attention", false)? {
        return Err(Error::unsupported(
            "`add_cross_attention` needs an encoder, which a language model does not have",
            "use a model without it",
        ));
    }
    let (width, depth, heads) =
        (config.size("hidden_size")?, config.size("num_hidden_layers")?, config.size("num_attention_heads")?);
    let rows = config.size_or("max_position_embeddings", 512)?;
    let norm = Norm::layer(config.number_or("layer_norm_eps", 1e-12)?);
    let attention =
        Attention { qkv_bias: true, out_bias: true, ..Attention::plain(heads, heads, width / heads.max(1)) };
    let mlp = Dense::plain(config.size("intermediate_size")?, activation(config, "hidden_act", "gelu")?);
    let mut layer = Layer::pre_norm(norm, attention, Mlp::Dense(mlp.with_bias(true)));
    (layer.attn_post_residual_norm, layer.mlp_post_residual_norm) = (layer.attn_norm.take(), layer.mlp_norm.take());
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: Some(rows.saturating_sub(offset)),
        embedding: Embedding {
            positions: Some(AbsolutePositions::Learned { rows, offset }),
            segments: Some(config.size_or("type_vocab_size", 2)?),
            norm: Some(norm),
            ..Embedding::default()
        },
        layers: vec![layer; depth],
        final_norm: None,
        head: Head {
            tied: config.flag_or("tie_word_embeddings", true)?,
            bias: true,
            transform: Some(HeadTransform { bias: true, activation: Activation::Gelu, norm }),
            ..Head::default()
        },
        ropes: vec![],
        modules: Modules {
            layers: format!("{backbone}encoder.layer"),
            embedding: Some(format!("{backbone}embeddings.word_embeddings")),
            ..Modules::default()
        },
    };
    let at = |name: &str| format!("encoder.layer.{{l}}.{name}");
    let mut names = Names::new(&[backbone, ""])
        .with(&[
            ("embed", "embeddings.word_embeddings"),
            ("pos_embed", "embeddings.position_embeddings"),
            ("segment_embed", "embeddings.token_type_embeddings"),
            ("embed.norm", "embeddings.LayerNorm"),
        ])
        .with(&[
            ("layers.{l}.attn.q", at("attention.self.query")),
            ("layers.{l}.attn.k", at("attention.self.key")),
            ("layers.{l}.attn.v", at("attention.self.value")),
            ("layers.{l}.attn.out", at("attention.output.dense")),
            ("layers.{l}.attn.stream_norm", at("attention.output.LayerNorm")),
            ("layers.{l}.mlp.up", at("intermediate.dense")),
            ("layers.{l}.mlp.down", at("output.dense")),
            ("layers.{l}.mlp.stream_norm", at("output.LayerNorm")),
        ])
        .ignoring(&["embeddings.position_ids", "embeddings.token_type_ids"]);
    names.ignored_prefixes = vec!["bert.pooler.", "roberta.pooler.", "electra.pooler.", "pooler."];
    Ok(Family { architecture, names })
}

/// ModernBERT decoder: rotary positions by layer type, gated MLPs, norms without biases, no norm
/// before the first attention.
pub(super) fn modernbert_decoder(config: &Config) -> Result<Family> {
    let (width, depth, heads) =
        (config.size("hidden_size")?, config.size("num_hidden_layers")?, config.size("num_attention_heads")?);
    let (head_dim, neurons) = (width / heads.max(1), config.size("intermediate_size")?);
    let norm = Norm { bias: config.flag_or("norm_bias", false)?, ..Norm::layer(config.number_or("norm_eps", 1e-5)?) };
    let (bias, mlp_bias) = (config.flag_or("attention_bias", false)?, config.flag_or("mlp_bias", false)?);
    let attention = Attention { qkv_bias: bias, out_bias: bias, ..Attention::plain(heads, heads, head_dim) };
    let mlp = Dense::gated(neurons, activation(config, "hidden_activation", "gelu")?).with_bias(mlp_bias);
    let mut layers = vec![Layer::pre_norm(norm, attention, Mlp::Dense(mlp)); depth];
    if let Some(first) = layers.first_mut() {
        first.attn_norm = None;
    }
    let rotary =
        rope_parameters_by_layer_type(config, ("global_rope_theta", 160_000.0), ("local_rope_theta", 10_000.0))?;
    let transform = HeadTransform {
        bias: config.flag_or("classifier_bias", false)?,
        activation: activation(config, "classifier_activation", "gelu")?,
        norm,
    };
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: config.size_maybe("max_position_embeddings")?,
        embedding: Embedding { norm: Some(norm), ..Embedding::default() },
        layers,
        final_norm: Some(norm),
        head: Head {
            tied: config.flag_or("tie_word_embeddings", true)?,
            bias: config.flag_or("decoder_bias", true)?,
            transform: Some(transform),
            ..Head::default()
        },
        ropes: ropes_by_layer_type(&rotary, head_dim)?,
        modules: Modules {
            layers: "model.layers".into(),
            attention: Some("attn".into()),
            mlp: Some("mlp".into()),
            embedding: Some("model.embeddings.tok_embeddings".into()),
            final_norm: Some("model.final_norm".into()),
            head: Some("decoder".into()),
        },
    };
    let names = Names::new(&["model.", ""])
        .with(&[
            ("embed", "embeddings.tok_embeddings"),
            ("embed.norm", "embeddings.norm"),
            ("final_norm", "final_norm"),
            ("layers.{l}.attn.norm", "layers.{l}.attn_norm"),
            ("layers.{l}.attn.q", "layers.{l}.attn.q_proj"),
            ("layers.{l}.attn.k", "layers.{l}.attn.k_proj"),
            ("layers.{l}.attn.v", "layers.{l}.attn.v_proj"),
            ("layers.{l}.attn.out", "layers.{l}.attn.Wo"),
            ("layers.{l}.mlp.norm", "layers.{l}.mlp_norm"),
            ("layers.{l}.mlp.down", "layers.{l}.mlp.Wo"),
        ])
        .with_part("layers.{l}.mlp.gate", "layers.{l}.mlp.Wi", StoredPart::rows(0, 2 * neurons))
        .with_part("layers.{l}.mlp.up", "layers.{l}.mlp.Wi", StoredPart::rows(neurons, 2 * neurons))
        .without_prefix("head.transform", "lm_head.dense")
        .without_prefix("head.norm", "lm_head.norm")
        .without_prefix("head", "decoder");
    let mut family = Family { architecture, names };
    let window = config.size_or("local_attention", 128)? / 2;
    let every = config.size_or("global_attn_every_n_layers", 3)?.max(1);
    set_sliding_window(config, &mut family, Some(window), |layer| layer % every != 0)?;
    family.each_attention(|a| a.rope = Some(usize::from(a.window.is_some())));
    Ok(family)
}
