//! Points: the kinds of activation that a plan can capture or change, declared in one table.
//!
//! The `points!` table below generates the enum, [`Point::ALL`] and [`Point::info`]; parsing,
//! listings, aliases, documentation and error messages use these. To add a point, add a row in
//! forward order; a test compares the table with docs/sites.md.

use crate::architecture::Layer;

/// Scope of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Once per model.
    Model,
    /// Once per layer that has it.
    Layer,
}

/// Row of a point in the table.
#[derive(Clone, Copy, Debug)]
pub struct PointInfo {
    /// Name in addresses.
    pub name: &'static str,
    /// Scope.
    pub scope: Scope,
    /// One-sentence description.
    pub meaning: &'static str,
    /// TransformerLens hook of exactly this tensor, `{}` for the layer.
    pub transformer_lens: Option<&'static str>,
    /// Why a layer or model does not have it.
    pub absent_because: &'static str,
}

const fn model(name: &'static str, meaning: &'static str, tl: Option<&'static str>, absent: &'static str) -> PointInfo {
    PointInfo { name, scope: Scope::Model, meaning, transformer_lens: tl, absent_because: absent }
}

const fn layer(name: &'static str, meaning: &'static str, tl: Option<&'static str>, absent: &'static str) -> PointInfo {
    PointInfo { name, scope: Scope::Layer, meaning, transformer_lens: tl, absent_because: absent }
}

const ALWAYS: &str = "every model has it";
const NO_ATTENTION: &str = "this layer has no softmax attention";
const NO_RECURRENCE: &str = "this layer has no recurrence; use the attention points";
const NO_MLP: &str = "this layer has no MLP";

