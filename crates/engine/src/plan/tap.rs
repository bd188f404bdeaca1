//! Taps, and how they are built: an action at a site, then what it selects.

use super::{Action, Callback, FromSite, Operand, Phase, Positions, Reduce, Selected};
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// A site, a selection and an action.
///
/// A constructor names the action and the site, which is an address (`layers.5.resid_post`), a pattern (`layers.*.z`,
/// `layers.3-7.z`, `layers.{0,11}.z`) or an alias. The methods after it narrow the selection; without them a tap is on all rows
/// and positions.
///
/// ```
/// use pellucid_engine::{Plan, Reduce, Tap};
/// let plan = Plan::of([
///     // Look: the residual stream at the last position, and the five largest neurons of layer 2 in row 0.
///     Tap::capture("layers.*.resid_post").last(),
///     Tap::capture_reduced("layers.2.mlp_act", Reduce::TopK(5)).rows([0]),
///     // Change: heads 3 and 7 of layer 5 off; at position 3 row 1 gets what row 0 has there.
///     Tap::zero("layers.5.z").heads([3, 7]),
///     Tap::set("layers.0.resid_post").from_row(0).rows([1]).positions(3),
/// ]);
/// # assert_eq!(Plan::from_json(&plan.to_json().unwrap()).unwrap(), plan);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tap {
    /// Address, pattern or alias.
    pub site: String,
    /// Which inputs of the call; all where absent.
    pub rows: Option<Vec<usize>>,
    /// Which positions.
    pub positions: Positions,
    /// Which phase of a generation.
    pub phase: Phase,
    /// Which steps of a generation: step 0 is the last prompt position.
    pub steps: Option<Positions>,
    /// Which heads, for sites that have them.
    pub heads: Option<Vec<usize>>,
    /// Which units (columns).
    pub units: Option<Vec<usize>>,
    /// Which key positions, for attention sites.
    pub keys: Option<Positions>,
    /// What to do there.
    pub action: Action,
}

/// What a [`SetTap`] and an [`AddTap`] take as their operand.
macro_rules! operands {
    ($tap:ident, $verb:literal) => {
        impl $tap {
            #[doc = $verb]
            /// a number, a vector (`Vec<f32>`, `&[f32]`: one number for each selected unit), rows of vectors (`Vec<Vec<f32>>`: one
            /// for each selected position), or any other [`Operand`].
            pub fn with(self, operand: impl Into<Operand>) -> Tap {
                self.finish(operand.into())
            }

            #[doc = $verb]
            /// the same site's value in another row of the call.
            pub fn from_row(self, row: usize) -> Tap {
                self.finish(Operand::From(FromSite::default().row(row)))
            }

            #[doc = $verb]
            /// another site's value in the same row.
            pub fn from_site(self, site: impl Into<String>) -> Tap {
                self.finish(Operand::From(FromSite::default().site(site)))
            }

            #[doc = $verb]
            /// another value of this run: of a site, row and positions.
            pub fn from(self, source: FromSite) -> Tap {
                self.finish(Operand::From(source))
            }

            #[doc = $verb]
            /// a tensor of a safetensors file, `file.safetensors#name`.
            pub fn from_file(self, reference: impl Into<String>) -> Tap {
                self.finish(Operand::File(reference.into()))
            }
        }
    };
}

/// A tap that replaces values and does not yet say by what: [`Tap::set`], [`Tap::mean_ablate`], [`Tap::skip_to`].
#[must_use = "it is a tap when it says what it writes"]
pub struct SetTap {
    site: String,
    action: fn(Operand) -> Action,
}

impl SetTap {
    fn finish(self, operand: Operand) -> Tap {
        Tap::new(self.site, (self.action)(operand))
    }
}

operands!(SetTap, "Writes");

/// A tap that adds to values and does not yet say what: [`Tap::add`].
#[must_use = "it is a tap when it says what it adds"]
pub struct AddTap {
    site: String,
    scale: f32,
}

impl AddTap {
    /// Multiplies what is added.
    ///
    /// ```
    /// use pellucid_engine::{Action, Operand, Tap};
    /// let steer = Tap::add("layers.2.resid_post").times(0.5).with(vec![1.0, -1.0]);
    /// assert_eq!(steer.action, Action::Add { operand: Operand::Vector(vec![1.0, -1.0]), scale: 0.5 });
    /// ```
    pub fn times(mut self, scale: f32) -> AddTap {
        self.scale = scale;
        self
    }

