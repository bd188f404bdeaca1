//! Helpers for families with experts: replacing dense MLPs by experts, and the names of their
//! weights.

use super::Family;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::names::{Layout, Names, StoredPart};
use pellucid_engine::architecture::{Dense, ExpertGroups, ExpertWeights, Experts, Mlp, Routing, Scores, Shared};

/// A mixture of experts that replaces the dense MLPs of a family. The experts are like these, with
/// another width and without biases.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mixture {
    /// Number of experts.
    pub count: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Hidden width of each expert.
    pub width: usize,
    /// Scores and weights of the experts.
    pub routing: Routing,
    /// Hidden width of the shared expert, which all tokens use; 0 if there is none.
    pub shared_width: usize,
}

impl Mixture {
    /// Replaces the dense MLP of every layer.
    pub(super) fn apply_to_all_layers(self, family: &mut Family) {
        let sparse = vec![true; family.architecture.layers.len()];
        self.apply_to(family, &sparse);
    }

    /// Replaces the dense MLPs of the layers that `sparse` marks, and adds the names that most
    /// families use.
    pub(super) fn apply_to(self, family: &mut Family, sparse: &[bool]) {
        for (layer, _) in family.architecture.layers.iter_mut().zip(sparse).filter(|(_, sparse)| **sparse) {
            if let Some(Mlp::Dense(dense)) = layer.mlp {
                let expert = Dense { width: self.width, ..dense.with_bias(false) };
                let shared = Shared { mlp: Dense { width: self.shared_width, ..dense }, gated: false };
                layer.mlp = Some(Mlp::Experts(Experts {
                    shared: (self.shared_width > 0).then_some(shared),
                    ..Experts::new(self.count, self.top_k, expert, self.routing)
                }));
            }
        }
        let names = std::mem::take(&mut family.names);
        family.names = shared_names(self.names(names, "layers.{l}.mlp"), &["mlp.shared_experts"]);
    }

    /// Adds the names of experts stored one by one, or all of a layer as two tensors.
    fn names(self, names: Names, at: &str) -> Names {
        let parts = ["gate", "up", "down"].map(|part| (part, format!("{part}_proj")));
        let names = self.per_expert_names(names, at, &parts);
        self.fused_names(
            names,
            &format!("{at}.experts.gate_up_proj"),
            &format!("{at}.experts.down_proj"),
            Layout::OutIn,
            NameSuffix::None,
        )
    }

    /// Replaces the names by Mixtral's: `w1` (gate), `w3` (up), `w2` (down).
    pub(super) fn mixtral_names(self, names: Names) -> Names {
        let numbers = [("gate", "w1"), ("up", "w3"), ("down", "w2")].map(|(part, stored)| (part, stored.into()));
        let names = self.per_expert_names(without_experts(names), "layers.{l}.block_sparse_moe", &numbers);
        let at = "layers.{l}.mlp.experts";
        self.fused_names(
            names,
            &format!("{at}.gate_up_proj"),
            &format!("{at}.down_proj"),
            Layout::OutIn,
            NameSuffix::None,
        )
        .with(&[("layers.{l}.mlp.router", "layers.{l}.mlp.gate")])
    }

    fn per_expert_names(self, names: Names, at: &str, parts: &[(&str, String)]) -> Names {
        let names = names.replacing("layers.{l}.mlp.router", &format!("{at}.gate"));
        parts.iter().fold(names, |names, (part, stored)| {
            let module = expert(part);
            let names = names.with(&[(&module, format!("{at}.experts.{{e}}.{stored}"))]);
            // GGUF files stack the experts of a layer.
            names.with_part(&module, &format!("{at}.experts.{part}"), StoredPart::default().stacked(self.count))
        })
    }

    /// Adds the names of experts stored as two tensors per layer: `gate_up`, with the rows of gate
    /// before those of up, and `down`.
    pub(super) fn fused_names(
        self,
        names: Names,
        gate_up: &str,
        down: &str,
        layout: Layout,
        suffix: NameSuffix,
    ) -> Names {
        let half = |start: usize| StoredPart::rows(start, 2 * self.width).stacked(self.count);
        let parts = [
            ("gate", gate_up, half(0)),
            ("up", gate_up, half(self.width)),
            ("down", down, StoredPart::default().stacked(self.count)),
        ];
        parts.into_iter().fold(names, |names, (part, stored, rows)| match (suffix, layout) {
            (NameSuffix::None, _) => names.with_bare_part(&expert(part), stored, rows, layout),
            (NameSuffix::Weight, Layout::OutIn) => names.with_part(&expert(part), stored, rows),
            (NameSuffix::Weight, Layout::InOut) => names.with_transposed_part(&expert(part), stored, rows),
        })
    }
}