/// Declares [`Point`] from a table:
/// `Variant: scope("name", "meaning", TransformerLens name, reason for absence)`.
macro_rules! points {
    ($($variant:ident: $scope:ident($name:literal, $meaning:literal, $alias:expr, $absent:expr $(,)?),)+) => {
        /// A kind of activation. A [`crate::Site`] is a point at a layer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Point {
            $(#[doc = $meaning] $variant,)+
            /// A named edge of a hand-built [`Network`](crate::program::Network).
            Named(&'static str),
        }

        impl Point {
            /// All points, in forward order.
            pub const ALL: [Point; [$($name),+].len()] = [$(Point::$variant),+];

            /// Returns the point's row in the table.
            pub const fn info(self) -> PointInfo {
                match self {
                    $(Point::$variant => $scope($name, $meaning, $alias, $absent),)+
                    Point::Named(name) => {
                        model(name, "a named edge of a hand-built network", None, "this network has no edge of that name")
                    }
                }
            }
        }
    };
}

points! {
    Embed: model(
        "embed",
        "token embeddings, before any scale or position",
        Some("hook_embed"),
        ALWAYS,
    ),
    PosEmbed: model(
        "pos_embed",
        "absolute position embeddings, learned or sinusoidal",
        Some("hook_pos_embed"),
        "this model has no absolute positions (rotary and ALiBi models put position into attention)",
    ),
    ResidPre: layer("resid_pre", "the residual stream entering the block", Some("blocks.{}.hook_resid_pre"), ALWAYS),
    AttnScale: layer(
        "attn_scale",
        "divisor of the norm before attention (or a recurrence), one per token",
        Some("blocks.{}.ln1.hook_scale"),
        "this layer has no norm before its attention or recurrence",
    ),
    AttnNormed: layer(
        "attn_normed",
        "normalized value before attention (or a recurrence), before gain and bias",
        Some("blocks.{}.ln1.hook_normalized"),
        "this layer has no norm before its attention or recurrence",
    ),
    AttnIn: layer("attn_in", "input of attention", Some("blocks.{}.attn.hook_in"), NO_ATTENTION),
    Q: layer("q", "queries by head, before any norm or RoPE", Some("blocks.{}.attn.hook_q"), NO_ATTENTION),
    K: layer("k", "keys by key head, before any norm or RoPE", Some("blocks.{}.attn.hook_k"), NO_ATTENTION),
    Value: layer("value", "values by key head", Some("blocks.{}.attn.hook_v"), NO_ATTENTION),
    QNormOut: layer(
        "q_norm_out",
        "queries after the norm of queries",
        Some("blocks.{}.attn.q_norm.hook_out"),
        "this layer has no norm of queries",
    ),
    KNormOut: layer(
        "k_norm_out",
        "keys after the norm of keys",
        Some("blocks.{}.attn.k_norm.hook_out"),
        "this layer has no norm of keys",
    ),
    RotQ: layer("rot_q", "queries as used in the dot product, after norm and RoPE", Some("blocks.{}.attn.hook_rot_q"), NO_ATTENTION),
    RotK: layer("rot_k", "keys as used in the dot product, after norm and RoPE", Some("blocks.{}.attn.hook_rot_k"), NO_ATTENTION),
    AttnScores: layer(
        "attn_scores",
        "attention scores, scaled, capped and masked with -inf, before softmax",
        Some("blocks.{}.attn.hook_attn_scores"),
        NO_ATTENTION,
    ),
    AttnProbs: layer("attn_probs", "attention weights", Some("blocks.{}.attn.hook_pattern"), NO_ATTENTION),
    AttnGate: layer(
        "attn_gate",
        "the gate on attention's heads, before its activation",
        None,
        "this layer's attention has no gate on its output",
    ),
    Z: layer("z", "input of attention's output projection, by head", Some("blocks.{}.attn.hook_z"), NO_ATTENTION),
    HeadOut: layer(
        "head_out",
        "each head's contribution: z of the head times its part of the output projection, without bias",
        Some("blocks.{}.attn.hook_result"),
        NO_ATTENTION,
    ),
    AttnOut: layer("attn_out", "output of the attention sublayer", Some("blocks.{}.attn.hook_out"), NO_ATTENTION),
    AttnOutPost: layer(
        "attn_out_post",
        "attention's contribution to the residual stream, after any post-norm and multiplier",
        Some("blocks.{}.hook_attn_out"),
        NO_ATTENTION,
    ),
    MixerIn: layer("mixer_in", "input of the recurrence", None, NO_RECURRENCE),
    MixerGate: layer("mixer_gate", "the gate on the recurrence's output, before its activation", None, NO_RECURRENCE),
    ConvOut: layer(
        "conv_out",
        "output of the short convolution, after its activation",
        None,
        "this layer has no convolution",
    ),
    MixerState: layer(
        "mixer_state",
        "the recurrent state after each token, by head; read-only",
        None,
        "this layer has no recurrent state",
    ),
    MixerScan: layer(
        "mixer_scan",
        "output of the recurrence including its skip term, before norm and gate",
        None,
        "this layer has no recurrent state",
    ),
    MixerOut: layer("mixer_out", "output of the recurrent sublayer", None, NO_RECURRENCE),
    MixerOutPost: layer(
        "mixer_out_post",
        "the recurrence's contribution to the residual stream, after any post-norm and multiplier",
        None,
        NO_RECURRENCE,
    ),
    ResidMid: layer(
        "resid_mid",
        "the residual stream between attention (or a recurrence) and MLP",
        Some("blocks.{}.hook_resid_mid"),
        "attention and MLP of this block run in parallel on its input, so there is no residual stream between them; use resid_pre, attn_out_post or mlp_out_post",
    ),
    MlpScale: layer(
        "mlp_scale",
        "divisor of the norm before the MLP, one per token",
        Some("blocks.{}.ln2.hook_scale"),
        "this layer has no separate norm before the MLP",
    ),
    MlpNormed: layer(
        "mlp_normed",
        "normalized value before the MLP, before gain and bias",
        Some("blocks.{}.ln2.hook_normalized"),
        "this layer has no separate norm before the MLP",
    ),
    MlpIn: layer("mlp_in", "input of the MLP", Some("blocks.{}.mlp.hook_in"), NO_MLP),
    MlpPre: layer(
        "mlp_pre",
        "argument of the activation function",
        Some("blocks.{}.mlp.hook_pre"),
        "a layer of experts has no neurons at block level; use mlp_in, mlp_out or the router's points",
    ),
    MlpPreLinear: layer(
        "mlp_pre_linear",
        "the linear branch of a gated MLP",
        Some("blocks.{}.mlp.hook_pre_linear"),
        "this layer's MLP is not gated; use mlp_pre or mlp_act",
    ),
    MlpAct: layer(
        "mlp_act",
        "the neurons: input of the down projection",
        Some("blocks.{}.mlp.hook_post"),
        "a layer of experts has no neurons at block level; use mlp_in, mlp_out or the router's points",
    ),
    RouterLogits: layer("router_logits", "router logits over all experts", None, "this layer has no experts"),
    ExpertWeights: layer(
        "expert_weights",
        "weights of the selected experts, largest score first",
        None,
        "this layer has no experts",
    ),
    ExpertIndices: layer(
        "expert_indices",
        "indices of the selected experts, largest score first",
        Some("blocks.{}.mlp.hook_expert_indices"),
        "this layer has no experts",
    ),
    ExpertOut: layer(
        "expert_out",
        "outputs of the selected experts, before their weights",
        None,
        "this layer has no experts",
    ),
    MlpOut: layer("mlp_out", "output of the MLP sublayer", Some("blocks.{}.mlp.hook_out"), NO_MLP),
    MlpOutPost: layer(
        "mlp_out_post",
        "the MLP's contribution to the residual stream, after any post-norm and multiplier",
        Some("blocks.{}.hook_mlp_out"),
        NO_MLP,
    ),
    ResidPost: layer("resid_post", "the residual stream leaving the block", Some("blocks.{}.hook_resid_post"), ALWAYS),
    FinalScale: model(
        "final_scale",
        "divisor of the final norm, one per token",
        Some("ln_final.hook_scale"),
        "this model has no final norm",
    ),
    FinalNormed: model(
        "final_normed",
        "normalized value of the final norm, before gain and bias",
        Some("ln_final.hook_normalized"),
        "this model has no final norm",
    ),
    FinalNorm: model("final_norm", "output of the final norm", None, "this model has no final norm"),
    LmHead: model("lm_head", "output of the unembedding, before any scale or soft cap", None, ALWAYS),
    Logits: model("logits", "the final logits, after scale and soft cap", None, ALWAYS),
}

impl Point {
    /// Returns why a layer does not have the point: a reason specific to the layer, or the general
    /// one.
    pub fn absent_from(self, layer: Option<&Layer>) -> &'static str {
        let general = self.info().absent_because;
        let Some(layer) = layer else { return general };
        let latent = layer.attention.as_ref().is_some_and(|a| a.latent.is_some());
        match self {
            Point::K | Point::Value if latent => {
                "latent attention has no separate k and v: all heads up-project one low-rank vector; use rot_k, z or attn_probs"
            }
            Point::HeadOut if layer.attention.as_ref().is_some_and(|a| a.experts.is_some()) => {
                "this attention's output projection belongs to its experts; use z or attn_out"
            }
            Point::ResidMid if layer.mlp.is_none() || (layer.attention.is_none() && layer.recurrence.is_none()) => {
                "this block has one sublayer, so there is no residual stream between sublayers; use resid_pre or resid_post"
            }
            Point::AttnOutPost | Point::MlpOutPost if layer.shared.is_some() => {
                "attention and MLP of this layer are not added to the residual stream: they feed its recurrence; use attn_out, mlp_out or mixer_in"
            }
            Point::MlpPre | Point::MlpPreLinear | Point::MlpAct if layer.mlp.is_none() => NO_MLP,
            _ => general,
        }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// Returns the point called `name`.
    pub fn named(name: &str) -> Option<Point> {
        Point::ALL.into_iter().find(|point| point.name() == name)
    }
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A point at a layer, or a point of the whole model; or an activation of a sparse autoencoder that
/// is attached there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// Layer; absent for points of the whole model.
    pub layer: Option<usize>,
    /// The kind of activation.
    pub point: Point,
    /// An activation inside the autoencoder attached at the point; `None` for the point itself.
    pub sae: Option<SaePart>,
}

impl Site {
    /// Returns the site of a point in a layer.
    pub fn layer(layer: usize, point: Point) -> Site {
        Site { layer: Some(layer), point, sae: None }
    }

    /// Returns the site of a point of the whole model.
    pub fn model(point: Point) -> Site {
        Site { layer: None, point, sae: None }
    }

    /// Returns the site of an activation inside the autoencoder attached here.
    pub fn sae(self, part: SaePart) -> Site {
        Site { sae: Some(part), ..self }
    }

    /// Returns a one-sentence description.
    pub fn meaning(self) -> &'static str {
        self.sae.map_or(self.point.info().meaning, SaePart::meaning)
    }
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layers.{layer}.{}", self.point)?,
            None => write!(f, "{}", self.point)?,
        }
        self.sae.map_or(Ok(()), |part| write!(f, "/sae.{}", part.name()))
    }
}

