//! Analyses built on the engine: attribution graphs, evaluation on tasks, the logit lens, sparse
//! autoencoders, steering vectors, and the schedule of many requests.

pub mod attribution_graph;
pub mod eval;
pub mod html;
pub mod lens;
pub mod sae;
pub mod schedule;
pub mod steer;
mod text;
