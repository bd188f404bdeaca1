//! An adapter as updates that rows use without merging them, in the form of the engine.

use super::merge::LowRankUpdate;
use super::{Adapter, changes};
use crate::error::{Error, Result};
use crate::names::Names;
use pellucid_engine::program::{Linear, OpKind, WeightId};
use pellucid_engine::{LinearUpdate, LowRank, Model, Program, Remedy, WeightSpec};
use pellucid_kernels::{DType, Matrix, Pool};
use std::collections::BTreeMap;

impl Adapter {
    /// Reads the updates of a model's projections.
    ///
    /// # Errors
    /// Names a tensor that belongs to no weight or does not fit, and everything that cannot be
    /// applied without merging: DoRA, embeddings, fully trained modules, weights inside other ops.
    pub(crate) fn unmerged(
        &self,
        model: &Model,
        names: &Names,
        pool: &Pool,
    ) -> Result<BTreeMap<WeightId, LinearUpdate>> {
        self.check_unmerged()?;
        let program = model.program();
        // A tied head is the embedding's table. An adapter of the head applies where the head uses
        // it, so the head must have a name of its own.
        let mut architecture = program.architecture().clone();
        let tied = std::mem::replace(&mut architecture.head.tied, false);
        let named = if tied { Program::new(architecture)? } else { program.clone() };
        let all = changes(std::slice::from_ref(self), &named, names)?;
        let mut updates: BTreeMap<WeightId, LinearUpdate> = BTreeMap::new();
        for (spec, changes) in named.weights().iter().zip(&all).filter(|(_, changes)| !changes.is_none()) {
            let stored = if tied && spec.name == "head" { "embed" } else { &spec.name };
            let id = program.weight_named(stored).ok_or_else(|| self.refuse(format!("this model has no {stored}")))?;
            let (weight, is_bias) = projection(program, id).ok_or_else(|| self.refuse(reason(program, spec, id)))?;
            let update = updates.entry(weight).or_default();
            if !is_bias {
                let mut all = changes.read_updates()?;
                let Some(one) = all.pop().filter(|_| all.is_empty()) else {
                    return Err(self.refuse(format!("{} has several updates", spec.name)));
                };
                update.low_rank = Some(low_rank(&one, spec, pool));
                continue;
            }
            let mut change = vec![0.0; spec.shape[0]];
            if let Some(replaced) = changes.read_replacement(spec.shape[0])? {
                let base = model.weights().vector(id);
                change.iter_mut().zip(replaced.iter().zip(base)).for_each(|(change, (new, old))| *change = new - old);
            }
            for one in changes.read_updates()? {
                change.iter_mut().enumerate().for_each(|(row, x)| one.apply(row, std::slice::from_mut(x)));
            }
            update.bias = Some(change);
        }
        Ok(updates)
    }

    /// Rejects what only a merge can apply.
    fn check_unmerged(&self) -> Result<()> {
        for (module, delta) in &self.deltas {
            if delta.magnitudes.is_some() {
                return Err(self
                    .refuse(format!("`{module}` is trained with DoRA, which rescales the rows of the merged weight")));
            }
            if delta.is_embedding {
                return Err(self.refuse(format!("`{module}` is an embedding, which is a lookup and not a product")));
            }
        }
        match self.replacements.keys().find(|tensor| !tensor.ends_with(".bias")) {
            Some(tensor) => Err(self.refuse(format!("{tensor} is fully trained and replaces that of the model"))),
            None => Ok(()),
        }
    }

    /// An error about an adapter that must be merged.
    fn refuse(&self, reason: String) -> Error {
        let directory = self.path.parent().unwrap_or(&self.path).display().to_string();
        let problem = format!("{}: the adapter cannot be applied without merging: {reason}", self.path.display());
        Error::unsupported(problem, Remedy::MergeAdapter { adapter: directory })
    }
}

/// The matrix of the projection that a weight belongs to, and whether the weight is its bias.
fn projection(program: &Program, id: WeightId) -> Option<(WeightId, bool)> {
    let linears = program.ops().iter().filter_map(|op| match &op.kind {
        OpKind::MatMul { linear, .. } | OpKind::Project { linear, .. } => Some(*linear),
        _ => None,
    });
    let matches = |linear: Linear| match linear {
        Linear { weight, .. } if weight == id => Some((weight, false)),
        Linear { weight, bias } if bias == Some(id) => Some((weight, true)),
        _ => None,
    };
    linears.into_iter().find_map(matches)
}

/// Why a weight that is not part of a projection cannot change.
fn reason(program: &Program, spec: &WeightSpec, id: WeightId) -> String {
    let mut ops = program.ops().iter().map(|op| &op.kind);
    match ops.find(|kind| kind.weights().contains(&id)) {
        Some(OpKind::Experts { .. }) => format!("{} belongs to the experts of a layer", spec.name),
        Some(op) => format!("{} is a weight of the op `{}`, which is no projection", spec.name, op.name()),
        None => format!("no op uses {}", spec.name),
    }
}

/// Packs the factors of an update. Those that bf16 represents exactly are stored so.
fn low_rank(update: &LowRankUpdate, spec: &WeightSpec, pool: &Pool) -> LowRank {
    let (outputs, inputs) = (spec.shape[0], spec.shape[1..].iter().product());
    let dtype = |factor: &[f32]| match factor.iter().all(|x| x.to_bits() & 0xffff == 0) {
        true => DType::Bf16,
        false => DType::F32,
    };
    let (a, b) = (update.right(), update.left());
    LowRank {
        a: Matrix::pack(pool, update.rank(), inputs, dtype(a), &|row, out| {
            out.copy_from_slice(&a[row * inputs..][..inputs]);
        }),
        b: Matrix::pack(pool, outputs, update.rank(), dtype(b), &|row, out| out.copy_from_slice(update.left_row(row))),
        scale: update.scale(),
    }
}
