//! What families with experts share: how experts take the place of dense MLPs, and the names of their weights.

use super::Family;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::names::{Names, Part};
use pellucid_engine::architecture::{Dense, ExpertGroups, ExpertWeights, Experts, Mlp, Routing, Scores, Shared};

/// A mixture of experts that are like the dense MLPs of their family, of another width and without biases.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mixture {
    /// How many experts.
    pub count: usize,
    /// How many a token uses.
    pub chosen: usize,
    /// Neurons of each.
    pub width: usize,
    /// How they are chosen.
    pub routing: Routing,
    /// Neurons of the MLP that every token uses besides; 0 where there is none.
    pub shared: usize,
}

impl Mixture {
    /// Takes the place of the dense MLP of every layer.
    pub(super) fn put_everywhere(self, family: &mut Family) {
        let sparse = vec![true; family.architecture.layers.len()];
        self.put(family, &sparse);
    }

    /// Takes the place of the dense MLPs of the layers that `sparse` marks, under the names that most families share.
    pub(super) fn put(self, family: &mut Family, sparse: &[bool]) {
        for (layer, _) in family.architecture.layers.iter_mut().zip(sparse).filter(|(_, sparse)| **sparse) {
            if let Some(Mlp::Dense(dense)) = layer.mlp {
                let expert = Dense { width: self.width, ..dense.with_bias(false) };
                let shared = Shared { mlp: Dense { width: self.shared, ..dense }, gated: false };
                layer.mlp = Some(Mlp::Experts(Experts {
                    shared: (self.shared > 0).then_some(shared),
                    ..Experts::new(self.count, self.chosen, expert, self.routing)
                }));
            }
        }
        let names = std::mem::take(&mut family.names);
        family.names = shared_names(self.names(names, "layers.{l}.mlp"), &["mlp.shared_experts"]);
    }

    /// Experts one by one, or all of a layer as two tensors.
    fn names(self, names: Names, at: &str) -> Names {
        let parts = ["gate", "up", "down"].map(|part| (part, format!("{part}_proj")));
        let names = self.one_by_one(names, at, &parts);
        self.fused_names(names, &format!("{at}.experts.gate_up_proj"), &format!("{at}.experts.down_proj"), false, true)
    }

    /// Mixtral's names instead: the projections have numbers.
    pub(super) fn numbered_names(self, names: Names) -> Names {
        let numbers = [("gate", "w1"), ("up", "w3"), ("down", "w2")].map(|(part, stored)| (part, stored.into()));
        let names = self.one_by_one(without_experts(names), "layers.{l}.block_sparse_moe", &numbers);
        let at = "layers.{l}.mlp.experts";
        self.fused_names(names, &format!("{at}.gate_up_proj"), &format!("{at}.down_proj"), false, true)
            .with(&[("layers.{l}.mlp.router", "layers.{l}.mlp.gate")])
    }

    fn one_by_one(self, names: Names, at: &str, parts: &[(&str, String)]) -> Names {
        let names = names.replacing("layers.{l}.mlp.router", &format!("{at}.gate"));
        parts.iter().fold(names, |names, (part, stored)| {
            let module = expert(part);
            let names = names.with(&[(&module, format!("{at}.experts.{{e}}.{stored}"))]);
            // GGUF files stack the experts of a layer.
            names.with_part(&module, &format!("{at}.experts.{part}"), Part::stacked(self.count), false)
        })
    }

    /// All experts of a layer as two tensors, gate over up. A `bare` tensor has no `.weight` at the end of its name.
    pub(super) fn fused_names(self, names: Names, gate_up: &str, down: &str, transposed: bool, bare: bool) -> Names {
        let half = |start: usize| Part::rows(start, 2 * self.width).of_stack(self.count);
        let parts =
            [("gate", gate_up, half(0)), ("up", gate_up, half(self.width)), ("down", down, Part::stacked(self.count))];
        parts.into_iter().fold(names, |names, (part, stored, rows)| match bare {
            true => names.with_bare_part(&expert(part), stored, rows, transposed),
            false => names.with_part(&expert(part), stored, rows, transposed),
        })
    }
}

/// The engine's module of a part of an expert.
pub(super) fn expert(part: &str) -> String {
    format!("layers.{{l}}.mlp.experts.{{e}}.{part}")
}