/// Suffix of a stored tensor's name.
#[derive(Clone, Copy, Debug)]
pub(super) enum NameSuffix {
    /// `.weight`, as modules have it.
    Weight,
    /// None: the name is that of a bare parameter.
    None,
}

/// The engine's module of a projection (`gate`, `up`, `down`) of an expert.
pub(super) fn expert(part: &str) -> String {
    format!("layers.{{l}}.mlp.experts.{{e}}.{part}")
}

/// Removes the names of the experts, for families with other names.
pub(super) fn without_experts(names: Names) -> Names {
    ["gate", "up", "down"].into_iter().fold(names, |names, part| names.removing(&[&expert(part)]))
}

/// Replaces the names of the shared expert. The first of `stored` that a checkpoint has is used.
pub(super) fn shared_names(names: Names, stored: &[&str]) -> Names {
    ["gate", "up", "down"].into_iter().fold(names, |names, part| {
        let module = format!("layers.{{l}}.mlp.shared.{part}");
        stored.iter().fold(names.removing(&[&module]), |names, stored| {
            names.with(&[(&module, format!("layers.{{l}}.{stored}.{part}_proj"))])
        })
    })
}

/// Replaces the names of the router's correction bias. The first of `stored` that a checkpoint has
/// is used.
pub(super) fn correction_names(names: Names, stored: &[&str]) -> Names {
    let module = "layers.{l}.mlp.correction";
    stored
        .iter()
        .fold(names.removing(&[module]), |names, stored| names.with_bare(&[(module, format!("layers.{{l}}.{stored}"))]))
}

/// DeepSeek V3's routing: sigmoid scores, a correction bias for the selection, and expert groups
/// ranked by their two best experts.
pub(super) fn sigmoid_routing(config: &Config, normalize: bool, scale: f32) -> Result<Routing> {
    let weights =
        if normalize { ExpertWeights::SumNormalized { eps: 1e-20, min_divisor: 0.0 } } else { ExpertWeights::Scores };
    if config.text("scoring_func") == Some("softmax") {
        return Err(Error::unsupported(
            format!("`scoring_func` is `softmax`, which `{}` does not compute", config.model_type()?),
            "use a model with sigmoid scores",
        ));
    }
    let routing = Routing { correction: true, scale, ..Routing::new(Scores::Sigmoid, weights) };
    Ok(Routing { groups: groups(config, true)?, ..routing })
}

/// Reads the expert groups (`n_group`, `topk_group`); `None` for a single group.
pub(super) fn groups(config: &Config, by_top_two: bool) -> Result<Option<ExpertGroups>> {
    let (count, top_groups) = (config.size_or("n_group", 1)?, config.size_or("topk_group", 1)?);
    Ok((count != 1).then_some(ExpertGroups { count, top_groups, by_top_two }))
}

/// Returns which layers have experts: by `mlp_layer_types` if present, else by the family's rule.
pub(super) fn sparse_layers(config: &Config, family: &Family, rule: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
    let layers = family.architecture.layers.len();
    let Some(types) = config.texts("mlp_layer_types")? else { return Ok((0..layers).map(rule).collect()) };
    if types.len() != layers {
        return Err(config.bad("mlp_layer_types", "does not have one entry per layer"));
    }
    types
        .into_iter()
        .map(|kind| parse_choice(config, "mlp_layer_types", kind, &["dense", "sparse"]).map(|i| i == 1))
        .collect()
}

/// Returns the index of a key's value in the list of supported values.
pub(super) fn parse_choice(config: &Config, key: &str, name: &str, known: &[&str]) -> Result<usize> {
    known.iter().position(|known| *known == name).ok_or_else(|| {
        let family = config.model_type().unwrap_or_default();
        Error::unsupported(
            format!("`{key}` is `{name}`, which is not supported for `{family}`"),
            format!("supported are {}", known.join(", ")),
        )
    })
}

/// Rejects a value other than the only one that is supported.
pub(super) fn require_value(config: &Config, key: &str, only: f32) -> Result<()> {
    match config.number_or(key, only)? {
        given if given == only => Ok(()),
        given => Err(Error::unsupported(
            format!("`{key}` is {given}, but only {only} is supported"),
            "use a model with that value",
        )),
    }
}

/// Ignores the multi-token-prediction layers, which are stored after the model's own.
pub(super) fn ignore_mtp_layers(config: &Config, family: &mut Family) -> Result<()> {
    let (from, count) = (family.architecture.layers.len(), config.size_or("num_nextn_predict_layers", 1)?);
    family.names.mtp_layers = from..from.saturating_add(count);
    Ok(())
}

/// Sets a per-head QK norm, of the same kind as the pre-norm of attention.
pub(super) fn set_qk_norm_per_head(family: &mut Family) {
    family.each(|layer| {
        if let Some(a) = &mut layer.attention {
            a.qk_norm = layer.attn_norm;
        }
    });
}
