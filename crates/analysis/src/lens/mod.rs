//! The logit lens: the model's next-token prediction from each layer.
//!
//! The final norm and the unembedding are applied to the residual stream after each layer, which
//! gives a distribution over the next token at every layer and position. [`LensTable`] holds the
//! top tokens and summary statistics of these distributions. Two functions render it: [`terminal`]
//! as text, [`html`] as one self-contained page.
//!
//! Both put the embedding at the top and the model's output at the bottom, so that rows follow the
//! order of computation and, for deep models, the output stays visible at the end of the terminal.
//! Both use the same color scales (`color`) and the same spelling of tokens (`crate::text`).

mod color;
mod compute;
mod html;
mod table;
mod terminal;

pub use compute::{compute, compute_with};
pub use html::html;
pub use table::{LensCell, LensRow, LensTable, Prediction};
pub use terminal::{ColorDepth, TerminalOptions, terminal};

/// Former name of [`Prediction`].
#[doc(hidden)]
pub use table::Prediction as Guess;
/// Former spelling of [`ColorDepth`].
#[doc(hidden)]
pub use terminal::ColorDepth as ColourDepth;
