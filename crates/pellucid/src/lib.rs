//! Pellucid is a language model engine for interpretability: load a model, read or change any
//! activation inside it while it runs or generates.
//!
//! # A first look
//!
//! [`load`] takes a Hugging Face directory, a GGUF file, the name of a pulled model, or `builtin`:
//! a model of six layers inside this library, which every example here uses.
//!
//! ```
//! let model = pellucid::load("builtin")?;
//! let generation = model.generate(&["Tom saw a dog. The"], &Default::default(), Default::default())?;
//! assert!(generation.rows[0].text.starts_with(" dog was very nice"));
//! # Ok::<(), pellucid::Error>(())
//! ```
//!
//! # Sites
//!
//! Every activation has an address, its *site*: a [`Point`] (a kind of activation, such as
//! `resid_post`, `z` or `mlp_act`) at a layer. A site is the same tensor on every architecture. If
//! a model does not have a site, the error says why. Patterns name several (`layers.*.resid_post`,
//! `layers.3-7.z`), and the names of TransformerLens work as well (`blocks.2.attn.hook_pattern`).
//!
//! ```
//! use pellucid::{Point, Site};
//! let model = pellucid::load("builtin")?;
//! let site = Site::layer(2, Point::Z);
//! assert_eq!(site.to_string(), "layers.2.z");
//! assert!(model.program().edge_of(site).is_some());
//! assert_eq!(Point::Z.info().meaning, "input of attention's output projection, by head");
//! # Ok::<(), pellucid::Error>(())
//! ```
//!
//! # Look: captures
//!
//! A [`Plan`] is a list of taps. A [`Tap`] is a site, a selection there, and one action. A captured
//! value is a snapshot: later edits do not change it. A whole activation is captured without a
//! copy.
//!
//! ```
//! use pellucid::{Plan, Reduce, Tap};
//! let model = pellucid::load("builtin")?;
//! let plan = Plan::of([
//!     Tap::capture("layers.*.resid_post").last(),
//!     Tap::capture("layers.2.attn_probs").heads([0, 1]),
//!     Tap::capture_reduced("layers.4.mlp_act", Reduce::TopK(5)).token(" dog"),
//! ]);
//! let run = model.run(&["Tom saw a dog. The"], &plan)?;
//! assert_eq!(run.captures.len(), 6 + 1 + 1);
//! let pattern = &run.captures[6];
//! assert_eq!((pattern.site.to_string().as_str(), pattern.array.shape()), ("layers.2.attn_probs", &[2, 6, 6][..]));
//! # Ok::<(), pellucid::Error>(())
//! ```
//!
//! # Change: edits
//!
//! Edits replace, add, scale, zero, ablate, project and cap values, skip layers, or call a closure.
//! The operand is a number, a vector, the value of another row or site, or a computed value.
//! Several prompts in one call are rows of one batch, without padding; a row gives the same bits
//! alone and in a batch.
//!
//! ```
//! use pellucid::{GenerateOptions, Plan, Tap};
//! let model = pellucid::load("builtin")?;
//! let prompts = ["Tom saw a dog. The", "Lily saw a bird. The"];
//! // At the position of " bird" in row 1, write row 0's residual stream of " dog" after layer 0.
//! let patch = Plan::of([Tap::set("layers.0.resid_post").from_row(0).rows([1]).positions(3)]);
//! let short = || GenerateOptions { max_new: 3, ..GenerateOptions::default() };
//! assert!(model.generate(&prompts, &Plan::default(), short())?.rows[1].text.starts_with(" bird"));
//! assert!(model.generate(&prompts, &patch, short())?.rows[1].text.starts_with(" dog"));
//! # Ok::<(), pellucid::Error>(())
//! ```
//!
//! # Steer: a vector at every step
//!
//! A plan is active at every step of a generation.
//!
//! ```
//! use pellucid::{GenerateOptions, Plan, Tap};
//! let model = pellucid::load("builtin")?;
//! // The difference of two prompts' residual streams at the last position is a direction.
//! let look = Plan::of([Tap::capture("layers.2.resid_post").last()]);
//! let run = model.run(&["She was very sad", "She was very happy"], &look)?;
//! let (sad, happy) = (run.captures[0].array.values(), run.captures[1].array.values());
//! let direction: Vec<f32> = sad.iter().zip(happy).map(|(sad, happy)| sad - happy).collect();
//! let steer = Plan::of([Tap::add("layers.2.resid_post").times(2.0).with(direction)]);
//! let options = || GenerateOptions { max_new: 12, ..GenerateOptions::default() };
//! let prompt = ["One day, Lily went to the park."];
//! let plain = model.generate(&prompt, &Plan::default(), options())?;
//! let steered = model.generate(&prompt, &steer, options())?;
//! assert_ne!(plain.rows[0].text, steered.rows[0].text);
//! # Ok::<(), pellucid::Error>(())
//! ```
//!
//! [`SteeringVectors`] reads such directions from safetensors files and GGUF control vectors:
//! `Plan::of(SteeringVectors::open(path)?.taps(1.5)?)`.
//!
//! # Compute: values and gradients
//!
//! Values that taps read can be used in expressions inside the run ([`plan::Expr`]). A scalar value
//! is a metric, and its gradients can be captured at any site.
//!
//! ```
//! use pellucid::plan::{Across, Expr, Pick};
//! use pellucid::{Plan, Tap};
//! let model = pellucid::load("builtin")?;
//! let dog = model.encode(" dog")?[0] as i64;
//! let mut plan = Plan::default();
//! let logits = plan.read(Tap::read("logits").last());
//! let logit = plan.value(Expr::Index { of: logits, picks: vec![Pick::At(0), Pick::At(dog)] });
//! let metric = plan.value(Expr::Across { of: logit, how: Across::Sum }); // a scalar over all rows
//! plan.save_value(metric);
//! let of_dog = plan.add_metric(metric);
//! let plan = plan.with(Tap::capture("layers.2.resid_post").of_gradient(of_dog));
//! let run = model.run(&["Tom saw a dog. The"], &plan)?;
//! assert_eq!(run.value(metric, 0).map(|logit| logit.values().len()), Some(1));
//! assert_eq!(run.captures[0].array.shape(), [6, 128]);
//! # Ok::<(), pellucid::Error>(())
//! ```
//!
//! # Plans are data
//!
//! A plan without closures can be written as JSON, the same for the command line, Python and Rust.
//! Plans are checked before anything runs.
//!
//! ```
//! use pellucid::{Plan, Tap};
//! let plan = Plan::of([Tap::zero("layers.5.z").heads([3])]);
//! assert_eq!(Plan::from_json(r#"{"taps": [{"site": "layers.5.z", "heads": [3], "zero": true}]}"#)?, plan);
//! let model = pellucid::load("builtin").unwrap();
//! assert_eq!(model.check(&["Tom"], &Plan::of([Tap::zero("layers.9.z")])).unwrap().len(), 1);
//! # Ok::<(), String>(())
//! ```
//!
//! # Further
//!
//! This crate is a facade. [`engine`] has the op list, plans, gradients, branches and generation on
//! tokens; [`models`] loads directories and GGUF files, tokenizers and chat templates, and inspects
//! models that cannot run.

mod generate;
mod model;

pub use generate::{GenerateOptions, GeneratedText, Generation, OnText};
pub use model::{Model, Prompt, load};

pub use pellucid_engine as engine;
#[doc(hidden)]
pub use pellucid_engine::SavedValue as Saved;
#[doc(hidden)]
pub use pellucid_engine::SelectedRow as Selected;
pub use pellucid_engine::plan::{self, FromSite, Injection};
pub use pellucid_engine::{
    Action, Array, Callback, Capture, CaptureDtype, CaptureOptions, Finish, Interrupt, Mark, Operand, Phase, Plan,
    Point, Positions, PrefixCache, Reduce, Remedy, RowAdapters, Run, RunOptions, Sampling, SavedValue, SelectedRow,
    Site, SteeringSpec, Tap, When,
};
pub use pellucid_models as models;
pub use pellucid_models::chat::{Conversation, Message};
pub use pellucid_models::steer::SteeringVectors;
pub use pellucid_models::{Error, LoadOptions, Result};

/// The example program of the README, compiled and run as a test.
#[cfg(doctest)]
#[doc = concat!("```\n", include_str!("../examples/look_and_change.rs"), "\n```")]
struct LookAndChange;