    fn finish(self, operand: Operand) -> Tap {
        Tap::new(self.site, Action::Add { operand, scale: self.scale })
    }
}

operands!(AddTap, "Adds");

/// One constructor for each action.
impl Tap {
    /// A tap with any action, on all rows and positions.
    pub fn new(site: impl Into<String>, action: Action) -> Tap {
        Tap {
            site: site.into(),
            rows: None,
            positions: Positions::All,
            phase: Phase::All,
            steps: None,
            heads: None,
            units: None,
            keys: None,
            action,
        }
    }

    /// Captures the values.
    pub fn capture(site: impl Into<String>) -> Tap {
        Tap::new(site, Action::Capture(None))
    }

    /// Captures a reduction of the values: their mean, norm, top-k or inner product with a vector.
    pub fn capture_reduced(site: impl Into<String>, reduce: Reduce) -> Tap {
        Tap::new(site, Action::Capture(Some(reduce)))
    }

    /// Reads the values, for the plan's expressions; [`Plan::read`](super::Plan::read) takes such a tap.
    pub fn read(site: impl Into<String>) -> Tap {
        Tap::new(site, Action::Read)
    }

    /// Replaces the values: by a number, a vector, another row's, another site's.
    ///
    /// ```
    /// use pellucid_engine::plan::FromSite;
    /// use pellucid_engine::Tap;
    /// let constant = Tap::set("layers.3.mlp_out").with(0.5);
    /// let patched = Tap::set("layers.3.mlp_out").from_row(0).rows([1]);
    /// // Of row 0 the position of " dog", wherever row 1 has " bird".
    /// let by_token = Tap::set("layers.3.mlp_out").from(FromSite::default().row(0).token(" dog")).rows([1]).token(" bird");
    /// # let _ = (constant, patched, by_token);
    /// ```
    pub fn set(site: impl Into<String>) -> SetTap {
        SetTap { site: site.into(), action: Action::Set }
    }

    /// Replaces the values by their mean over some data, which the caller gives.
    pub fn mean_ablate(site: impl Into<String>) -> SetTap {
        SetTap { site: site.into(), action: Action::MeanAblate }
    }

    /// Adds to the values.
    pub fn add(site: impl Into<String>) -> AddTap {
        AddTap { site: site.into(), scale: 1.0 }
    }

    /// Multiplies the values.
    pub fn scale(site: impl Into<String>, by: f32) -> Tap {
        Tap::new(site, Action::Scale(by))
    }

    /// Replaces the values by zeros.
    pub fn zero(site: impl Into<String>) -> Tap {
        Tap::new(site, Action::Zero)
    }

    /// Removes a direction from the values.
    pub fn project_out(site: impl Into<String>, direction: impl Into<Operand>) -> Tap {
        Tap::scale_along(site, direction, 0.0)
    }

    /// Multiplies the part of the values that lies along a direction; 0 removes it, 1 changes nothing.
    pub fn scale_along(site: impl Into<String>, direction: impl Into<Operand>, scale: f32) -> Tap {
        Tap::new(site, Action::ProjectOut { vector: direction.into(), scale })
    }

    /// Keeps the values along a direction within limits.
    ///
    /// ```
    /// use pellucid_engine::Tap;
    /// let at_most_four = Tap::cap("layers.2.resid_post", vec![1.0, 0.0], ..=4.0);
    /// let within = Tap::cap("layers.2.resid_post", vec![1.0, 0.0], -1.0..=4.0);
    /// # let _ = (at_most_four, within);
    /// ```
    pub fn cap(site: impl Into<String>, direction: impl Into<Operand>, limits: impl RangeBounds<f32>) -> Tap {
        let limit = |bound: Bound<&f32>| match bound {
            Bound::Included(limit) | Bound::Excluded(limit) => Some(*limit),
            Bound::Unbounded => None,
        };
        let (min, max) = (limit(limits.start_bound()), limit(limits.end_bound()));
        Tap::new(site, Action::Cap { vector: direction.into(), min, max })
    }

    /// Skips a layer, such as `layers.5`: its output is its input.
    pub fn skip(layer: impl Into<String>) -> Tap {
        Tap::new(layer, Action::Skip(None))
    }

    /// Skips a layer: its output is something else.
    pub fn skip_to(layer: impl Into<String>) -> SetTap {
        SetTap { site: layer.into(), action: |operand| Action::Skip(Some(operand)) }
    }

