//! `capture`: returns the selected activation, whole or reduced.

use super::operand::{plain_vector, read_form, read_operand, write_operand};
use super::{Action, ActionWriter, CompiledAction, Operand};
use crate::plan::Columns;
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::{ValueParser, ValueWriter};
use crate::program::{OpKind, Program};
use pellucid_kernels::{DType, Matrix, Pool};
use serde::Deserialize;
use serde_json::{Value, json};

/// Reduction of a capture.
#[derive(Clone, Debug, PartialEq)]
pub enum Reduce {
    /// Mean over the selected positions.
    Mean,
    /// L2 norm per position.
    Norm,
    /// Largest elements per position, with their units.
    TopK(usize),
    /// Inner product with a vector, per position.
    Dot(Operand),
    /// Inner products with several vectors, per position.
    Project(Operand),
    /// The nonzero elements, as a sparse matrix `[positions, units]`
    /// ([`Capture::sparse`](crate::Capture::sparse)).
    Sparse,
}

/// A compiled reduction; `Whole` is no reduction.
pub(crate) enum CompiledReduce {
    Whole,
    Mean,
    Norm,
    TopK {
        k: usize,
        /// The column of the site at each index of the selection; empty if all columns are
        /// selected.
        units: Vec<usize>,
    },
    Dot(Vec<f32>),
    /// The vectors as a weight `[vectors, units]`.
    Project(Matrix),
    Sparse(SparseSize),
}

/// Expected size of a sparse capture, for estimates of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SparseSize {
    /// Nonzero elements of a position.
    pub per_position: usize,
    /// No position has more, unless the plan edits them. Otherwise `per_position` is an assumption.
    pub is_bound: bool,
}

/// Share of features that is assumed to be active in an autoencoder whose kind does not limit it:
/// one in so many.
const ASSUMED_SPARSITY: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    reduce: ReduceForm,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReduceForm {
    Mean,
    Norm,
    Topk(usize),
    Dot(Value),
    Project(Value),
    Sparse,
}

impl ReduceForm {
    fn read(self, names: &ValueParser) -> Result<Reduce, String> {
        Ok(match self {
            ReduceForm::Mean => Reduce::Mean,
            ReduceForm::Norm => Reduce::Norm,
            ReduceForm::Topk(k) => Reduce::TopK(k),
            ReduceForm::Dot(vector) => Reduce::Dot(read_operand(vector, names)?),
            ReduceForm::Project(matrix) => Reduce::Project(read_operand(matrix, names)?),
            ReduceForm::Sparse => Reduce::Sparse,
        })
    }
}

fn write_reduce(reduce: &Reduce, names: &ValueWriter) -> Value {
    match reduce {
        Reduce::Mean => json!("mean"),
        Reduce::Norm => json!("norm"),
        Reduce::TopK(k) => json!({ "topk": k }),
        Reduce::Dot(vector) => json!({ "dot": write_operand(vector, names) }),
        Reduce::Project(matrix) => json!({ "project": write_operand(matrix, names) }),
        Reduce::Sparse => json!("sparse"),
    }
}

pub(super) fn read(value: Value, names: &ValueParser) -> Result<Action, String> {
    match &value {
        Value::Bool(true) => Ok(Action::Capture(None)),
        Value::Object(_) => {
            let form: Form = read_form("capture", value)?;
            Ok(Action::Capture(Some(form.reduce.read(names)?)))
        }
        _ => Err("`capture` must be true or {\"reduce\": …}".into()),
    }
}

pub(super) fn write(reduce: &Option<Reduce>, to: &ActionWriter) -> Result<Value, String> {
    Ok(match reduce {
        None => json!(true),
        Some(reduce) => json!({ "reduce": write_reduce(reduce, to.names) }),
    })
}

pub(super) fn compile(
    reduce: &Option<Reduce>,
    compiler: &mut Compiler,
    target: TapSite,
) -> Result<CompiledAction, String> {
    let columns = target.columns.len();
    if reduce.is_some() && target.on_attention() {
        return Err("a capture of an attention site cannot be reduced".into());
    }
    if reduce.is_some() && target.edge.integer {
        return Err("expert indices can be captured whole, not reduced".into());
    }
    Ok(CompiledAction::Capture(match reduce {
        None => CompiledReduce::Whole,
        Some(Reduce::Mean) => CompiledReduce::Mean,
        Some(Reduce::Norm) => CompiledReduce::Norm,
        Some(Reduce::TopK(k)) if *k >= 1 && *k <= columns => {
            let units = match target.columns {
                Columns::All(_) => Vec::new(),
                selected => selected.ranges().into_iter().flatten().collect(),
            };
            CompiledReduce::TopK { k: *k, units }
        }
        Some(Reduce::TopK(k)) => return Err(format!("topk of {k} among {columns} selected units")),
        Some(Reduce::Dot(vector)) => CompiledReduce::Dot(plain_vector(vector, columns)?),
        Some(Reduce::Project(Operand::Rows(rows))) if rows.is_empty() => {
            return Err("`project` needs at least one vector".into());
        }
        Some(Reduce::Project(Operand::Rows(rows))) => {
            if let Some(bad) = rows.iter().find(|row| row.len() != columns) {
                return Err(format!("`project`: a vector of {} elements for {columns} selected units", bad.len()));
            }
            CompiledReduce::Project(pack(rows, columns))
        }
        Some(Reduce::Project(vector)) => CompiledReduce::Project(pack(&[plain_vector(vector, columns)?], columns)),
        Some(Reduce::Sparse) => CompiledReduce::Sparse(sparse_size(compiler.program, target)),
    }))
}

/// Estimates the nonzero elements of a position: at most k features of a TopK autoencoder, a fixed
/// share of the features of other kinds, and all elements of every other site.
fn sparse_size(program: &Program, target: TapSite) -> SparseSize {
    let columns = target.columns.len();
    match program.ops()[target.edge.producer].kind {
        OpKind::Sae { acts, max_active, .. } if program.edge_of(target.site) == Some(acts) => match max_active {
            Some(k) => SparseSize { per_position: k.min(columns), is_bound: true },
            None => SparseSize { per_position: columns.div_ceil(ASSUMED_SPARSITY), is_bound: false },
        },
        _ => SparseSize { per_position: columns, is_bound: true },
    }
}

/// Packs vectors for matrix products, in f32.
fn pack(vectors: &[Vec<f32>], columns: usize) -> Matrix {
    let pool = Pool::new(1);
    Matrix::pack(&pool, vectors.len(), columns, DType::F32, &|row, out| out.copy_from_slice(&vectors[row]))
}
