//! Low-rank adapters (LoRA) that are applied without merging them into the weights.
//!
//! An [`Adapter`] changes some projections of a model. Rows that use it get
//! `y = x Wᵀ + b + scale · (x Aᵀ) Bᵀ + Δb`, with A `[rank, inputs]` and B `[outputs, rank]`; all
//! other rows get `y = x Wᵀ + b`, with the same bits as without adapters. All rows of a pass share
//! `W`, which keeps its storage format, so a quantized model stays quantized.
//!
//! A model has any number of adapters ([`Model::attach_adapter`](crate::Model::attach_adapter)),
//! and each row of a call names its own ([`RowAdapters`]). The op list does not change: an adapter
//! belongs to the projections whose weights it updates, like a bias. `tokens.rs` finds the tokens
//! of an adapter's rows in a pass and computes their updates, forward and backward.

mod tokens;

pub(crate) use tokens::updates;

use crate::error::{Error, Result};
use crate::program::{OpKind, Program, WeightId};
use pellucid_kernels::Matrix;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The low-rank update of a projection's matrix: `scale · B A`.
pub struct LowRank {
    /// A, `[rank, inputs]`.
    pub a: Matrix,
    /// B, `[outputs, rank]`.
    pub b: Matrix,
    /// Factor of the product (`lora_alpha / r`).
    pub scale: f32,
}

/// The update of a projection.
#[derive(Default)]
pub struct LinearUpdate {
    /// Update of the matrix.
    pub low_rank: Option<LowRank>,
    /// Change of the bias, `[outputs]`. The projection itself need not have a bias.
    pub bias: Option<Vec<f32>>,
}

/// Identifies an adapter in this process, so that cached prefixes of one are not used for another
/// of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdapterId(u64);

/// A named set of updates, by the weight of the projection that they change.
pub struct Adapter {
    name: String,
    updates: BTreeMap<WeightId, LinearUpdate>,
    id: AdapterId,
}

impl Adapter {
    /// Creates an adapter. The weights are those of projections; a table that is also the
    /// unembedding's matrix (a tied head) is updated for the unembedding only.
    pub fn new(name: impl Into<String>, updates: impl IntoIterator<Item = (WeightId, LinearUpdate)>) -> Adapter {
        static CREATED: AtomicU64 = AtomicU64::new(0);
        let id = AdapterId(CREATED.fetch_add(1, Ordering::Relaxed));
        Adapter { name: name.into(), updates: updates.into_iter().collect(), id }
    }

    /// The name by which rows refer to it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The update of a projection, if the adapter changes it.
    pub fn update(&self, weight: WeightId) -> Option<&LinearUpdate> {
        self.updates.get(&weight)
    }

    /// Number of projections that it changes.
    pub fn len(&self) -> usize {
        self.updates.len()
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty()
    }

    /// Largest rank of its updates; 0 if it changes biases only.
    pub fn max_rank(&self) -> usize {
        let ranks =
            self.updates.values().filter_map(|update| update.low_rank.as_ref()).map(|low_rank| low_rank.a.rows());
        ranks.max().unwrap_or(0)
    }

    /// Bytes of its matrices and biases.
    pub fn bytes(&self) -> usize {
        self.updates.values().map(LinearUpdate::bytes).sum()
    }

    pub(crate) fn id(&self) -> AdapterId {
        self.id
    }

    /// Whether it changes the projection of an op.
    pub(crate) fn changes(&self, op: &OpKind) -> bool {
        projection(op).is_some_and(|weight| self.updates.contains_key(&weight))
    }

