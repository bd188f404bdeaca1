//! The logit lens: what would the model say next, if it had to answer from this layer?
//!
//! The stream after each layer is sent through the model's own final norm and unembedding, which gives a full
//! distribution over the next token at every layer and position. [`LensTable`] holds what is worth keeping of those
//! distributions, and two renderings read it: [`terminal`] draws it as text, [`html`] as one self-contained page.
//!
//! Both put the embedding at the top and the model's own answer at the bottom, so that reading down is the order in
//! which the model computes, and in a terminal the answer of a deep model is what is left on the screen.
//! Both colour by the same scales (`colour`) and spell tokens the same way (`text`).

mod colour;
mod compute;
mod html;
mod table;
mod terminal;
mod text;

pub use compute::compute;
pub use html::html;
pub use table::{Guess, LensCell, LensRow, LensTable};
pub use terminal::{ColourDepth, TerminalOptions, terminal};
