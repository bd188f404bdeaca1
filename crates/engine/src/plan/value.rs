//! Values: expressions over the activations of a run.
//!
//! A plan lists its values; each is an expression over earlier ones. The leaves are constants and
//! the activations that taps read ([`Action::Read`](super::Action::Read)). A value has one array
//! for each row that it depends on; [`Expr::Across`] joins the rows. An edit writes a value
//! through [`Operand::Value`](super::Operand::Value). A metric is a scalar value.

use crate::array::Array;
use pellucid_kernels::activation::Activation;
use std::sync::Arc;

pub use crate::ids::ValueId;

/// An expression and its optional name.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Name in JSON and in the results.
    pub name: Option<String>,
    /// The expression.
    pub expr: Expr,
}

/// An expression over earlier values.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// The activation or gradient that this tap reads.
    Read(usize),
    /// A constant, the same in every row.
    Constant(Array),
    /// A tensor in a safetensors file, `file.safetensors#name`; resolved before compiling.
    File(String),
    /// Elementwise function of one value.
    Map(Map, ValueId),
    /// Elementwise function of two values; shapes broadcast as in numpy.
    Combine(Combine, ValueId, ValueId),
    /// Elements of the second value where the first is not zero, else of the third.
    Where(ValueId, ValueId, ValueId),
    /// Matrix product over the last two axes.
    MatMul(ValueId, ValueId),
    /// Reduction over one axis, or over all elements of a row.
    Fold {
        /// Input.
        of: ValueId,
        /// Reduction.
        how: Fold,
        /// Axis, negative from the last; all axes if absent.
        axis: Option<i64>,
        /// Keep the reduced axis with length 1.
        keep: bool,
    },
    /// Softmax along an axis, or its logarithm.
    Softmax {
        /// Input.
        of: ValueId,
        /// Axis.
        axis: i64,
        /// Log-softmax.
        log: bool,
    },
    /// The largest elements along the last axis in descending order, or their indices.
    TopK {
        /// Input.
        of: ValueId,
        /// Number of elements.
        k: usize,
        /// Return the indices instead of the elements.
        indices: bool,
    },
    /// Indexing, as in numpy.
    Index {
        /// Input.
        of: ValueId,
        /// One pick per axis; axes after the last pick stay whole.
        picks: Vec<Pick>,
    },
    /// A copy with some elements replaced.
    Put {
        /// Input.
        of: ValueId,
        /// Elements to replace.
        picks: Vec<Pick>,
        /// Replacement; its shape broadcasts to the selection's.
        by: ValueId,
    },
    /// Gathers elements along the last axis, as `torch.gather`.
    Take {
        /// Input.
        of: ValueId,
        /// Integer indices; as many axes as `of`, or one fewer to gather one element per vector.
        indices: ValueId,
    },
    /// Reshape; one axis can be -1.
    Reshape {
        /// Input.
        of: ValueId,
        /// The new shape.
        shape: Vec<i64>,
    },
    /// Transposition of axes.
    Permute {
        /// Input.
        of: ValueId,
        /// For each new axis the old one.
        axes: Vec<usize>,
    },
    /// Concatenation along an axis.
    Concat {
        /// The parts.
        parts: Vec<ValueId>,
        /// The axis.
        axis: i64,
    },
    /// Joins the arrays of all rows into one that every row can use.
    Across {
        /// Input.
        of: ValueId,
        /// How the rows are joined.
        how: Across,
    },
    /// One row's array, which every row can use.
    Row {
        /// Input.
        of: ValueId,
        /// Row of the call.
        row: usize,
    },
    /// Applies the model's ops between two sites, from the first site's shape to the second's. The
    /// ops see only these tokens, at positions 0, 1, ….
    Through {
        /// Activation at the first site.
        of: ValueId,
        /// First site.
        from: String,
        /// Second site.
        to: String,
    },
    /// Gradient of a metric with respect to a weight, in the weight's shape, summed over all tokens
    /// of all rows.
    WeightGrad {
        /// Index of the plan's metric.
        metric: usize,
        /// Name of the weight in the program, such as `layers.3.mlp.down`.
        weight: String,
    },
    /// Logits of residual-stream vectors: the model's final norm, unembedding, scale and soft cap.
    Unembed(ValueId),
    /// Opaque function of arrays (a Rust closure or Python callable).
    Call {
        /// The function.
        function: Function,
        /// Arguments.
        of: Vec<ValueId>,
    },
}

