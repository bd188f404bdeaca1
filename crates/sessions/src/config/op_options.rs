//! Options of ops: concepts, interventions, attribution graphs and their features.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A direction for a concept, and the states that it is computed from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConceptConfig {
    /// The site whose state is extracted; the input of the unembedding by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// A position of the prompt: states are projected onto the state there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_position: Option<i64>,
    /// Weights of examples; `one` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<ConceptWeight>,
    /// Store of a session with `extract_concept_latent_examples`, whose states make the direction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<PathBuf>,
    /// Texts of the tokens of both groups, whose rows of the unembedding make the direction,
    /// instead of `store`. The last token of a longer text counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<Vec<String>>,
    /// The labels that are group A and group B of a store; 0 and 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<[usize; 2]>,
    /// How the direction follows from the states; `mean_difference` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<ConceptMethod>,
}

/// Weights of examples in means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConceptWeight {
    /// All the same.
    #[default]
    One,
    /// The logit difference.
    LogitDiff,
}

/// How a direction follows from the states of two groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConceptMethod {
    /// Mean of group A minus mean of group B.
    #[default]
    MeanDifference,
    /// Mean over pairs of the part of A's state that is orthogonal to B's.
    PairedRejection,
    /// Mean of group A.
    SingleGroup,
}

/// An edit of the answer position.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InterventionConfig {
    /// Sites or patterns of sites, such as `layers.3.resid_post` or `layers.*.attn_out`.
    pub sites: Vec<String>,
    /// The edit; `add` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<InterventionMode>,
    /// Scale s of the edit; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
}

/// Edits of a state h with the direction v of the concept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InterventionMode {
    /// `v`
    Replace,
    /// `h + s v`
    #[default]
    Add,
    /// `s (h·v / v·v) v`
    Project,
    /// `h + V (s swap(c) − c)` with `c = pinv(V) h` and V the means of both groups: exchanges the
    /// components along them.
    Patch,
}

/// Attribution graphs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GraphConfig {
    /// Texts of the tokens to explain; the most probable ones by default.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<String>,
    /// Largest number of tokens to explain; 10 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_logits: Option<usize>,
    /// Cumulative probability at which no more tokens are added; 0.95 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logit_threshold: Option<f32>,
    /// Largest number of features; 7500 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_features: Option<usize>,
    /// Leading positions without features and errors; 1 if the prompt starts with BOS, else 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_positions: Option<usize>,
    /// Share of all influence that the kept nodes have; 0.8 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_threshold: Option<f32>,
    /// Share of all edge scores that the kept edges have; 0.98 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge_threshold: Option<f32>,
}

/// Features of an attribution graph, and the values to which they are set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FeaturesConfig {
    /// Number of features; 10 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top: Option<usize>,
    /// The score that ranks features, by magnitude; `influence` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<FeatureScore>,
    /// Only features of these layers, or that another filter takes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<usize>,
    /// Only features at these positions, or that another filter takes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub positions: Vec<usize>,
    /// Only features of these indices, or that another filter takes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<usize>,
    /// Only these features, each a triple of layer, position and index, or others that a filter
    /// takes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub triples: Vec<[usize; 3]>,
    /// Pairs of layer and index. Each is in the result at least once, at the last position if it is
    /// not in the graph.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<[usize; 2]>,
    /// Only scores of this sign.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sign: Option<ScoreSign>,
    /// The value from which a feature's new one is computed; `activation` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<FeatureBase>,
    /// The value with `base = "constant"`; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constant: Option<f32>,
    /// Multiplies the value; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
    /// Also multiply it by the magnitude of the score relative to the largest one.
    #[serde(skip_serializing_if = "super::is_false")]
    pub norm_scaled: bool,
    /// The value has the sign of the score.
    #[serde(skip_serializing_if = "super::is_false")]
    pub sign_aware: bool,
    /// Let attention weights follow the edit; they stay those of the unedited run by default.
    #[serde(skip_serializing_if = "super::is_false")]
    pub move_attention: bool,
    /// Texts of the tokens whose logits are compared; those of the concept or graph by default.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
}

/// Scores of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FeatureScore {
    /// Influence on the targets.
    #[default]
    Influence,
    /// Influence with signs.
    SignedInfluence,
    /// The activation.
    Activation,
}

/// Signs of scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // named for what they are
pub enum ScoreSign {
    Positive,
    Negative,
}

/// Values from which the new activation of a feature is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FeatureBase {
    /// Its activation.
    #[default]
    Activation,
    /// Its score.
    Score,
    /// `constant`.
    Constant,
}
