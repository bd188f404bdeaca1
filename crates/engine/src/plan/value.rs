//! Values: expressions over what a run computes.
//!
//! A plan lists its values; each is an expression over earlier ones. The leaves are constants and what taps read
//! ([`Action::Read`](super::Action::Read)). A value has one array for each row that its reads belong to; [`Expr::Across`] joins the
//! rows. An edit writes a value through [`Operand::Value`](super::Operand::Value), a metric is a value with a single number.

use crate::array::Array;
use pellucid_kernels::activation::Activation;
use std::sync::Arc;

pub use crate::ids::ValueId;

/// An expression and perhaps its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// What it is called in what comes back, and in JSON.
    pub name: Option<String>,
    /// How it is computed.
    pub expr: Expr,
}

/// How a value is computed from earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// What this tap read.
    Read(usize),
    /// The same array in every row.
    Constant(Array),
    /// A tensor in a safetensors file, `file.safetensors#name`; resolved before compiling.
    File(String),
    /// A function of each number.
    Map(Map, ValueId),
    /// A function of pairs of numbers; shapes broadcast as in numpy.
    Combine(Combine, ValueId, ValueId),
    /// Numbers of the second where the first is not zero, else of the third.
    Where(ValueId, ValueId, ValueId),
    /// The matrix product of the last two axes.
    MatMul(ValueId, ValueId),
    /// A summary along one axis, or of all numbers of a row.
    Fold {
        /// Of what.
        of: ValueId,
        /// Which summary.
        how: Fold,
        /// Along which axis; negative from the last; all where absent.
        axis: Option<i64>,
        /// The axis stays, with length one.
        keep: bool,
    },
    /// Softmax along an axis, or its logarithm.
    Softmax {
        /// Of what.
        of: ValueId,
        /// Along which axis.
        axis: i64,
        /// The logarithm.
        log: bool,
    },
    /// The largest numbers of the last axis, in falling order, or their places.
    TopK {
        /// Of what.
        of: ValueId,
        /// How many.
        k: usize,
        /// Their places instead.
        places: bool,
    },
    /// Some of the numbers.
    Index {
        /// Of what.
        of: ValueId,
        /// One for each axis; axes past the last pick stay whole.
        picks: Vec<Pick>,
    },
    /// The same with some numbers replaced.
    Put {
        /// Of what.
        of: ValueId,
        /// Where.
        picks: Vec<Pick>,
        /// By what; its shape broadcasts to the selection's.
        by: ValueId,
    },
    /// For each place of `places` the number of that place along the last axis.
    Take {
        /// Of what.
        of: ValueId,
        /// Whole numbers; one axis less than `of`, or as many.
        places: ValueId,
    },
    /// The same numbers in another shape; one axis may be -1.
    Reshape {
        /// Of what.
        of: ValueId,
        /// The new shape.
        shape: Vec<i64>,
    },
    /// The axes in another order.
    Permute {
        /// Of what.
        of: ValueId,
        /// For each new axis the old one.
        axes: Vec<usize>,
    },
    /// One after the other along an axis.
    Concat {
        /// The parts.
        parts: Vec<ValueId>,
        /// The axis.
        axis: i64,
    },
    /// One value of all rows, which every row can use.
    Across {
        /// Of what.
        of: ValueId,
        /// How rows are joined.
        how: Across,
    },
    /// One row's value, which every row can use.
    Row {
        /// Of what.
        of: ValueId,
        /// The row of the call.
        row: usize,
    },
    /// What the model's own ops make of it between two sites: `[tokens, width]` of the first to that of the second. The tokens stand
    /// alone, at positions 0, 1, ….
    Through {
        /// What stands at the first site.
        of: ValueId,
        /// The first site.
        from: String,
        /// The second site.
        to: String,
    },
    /// The gradient of a metric with respect to a weight, in the weight's own shape: the sum over all tokens of all rows.
    WeightGrad {
        /// Which of the plan's metrics.
        metric: usize,
        /// The weight's name in the program, such as `layers.3.mlp.down`.
        weight: String,
    },
    /// Logits of vectors of the stream: final norm, unembedding, scale and soft cap, as the model has them.
    Unembed(ValueId),
    /// A function of arrays.
    Call {
        /// The function.
        function: Function,
        /// Its arguments.
        of: Vec<ValueId>,
    },
}

/// Functions of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // named for what they compute
pub enum Map {
    /// The number itself, as a constant: no gradient passes.
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
    /// An activation function, as MLPs use it.
    Activation(Activation),
}

/// Functions of two numbers; comparisons give 1 or 0.
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

/// Summaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // named for what they compute
pub enum Fold {
    Sum,
    Mean,
    Max,
    Min,
    /// The place of the largest.
    ArgMax,
    /// The square root of the sum of squares.
    Norm,
    /// The mean squared distance from the mean.
    Var,
}

/// How the rows of a value become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Across {
    /// Their sum; shapes must be equal.
    Sum,
    /// Their mean; shapes must be equal.
    Mean,
    /// A new first axis; shapes must be equal.
    Stack,
    /// One after the other along the first axis.
    Concat,
}

/// What an index takes of one axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pick {
    /// One place; the axis goes.
    At(i64),
    /// From, to (not included) and step, as in Python.
    Slice(Option<i64>, Option<i64>, i64),
    /// These places.
    Each(Vec<i64>),
    /// A new axis of length one.
    New,
    /// As many whole axes as are left over.
    Rest,
}

/// What a [`Function`] runs: arrays in, an array out, or what went wrong.
pub type Body = dyn Fn(&[Array]) -> Result<Array, String> + Send + Sync;

/// A function of arrays. Its result's shape is known beforehand only where it says so.
#[derive(Clone)]
pub struct Function(pub Arc<Body>);

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
    /// The same value in a plan that has other taps, values and metrics before its own.
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

/// The values that an expression is computed from, by reference: shared or to be changed, as the expression itself is.
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
            Take { of, places } => vec![of, places],
            Concat { parts, .. } => parts.$each().collect(),
            Call { of, .. } => of.$each().collect(),
        }
    }};
}

impl Expr {
    fn inputs_mut(&mut self) -> Vec<&mut ValueId> {
        inputs!(self, iter_mut)
    }

    /// The values that it is computed from.
    pub fn inputs(&self) -> Vec<ValueId> {
        let inputs: Vec<&ValueId> = inputs!(self, iter);
        inputs.into_iter().copied().collect()
    }
}