/// Elementwise functions of one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // named for what they compute
pub enum Map {
    /// Identity without gradient.
    Detach,
    Neg,
    Abs,
    Exp,
    Log,
    Sqrt,
    Square,
    Sign,
    Not,
    Sin,
    Cos,
    /// Activation function of an MLP.
    Activation(Activation),
}

/// Elementwise functions of two arguments; comparisons return 1 or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // named for what they compute
pub enum Combine {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Max,
    Min,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
}

/// Reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // named for what they compute
pub enum Fold {
    Sum,
    Mean,
    Max,
    Min,
    /// Index of the largest element.
    ArgMax,
    /// L2 norm.
    Norm,
    /// Population variance.
    Var,
}

/// How the rows of a value are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Across {
    /// Sum; shapes must be equal.
    Sum,
    /// Mean; shapes must be equal.
    Mean,
    /// Stacked along a new first axis; shapes must be equal.
    Stack,
    /// Concatenated along the first axis.
    Concat,
}

/// Index into one axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pick {
    /// One index; the axis is dropped.
    At(i64),
    /// Start, end (exclusive) and step, as in Python.
    Slice(Option<i64>, Option<i64>, i64),
    /// A list of indices.
    Each(Vec<i64>),
    /// A new axis of length 1 (`None` in numpy).
    New,
    /// All remaining axes (`...` in numpy).
    Rest,
}

/// Body of a [`Function`]: arrays in, an array or an error message out.
pub type FunctionBody = dyn Fn(&[Array]) -> Result<Array, String> + Send + Sync;

/// An opaque function of arrays. The shape of its result is unknown before it runs, and it has no
/// gradient.
#[derive(Clone)]
pub struct Function(pub Arc<FunctionBody>);

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Function")
    }
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Value {
    /// Shifts tap, value and metric indices, for a plan that is appended to another.
    pub(crate) fn after(mut self, taps: usize, values: usize, metrics: usize) -> Value {
        match &mut self.expr {
            Expr::Read(tap) => *tap += taps,
            Expr::WeightGrad { metric, .. } => *metric += metrics,
            _ => {}
        }
        self.expr.inputs_mut().into_iter().for_each(|input| *input = input.after(values));
        self
    }
}

/// References to the inputs of an expression; mutable if the expression is.
macro_rules! inputs {
    ($expr:expr, $each:ident) => {{
        use Expr::*;
        match $expr {
            Read(_) | Constant(_) | File(_) | WeightGrad { .. } => vec![],
            Map(_, of)
            | Unembed(of)
            | Fold { of, .. }
            | Softmax { of, .. }
            | TopK { of, .. }
            | Index { of, .. }
            | Reshape { of, .. }
            | Permute { of, .. }
            | Across { of, .. }
            | Row { of, .. }
            | Through { of, .. } => vec![of],
            Combine(_, a, b) | MatMul(a, b) => vec![a, b],
            Where(a, b, c) => vec![a, b, c],
            Put { of, by, .. } => vec![of, by],
            Take { of, indices } => vec![of, indices],
            Concat { parts, .. } => parts.$each().collect(),
            Call { of, .. } => of.$each().collect(),
        }
    }};
}

impl Expr {
    fn inputs_mut(&mut self) -> Vec<&mut ValueId> {
        inputs!(self, iter_mut)
    }

    /// Returns the values that it is computed from.
    pub fn inputs(&self) -> Vec<ValueId> {
        let inputs: Vec<&ValueId> = inputs!(self, iter);
        inputs.into_iter().copied().collect()
    }
}
