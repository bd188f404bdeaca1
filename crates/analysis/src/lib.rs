//! Analyses built on the engine: the logit lens, and the extraction of steering vectors.

pub mod html;
pub mod lens;
pub mod steer;
