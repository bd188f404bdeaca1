//! Analyses that read a model through the engine: the logit lens first.

pub mod html;
pub mod lens;
