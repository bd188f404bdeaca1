//! Specs of the weights that a program needs.

/// How a weight is used, which determines its storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightKind {
    /// A projection, `[outputs, inputs]`, stored in packed panels.
    Matrix,
    /// An embedding table, `[rows, width]`, stored like a matrix.
    Table,
    /// Gains, biases and other small f32 parameters.
    Vector,
}

/// A weight that a program needs.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightSpec {
    /// Name, such as `layers.3.attn.q` or `final_norm.gain`.
    pub name: String,
    /// `[outputs, inputs]` or `[length]`.
    pub shape: Vec<usize>,
    /// How it is used.
    pub kind: WeightKind,
}
