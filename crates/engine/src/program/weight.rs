//! The weights that a program needs.

/// What a weight is for, and so how it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightKind {
    /// Multiplied: `[outputs, inputs]`, kept in panels.
    Matrix,
    /// A table of rows that are looked up: kept like a matrix.
    Table,
    /// Gains and biases.
    Vector,
}

/// A weight that a program needs.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightSpec {
    /// Its name, such as `layers.3.attn.q` or `final_norm.gain`.
    pub name: String,
    /// `[outputs, inputs]`, or `[length]`.
    pub shape: Vec<usize>,
    /// How it is used.
    pub kind: WeightKind,
}
