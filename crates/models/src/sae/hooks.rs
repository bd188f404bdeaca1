//! Sites of the hook points that settings files name: TransformerLens hooks (`blocks.8.hook_z`),
//! Hugging Face modules (`model.layers.8.mlp`) and the names of dictionary_learning
//! (`resid_post_layer_8`).

use pellucid_engine::point::Scope;
use pellucid_engine::{Point, Site};

/// Side of a module that a hook reads, if the name does not say.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ModuleSide {
    Input,
    Output,
}

/// Returns the site of a hook point. `base_model` decides names that mean different activations in
/// different families. `None` if the hook is not a site of Pellucid.
pub(super) fn site_of(hook: &str, base_model: Option<&str>) -> Option<Site> {
    transformer_lens(hook)
        .or_else(|| dictionary_learning(hook))
        .or_else(|| module(hook, ModuleSide::Output, base_model))
}

/// TransformerLens' name, with the layer in it.
fn transformer_lens(hook: &str) -> Option<Site> {
    if let Some((layer, name)) = hook.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')) {
        let layer: usize = layer.parse().ok()?;
        // Copies of the residual stream before the norm, made for one reader.
        let point = match name {
            "hook_mlp_in" => Some(Point::ResidMid),
            "hook_attn_in" => Some(Point::ResidPre),
            _ => named(&format!("blocks.{{}}.{name}")),
        };
        return point.map(|point| Site::layer(layer, point));
    }
    named(hook).filter(|point| point.info().scope == Scope::Model).map(Site::model)
}

fn named(form: &str) -> Option<Point> {
    Point::ALL.into_iter().find(|point| point.info().transformer_lens == Some(form))
}

/// `resid_post_layer_3`, `mlp_out_layer3`, `attention_out_layer_3`: outputs of the block, its MLP
/// or its attention.
fn dictionary_learning(hook: &str) -> Option<Site> {
    let (name, layer) = hook.rsplit_once("layer")?;
    let layer: usize = layer.trim_start_matches('_').parse().ok()?;
    let point = match name.trim_end_matches('_') {
        "resid_post" | "resid_out" | "resid" => Point::ResidPost,
        "resid_pre" => Point::ResidPre,
        "mlp_out" | "mlp" => Point::MlpOut,
        "attention_out" | "attn_out" | "attn" | "attention" => Point::AttnOut,
        _ => return None,
    };
    Some(Site::layer(layer, point))
}

