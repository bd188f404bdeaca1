//! The pellucid command: see through a language model.
fn main() {}