/// The table without the experts' names, for families that have others.
pub(super) fn without_experts(names: Names) -> Names {
    ["gate", "up", "down"].into_iter().fold(names, |names, part| names.without(&[&expert(part)]))
}

/// Where the MLP is that every token uses besides its experts; the first place that a checkpoint has.
pub(super) fn shared_names(names: Names, stored: &[&str]) -> Names {
    ["gate", "up", "down"].into_iter().fold(names, |names, part| {
        let module = format!("layers.{{l}}.mlp.shared.{part}");
        stored.iter().fold(names.without(&[&module]), |names, stored| {
            names.with(&[(&module, format!("layers.{{l}}.{stored}.{part}_proj"))])
        })
    })
}

/// Where the correction of a router's scores is; the first place that a checkpoint has.
pub(super) fn correction_names(names: Names, stored: &[&str]) -> Names {
    let module = "layers.{l}.mlp.correction";
    stored
        .iter()
        .fold(names.without(&[module]), |names, stored| names.with_bare(&[(module, format!("layers.{{l}}.{stored}"))]))
}

/// DeepSeek V3's routing: sigmoids, a correction of the choice, the best groups by their two best experts.
pub(super) fn sigmoid_routing(config: &Config, normalise: bool, scale: f32) -> Result<Routing> {
    let weights = if normalise { ExpertWeights::Shares { eps: 1e-20, least: 0.0 } } else { ExpertWeights::Scores };
    if config.text("scoring_func") == Some("softmax") {
        return Err(Error::unsupported(
            format!("`scoring_func` is `softmax`, which `{}` does not compute", config.model_type()?),
            "use a model that scores experts by sigmoids",
        ));
    }
    let routing = Routing { correction: true, scale, ..Routing::new(Scores::Sigmoid, weights) };
    Ok(Routing { groups: groups(config, true)?, ..routing })
}

/// The groups of experts that a configuration names; none where there is one.
pub(super) fn groups(config: &Config, by_best_two: bool) -> Result<Option<ExpertGroups>> {
    let (count, kept) = (config.size_or("n_group", 1)?, config.size_or("topk_group", 1)?);
    Ok((count != 1).then_some(ExpertGroups { count, kept, by_best_two }))
}

/// Which layers have experts: by `mlp_layer_types` where the configuration has it, else by the family's own rule.
pub(super) fn sparse_layers(config: &Config, family: &Family, rule: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
    let layers = family.architecture.layers.len();
    let Some(types) = config.texts("mlp_layer_types")? else { return Ok((0..layers).map(rule).collect()) };
    if types.len() != layers {
        return Err(config.bad("mlp_layer_types", "does not have one entry a layer"));
    }
    types.into_iter().map(|kind| named(config, "mlp_layer_types", kind, &["dense", "sparse"]).map(|i| i == 1)).collect()
}

/// Which of some names a key's value is.
pub(super) fn named(config: &Config, key: &str, name: &str, known: &[&str]) -> Result<usize> {
    known.iter().position(|known| *known == name).ok_or_else(|| {
        let family = config.model_type().unwrap_or_default();
        Error::unsupported(
            format!("`{key}` is `{name}`, which this build does not know of `{family}`"),
            format!("known are {}", known.join(", ")),
        )
    })
}

/// Refuses a number that is not the only one that this build computes with.
pub(super) fn must_be(config: &Config, key: &str, only: f32) -> Result<()> {
    match config.number_or(key, only)? {
        given if given == only => Ok(()),
        given => Err(Error::unsupported(
            format!("`{key}` is {given}, and this build computes only with {only}"),
            "use a model with that value",
        )),
    }
}

/// Layers behind the model's own that guess further tokens are left unread.
pub(super) fn ignore_guessing_layers(config: &Config, family: &mut Family) -> Result<()> {
    let (from, count) = (family.architecture.layers.len(), config.size_or("num_nextn_predict_layers", 1)?);
    family.names.guessing_layers = from..from.saturating_add(count);
    Ok(())
}

/// A norm of each head's queries and keys, like those of the blocks.
pub(super) fn norm_each_head(family: &mut Family) {
    family.each(|layer| {
        if let Some(a) = &mut layer.attention {
            a.qk_norm = layer.attn_norm;
        }
    });
}