/// A Hugging Face module path, with or without `.input` or `.output` at its end.
pub(super) fn module(path: &str, default: ModuleSide, base_model: Option<&str>) -> Option<Site> {
    let (path, side) = match (path.strip_suffix(".input"), path.strip_suffix(".output")) {
        (Some(path), _) => (path, ModuleSide::Input),
        (_, Some(path)) => (path, ModuleSide::Output),
        _ => (path, default),
    };
    let parts: Vec<&str> = path.split('.').collect();
    let Some(at) = parts.iter().position(|part| part.parse::<usize>().is_ok()) else {
        let embedding = ["embed_tokens", "wte", "embed_in", "word_embeddings"];
        let whole = parts.last().is_some_and(|last| embedding.contains(last)) && side == ModuleSide::Output;
        return whole.then(|| Site::model(Point::Embed));
    };
    let layer: usize = parts[at].parse().ok()?;
    let gemma = base_model.is_some_and(|name| name.to_lowercase().contains("gemma"));
    let point = match (&parts[at + 1..], side) {
        ([], ModuleSide::Input) => Point::ResidPre,
        ([], ModuleSide::Output) => Point::ResidPost,
        (["mlp" | "feed_forward" | "block_sparse_moe"], ModuleSide::Input) => Point::MlpIn,
        (["mlp" | "feed_forward" | "block_sparse_moe"], ModuleSide::Output) => Point::MlpOut,
        (["self_attn" | "attn" | "attention"], ModuleSide::Input) => Point::AttnIn,
        (["self_attn" | "attn" | "attention"], ModuleSide::Output) => Point::AttnOut,
        (["self_attn" | "attn" | "attention", "o_proj" | "c_proj" | "dense" | "out_proj"], ModuleSide::Input) => {
            Point::Z
        }
        (["self_attn" | "attn" | "attention", "o_proj" | "c_proj" | "dense" | "out_proj"], ModuleSide::Output) => {
            Point::AttnOut
        }
        (["mlp", "act_fn" | "act"], ModuleSide::Output) => Point::MlpAct,
        (["mlp", "down_proj" | "c_proj" | "dense_4h_to_h"], ModuleSide::Input) => Point::MlpAct,
        (["input_layernorm" | "ln_1"], ModuleSide::Input) => Point::ResidPre,
        (["input_layernorm" | "ln_1"], ModuleSide::Output) => Point::AttnIn,
        (["ln_2"], ModuleSide::Output) => Point::MlpIn,
        // In Gemma 2 and 3 this norm follows attention; elsewhere it precedes the MLP.
        (["post_attention_layernorm"], ModuleSide::Output) if gemma => Point::AttnOutPost,
        (["post_attention_layernorm"], ModuleSide::Output) => Point::MlpIn,
        (["post_attention_layernorm" | "ln_2"], ModuleSide::Input) if !gemma => Point::ResidMid,
        (["pre_feedforward_layernorm"], ModuleSide::Input) => Point::ResidMid,
        (["pre_feedforward_layernorm"], ModuleSide::Output) => Point::MlpIn,
        (["post_feedforward_layernorm"], ModuleSide::Input) => Point::MlpOut,
        (["post_feedforward_layernorm"], ModuleSide::Output) => Point::MlpOutPost,
        _ => return None,
    };
    Some(Site::layer(layer, point))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hook_names_of_every_library_become_sites() {
        let gemma = Some("google/gemma-3-1b-pt");
        let cases: &[(&str, Option<&str>, &str)] = &[
            ("blocks.8.hook_resid_pre", None, "layers.8.resid_pre"),
            ("blocks.9.attn.hook_z", None, "layers.9.z"),
            ("blocks.3.ln2.hook_normalized", None, "layers.3.mlp_normed"),
            ("blocks.3.mlp.hook_in", None, "layers.3.mlp_in"),
            ("blocks.3.hook_mlp_out", None, "layers.3.mlp_out_post"),
            ("blocks.3.mlp.hook_out", None, "layers.3.mlp_out"),
            ("blocks.3.hook_mlp_in", None, "layers.3.resid_mid"),
            ("hook_embed", None, "embed"),
            ("layers.5.mlp", None, "layers.5.mlp_out"),
            ("model.layers.8", None, "layers.8.resid_post"),
            ("transformer.h.2.output", None, "layers.2.resid_post"),
            ("gpt_neox.layers.4.attention", None, "layers.4.attn_out"),
            ("model.layers.7.output", gemma, "layers.7.resid_post"),
            ("model.layers.7.self_attn.o_proj.input", gemma, "layers.7.z"),
            ("model.layers.7.pre_feedforward_layernorm.output", gemma, "layers.7.mlp_in"),
            ("model.layers.7.post_feedforward_layernorm.output", gemma, "layers.7.mlp_out_post"),
            ("model.layers.7.post_attention_layernorm.output", gemma, "layers.7.attn_out_post"),
            ("model.layers.7.post_attention_layernorm.output", Some("llama"), "layers.7.mlp_in"),
            ("resid_post_layer_3", None, "layers.3.resid_post"),
            ("mlp_out_layer4", None, "layers.4.mlp_out"),
            ("embed_tokens", None, "embed"),
        ];
        for (hook, base, site) in cases {
            assert_eq!(site_of(hook, *base).map(|site| site.to_string()).as_deref(), Some(*site), "{hook}");
        }
        for unknown in ["", "blocks.x.hook_z", "blocks.1.hook_q", "layers.3.lora", "layer", "nowhere"] {
            assert_eq!(site_of(unknown, None), None, "{unknown}");
        }
        assert_eq!(
            module("layers.5.mlp", ModuleSide::Input, None).map(|site| site.to_string()).as_deref(),
            Some("layers.5.mlp_in")
        );
    }
}