    /// Checks that its updates are finite and fit projections of a program.
    pub(crate) fn check(&self, program: &Program) -> Result<()> {
        let name = &self.name;
        if name.is_empty() {
            return Err(Error::input("the adapter's name is empty", "give it a name"));
        }
        for (&weight, update) in &self.updates {
            let Some(spec) = program.weights().get(weight.index()) else {
                return Err(Error::input(
                    format!("the adapter `{name}` changes weight {weight}, which this model does not have"),
                    "check that the adapter was made for this model",
                ));
            };
            if let Some(op) = unsupported_reader(program, weight) {
                return Err(Error::input(
                    format!("the adapter `{name}` changes {}, a weight of the op `{}`", spec.name, op.name()),
                    "adapters change projections (`matmul`, `project`); merge this one into the weights instead",
                ));
            }
            let (outputs, inputs) = (spec.shape[0], spec.shape[1..].iter().product::<usize>());
            let fits = update.low_rank.as_ref().is_none_or(|low_rank| {
                let LowRank { a, b, .. } = low_rank;
                a.rows() > 0 && a.rows() == b.cols() && a.cols() == inputs && b.rows() == outputs
            });
            if !fits || update.bias.as_ref().is_some_and(|bias| bias.len() != outputs) {
                return Err(Error::input(
                    format!("the adapter `{name}` does not fit {}, which is [{outputs}, {inputs}]", spec.name),
                    "check that the adapter was made for this model",
                ));
            }
            if !update.is_finite() {
                return Err(Error::input(
                    format!("the adapter `{name}` has a non-finite element for {}", spec.name),
                    "the file is damaged or the training diverged",
                ));
            }
        }
        Ok(())
    }
}

impl LinearUpdate {
    fn bytes(&self) -> usize {
        let matrices = self.low_rank.as_ref().map_or(0, |low_rank| low_rank.a.bytes() + low_rank.b.bytes());
        matrices + self.bias.as_ref().map_or(0, |bias| 4 * bias.len())
    }

    fn is_finite(&self) -> bool {
        let all_finite = |matrix: &Matrix| {
            let mut line = vec![0.0; matrix.cols()];
            (0..matrix.rows()).all(|row| {
                matrix.row(row, &mut line);
                line.iter().all(|x| x.is_finite())
            })
        };
        let low_rank = self.low_rank.as_ref();
        low_rank.is_none_or(|low_rank| low_rank.scale.is_finite() && all_finite(&low_rank.a) && all_finite(&low_rank.b))
            && self.bias.iter().flatten().all(|x| x.is_finite())
    }
}

/// The weight of an op that adapters can change.
pub(crate) fn projection(op: &OpKind) -> Option<WeightId> {
    match op {
        OpKind::MatMul { linear, .. } | OpKind::Project { linear, .. } => Some(linear.weight),
        _ => None,
    }
}

/// An op that uses a weight otherwise than as its projection. The embedding may share a table with
/// the unembedding, which is a projection.
fn unsupported_reader(program: &Program, weight: WeightId) -> Option<&OpKind> {
    let readers = || program.ops().iter().map(|op| &op.kind).filter(|kind| kind.weights().contains(&weight));
    let is_projection = |kind: &OpKind| projection(kind) == Some(weight);
    let projects = readers().any(is_projection);
    let is_supported = |kind: &OpKind| is_projection(kind) || projects && matches!(kind, OpKind::Embed { .. });
    readers().find(|kind| !is_supported(kind))
}

/// The adapter of each row of a call, by name.
///
/// ```
/// use pellucid_engine::RowAdapters;
/// let same = RowAdapters::from("german");
/// let each = RowAdapters::Each(vec![Some("german".into()), None]);
/// assert_ne!(same, each);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RowAdapters {
    /// The adapter that the model applies by default
    /// ([`Model::with_adapter`](crate::Model::with_adapter)): none, unless one was chosen.
    #[default]
    ModelDefault,
    /// The same for every row; `None` for the model without adapters.
    All(Option<String>),
    /// One entry per row.
    Each(Vec<Option<String>>),
}

impl From<&str> for RowAdapters {
    fn from(name: &str) -> RowAdapters {
        RowAdapters::All(Some(name.into()))
    }
}

impl From<String> for RowAdapters {
    fn from(name: String) -> RowAdapters {
        RowAdapters::All(Some(name))
    }
}