    /// Lets a closure read and change the values of all rows at once.
    ///
    /// ```
    /// use pellucid_engine::Tap;
    /// let clamp = Tap::call("layers.2.mlp_act", |rows| {
    ///     rows.iter_mut().flat_map(|row| &mut row.values).for_each(|x| *x = x.min(2.0));
    /// });
    /// # let _ = clamp;
    /// ```
    pub fn call(site: impl Into<String>, change: impl Fn(&mut [Selected]) + Send + Sync + 'static) -> Tap {
        Tap::new(site, Action::Call(Callback(Arc::new(change))))
    }

    /// Applies the tap's action to the gradient of one of the plan's metrics, instead of to the value.
    pub fn of_gradient(mut self, metric: usize) -> Tap {
        self.action = Action::Grad { metric, action: Box::new(self.action) };
        self
    }
}

/// What a tap selects.
impl Tap {
    /// Only these rows of the call.
    pub fn rows(mut self, rows: impl IntoIterator<Item = usize>) -> Tap {
        self.rows = Some(rows.into_iter().collect());
        self
    }

    /// Only these positions: one, a list, a range, or any [`Positions`]. Negative ones count from the end of the prompt.
    ///
    /// ```
    /// use pellucid_engine::{Positions, Tap};
    /// assert_eq!(Tap::zero("embed").positions(3).positions, Positions::List(vec![3]));
    /// assert_eq!(Tap::zero("embed").positions([0, -1]).positions, Positions::parse("0,-1"));
    /// assert_eq!(Tap::zero("embed").positions(2..6).positions, Positions::parse("2:6"));
    /// assert_eq!(Tap::zero("embed").positions(-4..).positions, Positions::parse("-4:"));
    /// ```
    pub fn positions(mut self, positions: impl Into<Positions>) -> Tap {
        self.positions = positions.into();
        self
    }

    /// Only the last position of the prompt.
    pub fn last(self) -> Tap {
        self.positions(Positions::Last)
    }

    /// Only the positions of the prompt.
    pub fn prompt(self) -> Tap {
        self.positions(Positions::Prompt)
    }

    /// Only the positions that are generated.
    pub fn generated(self) -> Tap {
        self.positions(Positions::Generated)
    }

    /// Only where a token stands in the prompt, by its text (` dog`, with its space).
    pub fn token(self, text: impl Into<String>) -> Tap {
        self.positions(Positions::Token(text.into()))
    }

    /// Only these heads.
    pub fn heads(mut self, heads: impl IntoIterator<Item = usize>) -> Tap {
        self.heads = Some(heads.into_iter().collect());
        self
    }

    /// Only these units (columns).
    pub fn units(mut self, units: impl IntoIterator<Item = usize>) -> Tap {
        self.units = Some(units.into_iter().collect());
        self
    }

    /// Only these key positions, of attention sites.
    pub fn keys(mut self, keys: impl Into<Positions>) -> Tap {
        self.keys = Some(keys.into());
        self
    }

    /// Only this phase of a generation.
    pub fn phase(mut self, phase: Phase) -> Tap {
        self.phase = phase;
        self
    }

    /// Only these steps of a generation; step 0 is the last prompt position.
    pub fn steps(mut self, steps: impl Into<Positions>) -> Tap {
        self.steps = Some(steps.into());
        self
    }

    /// The same tap in a plan that has `values` values before its own.
    pub(crate) fn with_values_after(mut self, values: usize) -> Tap {
        for operand in self.action.operands_mut() {
            if let Operand::Value(value) = operand {
                *value = value.after(values);
            }
        }
        self
    }
}

/// A source is built like a selection.
impl FromSite {
    /// Of this site; the tap's own where this is not said.
    pub fn site(mut self, site: impl Into<String>) -> FromSite {
        self.site = Some(site.into());
        self
    }

    /// Of this row; the tap's own where this is not said.
    pub fn row(self, row: usize) -> FromSite {
        self.rows([row])
    }

    /// Of these rows, one for each row of the tap.
    pub fn rows(mut self, rows: impl IntoIterator<Item = usize>) -> FromSite {
        self.rows = Some(rows.into_iter().collect());
        self
    }

    /// Of these positions, as many as the tap selects, or one for all; the tap's own where this is not said.
    pub fn positions(mut self, positions: impl Into<Positions>) -> FromSite {
        self.positions = Some(positions.into());
        self
    }

    /// Of the position where a token stands in the source row, by its text.
    pub fn token(self, text: impl Into<String>) -> FromSite {
        self.positions(Positions::Token(text.into()))
    }
}
