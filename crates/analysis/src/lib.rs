//! Analyses built on the engine: the logit lens, the extraction of steering vectors, and the
//! schedule of many requests.

pub mod html;
pub mod lens;
pub mod schedule;
pub mod steer;
