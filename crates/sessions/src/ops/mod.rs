//! Ops: the steps of an analysis, each with a declared schema.
//!
//! An op is one file and one row of `BUILTIN`. It reads fields of an [`AnalysisBatch`] and adds
//! others; `compose.rs` checks before a run that every field is produced by an earlier op. A
//! composite is a name for a chain. Programs add ops of their own to a [`Registry`].
//!
//! Shortcuts with the same results as the definitions (docs/sessions.md lists these): rows are
//! never padded, logits exist at the answer position only, an ablation is a branch of one token,
//! and only active latents are ablated and stored.

mod alive;
mod answers;
mod batch;
mod compose;
mod compute_attribution_graph;
mod concept;
mod concept_direction;
mod estimate;
mod extract_concept_latent_examples;
mod extract_concept_latent_state;
mod extract_top_features;
mod feature_intervention_forward;
mod forward;
mod get_answer_indices;
mod graph_node_influence;
mod graph_prune;
mod labels_to_ids;
mod latent_correct_acts;
mod logit_diffs;
mod model_ablation;
mod model_fwd;
mod model_fwd_intervention;
mod model_gradient;
mod spec;

pub use batch::{AnalysisBatch, DatasetColumns, Hook, OpContext};
pub use compose::Chain;
pub use concept::Concept;
pub(crate) use concept_direction::NAME as CONCEPT_DIRECTION;
pub use estimate::{Estimate, estimate};
pub use spec::{Field, Needs, Op, OpSpec, Place};

use spec::BuiltinOp;
use std::sync::Arc;

/// The ops that come along, in the order of the documentation.
static BUILTIN: [&BuiltinOp; 22] = [
    &labels_to_ids::OP,
    &get_answer_indices::OP,
    &model_fwd::PLAIN,
    &model_fwd::WITH_CACHE,
    &logit_diffs::PLAIN,
    &logit_diffs::WITH_CACHE,
    &alive::OP,
    &model_fwd::WITH_LATENTS,
    &latent_correct_acts::OP,
    &model_gradient::GRADIENT,
    &model_gradient::ATTRIBUTION,
    &model_ablation::ABLATION,
    &model_ablation::ATTRIBUTION,
    &extract_concept_latent_state::OP,
    &extract_concept_latent_examples::OP,
    &concept_direction::OP,
    &model_fwd_intervention::OP,
    &compute_attribution_graph::OP,
    &graph_node_influence::OP,
    &graph_prune::OP,
    &extract_top_features::OP,
    &feature_intervention_forward::OP,
];

/// A name for a chain of ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Composite {
    /// The name.
    pub name: &'static str,
    /// Other accepted names.
    pub aliases: &'static [&'static str],
    /// The chain.
    pub chain: &'static str,
}

/// The composites that come along.
pub const COMPOSITES: &[Composite] = &[
    Composite { name: "logit_diffs_base", aliases: &[], chain: "labels_to_ids.model_fwd.logit_diffs" },
    Composite {
        name: "logit_diffs_latent",
        aliases: &["logit_diffs_sae"],
        chain: "labels_to_ids.model_fwd_w_cache_latent_models.logit_diffs_cache.latent_correct_acts",
    },
    Composite {
        name: "logit_diffs_attr_grad",
        aliases: &[],
        chain: "labels_to_ids.model_gradient.gradient_attribution",
    },
    Composite {
        name: "logit_diffs_attr_ablation",
        aliases: &[],
        chain: "labels_to_ids.model_fwd_w_cache_latent_models.logit_diffs_cache.model_ablation.ablation_attribution",
    },
    Composite {
        name: "attribution_from_concept",
        aliases: &[],
        chain: "concept_direction.compute_attribution_graph.graph_node_influence.extract_top_features",
    },
    Composite {
        name: "intervention_from_concept",
        aliases: &[],
        chain: "attribution_from_concept.feature_intervention_forward",
    },
];

/// The ops that a session can name: those that come along, and those of the caller.
#[derive(Clone)]
pub struct Registry {
    ops: Vec<Arc<dyn Op>>,
}

impl Default for Registry {
    fn default() -> Registry {
        Registry { ops: BUILTIN.iter().map(|&op| Arc::new(op) as Arc<dyn Op>).collect() }
    }
}

impl Registry {
    /// Adds an op. It replaces an earlier one of its name.
    pub fn add(&mut self, op: Arc<dyn Op>) {
        self.ops.retain(|other| other.spec().name != op.spec().name);
        self.ops.push(op);
    }

    /// All ops: those that come along first.
    pub fn ops(&self) -> &[Arc<dyn Op>] {
        &self.ops
    }

    /// Finds an op by its normalized name or an alias.
    fn find(&self, name: &str) -> Option<Arc<dyn Op>> {
        let is_named = |op: &&Arc<dyn Op>| normalize(&op.spec().name) == name || op.spec().aliases.contains(&name);
        self.ops.iter().find(is_named).cloned()
    }
}

/// Normalizes a name: case is ignored; `-`, `/` and spaces are underscores.
fn normalize(name: &str) -> String {
    name.trim().to_lowercase().replace(['-', '/', ' '], "_")
}
