//! Steering vectors: one direction per layer that a run adds to the residual stream.
//!
//! [`SteeringVectors`] holds the directions of a file and turns them into `add` taps. Two formats
//! are read and written: safetensors (`safetensors_file`), and GGUF control vectors as llama.cpp
//! and repeng exchange them (`gguf_file`). In both, the direction of layer N belongs to the output
//! of layer N, `layers.N.resid_post`, with layers counted from 0. [`SteeringInfo`] records how the
//! vectors were extracted; a file from another program has only some of it, or none.
//!
//! [`SteerSpec`] is the form of the command line: `FILE[@SCALE][:LAYERS]`.

mod fingerprint;
mod gguf_file;
mod info;
mod layers;
mod safetensors_file;
mod spec;
#[cfg(test)]
mod tests;
mod vectors;

pub use fingerprint::fingerprint;
pub use info::{ScaleConvention, SteeringInfo};
pub use layers::LayerList;
pub use spec::SteerSpec;
pub use vectors::{SteeringVectors, check_format, layer_point};