/// An activation inside a sparse autoencoder or transcoder, in forward order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SaePart {
    /// Pre-activations of the features, `[tokens, n_features]`.
    Pre,
    /// Activations of the features, `[tokens, n_features]`.
    Acts,
    /// The reconstruction.
    Recon,
    /// The activation minus its reconstruction, before any edit of the features.
    Error,
    /// The value with which the model continues.
    Out,
}

impl SaePart {
    /// All parts, in forward order.
    pub const ALL: [SaePart; 5] = [SaePart::Pre, SaePart::Acts, SaePart::Recon, SaePart::Error, SaePart::Out];

    /// Returns its name in addresses.
    pub fn name(self) -> &'static str {
        match self {
            SaePart::Pre => "pre",
            SaePart::Acts => "acts",
            SaePart::Recon => "recon",
            SaePart::Error => "error",
            SaePart::Out => "out",
        }
    }

    /// Returns a one-sentence description.
    pub fn meaning(self) -> &'static str {
        match self {
            SaePart::Pre => "pre-activations of the features of the attached SAE",
            SaePart::Acts => "activations of the features of the attached SAE",
            SaePart::Recon => "reconstruction by the attached SAE",
            SaePart::Error => "the activation minus its reconstruction by the attached SAE, before edits of features",
            SaePart::Out => "the value after the attached SAE, with which the model continues",
        }
    }

    /// Returns the end of the hook's name in SAELens, after the hook of the point.
    pub fn saelens(self) -> &'static str {
        match self {
            SaePart::Pre => "hook_sae_acts_pre",
            SaePart::Acts => "hook_sae_acts_post",
            SaePart::Recon => "hook_sae_recons",
            SaePart::Error => "hook_sae_error",
            SaePart::Out => "hook_sae_output",
        }
    }

    /// Returns the part called `name`, here or in SAELens.
    pub fn named(name: &str) -> Option<SaePart> {
        SaePart::ALL.into_iter().find(|part| part.name() == name || part.saelens() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_complete_and_its_names_are_unique() {
        for (i, point) in Point::ALL.into_iter().enumerate() {
            let info = point.info();
            assert_eq!(Point::named(info.name), Some(point));
            assert!(i == 0 || Point::ALL[i - 1] < point, "{point} is out of forward order");
            assert!(!info.meaning.is_empty() && !info.absent_because.is_empty());
            if let Some(alias) = info.transformer_lens {
                assert_eq!(alias.contains("{}"), info.scope == Scope::Layer, "{alias}");
                assert_eq!(
                    Point::ALL.iter().filter(|p| p.info().transformer_lens == Some(alias)).count(),
                    1,
                    "{alias}"
                );
            }
        }
    }
}
