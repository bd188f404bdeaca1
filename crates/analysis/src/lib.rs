//! Analyses built on the engine. The first is the logit lens.

pub mod html;
pub mod lens;
