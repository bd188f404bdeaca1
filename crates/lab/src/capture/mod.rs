//! The benchmark `capture`: the cost of capturing activations during batched generation.
//!
//! Each [`Mode`] generates for the same prompts through the engine's scheduler, in fresh processes
//! ([`worker`]), with a different plan: none, an armed one that captures nothing, a callback that
//! does nothing, or captures of one, half or all layers. [`session`] runs the processes in
//! interleaved order, [`overhead`] computes the costs with confidence intervals, [`findings`] says
//! where the time went, [`result`] is the file format, and [`markdown`] and [`html`] are the pages.
//! [`peer`] runs the same prompts in transformers.

pub mod findings;
pub mod html;
pub mod markdown;
pub mod mode;
pub mod overhead;
pub mod peer;
pub mod request;
pub mod result;
pub mod session;
pub mod worker;

pub use mode::Mode;

/// The name of this benchmark.
pub const NAME: &str = "capture";
/// One-line description.
pub const TITLE: &str = "Cost of captures in batched generation: each mode in fresh processes, interleaved";
