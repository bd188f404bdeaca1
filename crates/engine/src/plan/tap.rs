//! Taps and their builder methods: a constructor per action, then methods that narrow the
//! selection.

use super::{Action, Callback, FromSite, Injection, Operand, Phase, Positions, Reduce, SelectedRow, When};
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// A site, a selection and an action.
///
/// A constructor takes the site: an address (`layers.5.resid_post`), a pattern (`layers.*.z`,
/// `layers.3-7.z`, `layers.{0,11}.z`) or an alias. The methods after it narrow the selection, which
/// is all rows and positions by default.
///
/// ```
/// use pellucid_engine::{Plan, Reduce, Tap};
/// let plan = Plan::of([
///     // Capture the residual stream at the last position, and row 0's top 5 neurons of layer 2.
///     Tap::capture("layers.*.resid_post").last(),
///     Tap::capture_reduced("layers.2.mlp_act", Reduce::TopK(5)).rows([0]),
///     // Zero heads 3 and 7 of layer 5; patch position 3 of row 1 from row 0.
///     Tap::zero("layers.5.z").heads([3, 7]),
///     Tap::set("layers.0.resid_post").from_row(0).rows([1]).positions(3),
/// ]);
/// # assert_eq!(Plan::from_json(&plan.to_json().unwrap()).unwrap(), plan);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tap {
    /// Address, pattern or alias.
    pub site: String,
    /// Rows (inputs of the call); all if absent.
    pub rows: Option<Vec<usize>>,
    /// Positions.
    pub positions: Positions,
    /// Phase of a generation.
    pub phase: Phase,
    /// Steps of a generation; step 0 is the last prompt position.
    pub steps: Option<Positions>,
    /// Heads, for sites that have them.
    pub heads: Option<Vec<usize>>,
    /// Units (columns).
    pub units: Option<Vec<usize>>,
    /// Experts, for the router's sites and `expert_out`: the slots that hold one of them.
    pub experts: Option<Vec<usize>>,
    /// Key positions, for attention sites.
    pub keys: Option<Positions>,
    /// Condition: the action applies only at the positions where it holds.
    pub when: Option<When>,
    /// The action.
    pub action: Action,
}

/// Methods of [`SetTap`] and [`AddTap`] that supply the operand and complete the tap.
macro_rules! operands {
    ($tap:ident, $verb:literal) => {
        impl $tap {
            #[doc = $verb]
            /// a number, a vector (`Vec<f32>` or `&[f32]`, one element per selected unit), a matrix
            /// (`Vec<Vec<f32>>`, one vector per selected position), or any other [`Operand`].
            pub fn with(self, operand: impl Into<Operand>) -> Tap {
                self.finish(operand.into())
            }

            #[doc = $verb]
            /// the activation of the same site in another row of the call.
            pub fn from_row(self, row: usize) -> Tap {
                self.finish(Operand::From(FromSite::default().row(row)))
            }

            #[doc = $verb]
            /// the activation of another site in the same row.
            pub fn from_site(self, site: impl Into<String>) -> Tap {
                self.finish(Operand::From(FromSite::default().site(site)))
            }

            #[doc = $verb]
            /// another activation of this run, given by site, row and positions.
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

/// A `set` tap without its operand yet: [`Tap::set`], [`Tap::mean_ablate`], [`Tap::skip_to`].
#[must_use = "call `with` or a `from_*` method to complete the tap"]
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

/// An `add` tap without its operand yet: [`Tap::add`].
#[must_use = "call `with` or a `from_*` method to complete the tap"]
pub struct AddTap {
    site: String,
    scale: f32,
}

impl AddTap {
    /// Scales the operand.
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
    /// Returns a tap with any action, on all rows and positions.
    pub fn new(site: impl Into<String>, action: Action) -> Tap {
        Tap {
            site: site.into(),
            rows: None,
            positions: Positions::All,
            phase: Phase::All,
            steps: None,
            heads: None,
            units: None,
            experts: None,
            keys: None,
            when: None,
            action,
        }
    }

    /// Captures the activation.
    pub fn capture(site: impl Into<String>) -> Tap {
        Tap::new(site, Action::Capture(None))
    }

    /// Captures a reduction of the activation: mean, norm, top-k or inner product with a vector.
    pub fn capture_reduced(site: impl Into<String>, reduce: Reduce) -> Tap {
        Tap::new(site, Action::Capture(Some(reduce)))
    }

    /// Reads the activation into a value of the plan; see [`Plan::read`](super::Plan::read).
    pub fn read(site: impl Into<String>) -> Tap {
        Tap::new(site, Action::Read)
    }

    /// Replaces the activation by a number, a vector, or another row's or site's activation.
    ///
    /// ```
    /// use pellucid_engine::plan::FromSite;
    /// use pellucid_engine::Tap;
    /// let constant = Tap::set("layers.3.mlp_out").with(0.5);
    /// let patched = Tap::set("layers.3.mlp_out").from_row(0).rows([1]);
    /// // Row 0 at " dog" is written to row 1 at " bird".
    /// let by_token = Tap::set("layers.3.mlp_out").from(FromSite::default().row(0).token(" dog")).rows([1]).token(" bird");
    /// # let _ = (constant, patched, by_token);
    /// ```
    pub fn set(site: impl Into<String>) -> SetTap {
        SetTap { site: site.into(), action: Action::Set }
    }

    /// Replaces the activation by its mean over a dataset, supplied by the caller.
    pub fn mean_ablate(site: impl Into<String>) -> SetTap {
        SetTap { site: site.into(), action: Action::MeanAblate }
    }

    /// Adds to the activation.
    pub fn add(site: impl Into<String>) -> AddTap {
        AddTap { site: site.into(), scale: 1.0 }
    }

    /// Multiplies the activation.
    pub fn scale(site: impl Into<String>, by: f32) -> Tap {
        Tap::new(site, Action::Scale(by))
    }

    /// Sets the activation to zero.
    pub fn zero(site: impl Into<String>) -> Tap {
        Tap::new(site, Action::Zero)
    }

    /// Removes the component along a direction.
    pub fn project_out(site: impl Into<String>, direction: impl Into<Operand>) -> Tap {
        Tap::scale_along(site, direction, 0.0)
    }

    /// Scales the component along a direction; 0 removes it, 1 changes nothing.
    pub fn scale_along(site: impl Into<String>, direction: impl Into<Operand>, scale: f32) -> Tap {
        Tap::new(site, Action::ProjectOut { vector: direction.into(), scale })
    }

    /// Clamps the component along a direction.
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

    /// Adds a direction in proportion to the activation's norm: `h + s‖h‖v/‖v‖`.
    pub fn add_scaled(site: impl Into<String>, direction: impl Into<Operand>, scale: f32) -> Tap {
        Tap::new(site, Action::AddScaled { vector: direction.into(), scale })
    }

    /// Adds a vector and keeps the activation's norm: `(h + sv)‖h‖/‖h + sv‖`.
    pub fn norm_match(site: impl Into<String>, vector: impl Into<Operand>, scale: f32) -> Tap {
        Tap::new(site, Action::NormMatch { vector: vector.into(), scale })
    }

    /// Removes the component along a direction, then adds the vector: `h − (h·v)v/‖v‖² + sv`.
    pub fn orthogonal(site: impl Into<String>, vector: impl Into<Operand>, scale: f32) -> Tap {
        Tap::new(site, Action::Orthogonal { vector: vector.into(), scale })
    }

    /// Exchanges the components along two directions.
    pub fn swap(site: impl Into<String>, first: impl Into<Operand>, second: impl Into<Operand>) -> Tap {
        Tap::new(site, Action::Swap { first: first.into(), second: second.into() })
    }

    /// Runs other experts in place of chosen ones, at `expert_indices`: pairs of a chosen expert
    /// and the expert that runs in its place. The weights stay.
    ///
    /// ```
    /// use pellucid_engine::Tap;
    /// let rerouted = Tap::replace("layers.3.expert_indices", [(5, 2)]);
    /// let swapped = Tap::replace("layers.3.expert_indices", [(5, 2), (2, 5)]);
    /// # let _ = (rerouted, swapped);
    /// ```
    pub fn replace(site: impl Into<String>, experts: impl IntoIterator<Item = (usize, usize)>) -> Tap {
        Tap::new(site, Action::Replace(experts.into_iter().collect()))
    }

    /// Writes or adds a vector, usually at a placeholder token.
    ///
    /// ```
    /// use pellucid_engine::plan::{FromSite, Injection};
    /// use pellucid_engine::{Operand, Tap};
    /// // Patchscopes: row 0's residual stream at its last position replaces row 1's at " x".
    /// let source = Operand::From(FromSite::default().site("layers.4.resid_post").row(0).positions(-1));
    /// let patch = Tap::inject("layers.1.resid_post", source, Injection::default()).rows([1]).token(" x");
    /// // Activation oracles: the vector, with the norm of the activation, is added to it.
    /// let how = Injection { add: true, norm_match: true, ..Injection::default() };
    /// let oracle = Tap::inject("layers.1.resid_post", vec![1.0, -1.0], how).token(" ?");
    /// # let _ = (patch, oracle);
    /// ```
    pub fn inject(site: impl Into<String>, operand: impl Into<Operand>, how: Injection) -> Tap {
        Tap::new(site, Action::Inject { operand: operand.into(), how })
    }

    /// Ends the row's generation where a condition holds.
    pub fn stop(when: When) -> Tap {
        Tap::new(when.site.clone(), Action::Stop).when(when)
    }

    /// Reports under a name each position where a condition holds; see
    /// [`Run::marks`](crate::Run::marks) and [`Generation::marks`](crate::Generation::marks).
    pub fn mark(name: impl Into<String>, when: When) -> Tap {
        Tap::new(when.site.clone(), Action::Mark(name.into())).when(when)
    }

    /// Skips a layer such as `layers.5`: its output is its input.
    pub fn skip(layer: impl Into<String>) -> Tap {
        Tap::new(layer, Action::Skip(None))
    }

    /// Skips a layer: its output is the operand.
    pub fn skip_to(layer: impl Into<String>) -> SetTap {
        SetTap { site: layer.into(), action: |operand| Action::Skip(Some(operand)) }
    }

    /// Calls a closure that can read and change the activations of all selected rows.
    ///
    /// ```
    /// use pellucid_engine::Tap;
    /// let clamp = Tap::call("layers.2.mlp_act", |rows| {
    ///     rows.iter_mut().flat_map(|row| &mut row.values).for_each(|x| *x = x.min(2.0));
    /// });
    /// # let _ = clamp;
    /// ```
    pub fn call(site: impl Into<String>, change: impl Fn(&mut [SelectedRow]) + Send + Sync + 'static) -> Tap {
        Tap::new(site, Action::Call(Callback(Arc::new(change))))
    }

    /// Applies the action to the gradient of one of the plan's metrics instead of to the
    /// activation.
    pub fn of_gradient(mut self, metric: usize) -> Tap {
        self.action = Action::Grad { metric, action: Box::new(self.action) };
        self
    }
}

/// Selection.
impl Tap {
    /// Selects rows of the call.
    pub fn rows(mut self, rows: impl IntoIterator<Item = usize>) -> Tap {
        self.rows = Some(rows.into_iter().collect());
        self
    }

    /// Selects positions: one, a list, a range, or any [`Positions`]. Negative positions count from
    /// the end of the prompt.
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

    /// Selects the last position of the prompt.
    pub fn last(self) -> Tap {
        self.positions(Positions::Last)
    }

    /// Selects the positions of the prompt.
    pub fn prompt(self) -> Tap {
        self.positions(Positions::Prompt)
    }

    /// Selects the generated positions.
    pub fn generated(self) -> Tap {
        self.positions(Positions::Generated)
    }

    /// Selects the position of a token in the prompt, by its text (` dog`, with its space).
    pub fn token(self, text: impl Into<String>) -> Tap {
        self.positions(Positions::Token(text.into()))
    }

    /// Selects heads.
    pub fn heads(mut self, heads: impl IntoIterator<Item = usize>) -> Tap {
        self.heads = Some(heads.into_iter().collect());
        self
    }

    /// Selects units (columns).
    pub fn units(mut self, units: impl IntoIterator<Item = usize>) -> Tap {
        self.units = Some(units.into_iter().collect());
        self
    }

    /// Selects experts by their number: the slots of each token that hold one of them.
    ///
    /// ```
    /// use pellucid_engine::Tap;
    /// // Ablate expert 5 wherever the router chooses it; scale the weight of experts 2 and 3.
    /// let ablated = Tap::zero("layers.3.expert_out").experts([5]);
    /// let scaled = Tap::scale("layers.3.expert_weights", 0.5).experts([2, 3]);
    /// # let _ = (ablated, scaled);
    /// ```
    pub fn experts(mut self, experts: impl IntoIterator<Item = usize>) -> Tap {
        self.experts = Some(experts.into_iter().collect());
        self
    }

    /// Selects key positions of attention sites.
    pub fn keys(mut self, keys: impl Into<Positions>) -> Tap {
        self.keys = Some(keys.into());
        self
    }

    /// Selects a phase of a generation.
    pub fn phase(mut self, phase: Phase) -> Tap {
        self.phase = phase;
        self
    }

    /// Selects steps of a generation; step 0 is the last prompt position.
    pub fn steps(mut self, steps: impl Into<Positions>) -> Tap {
        self.steps = Some(steps.into());
        self
    }

    /// Applies the action only at the positions where a condition holds.
    pub fn when(mut self, when: When) -> Tap {
        self.when = Some(when);
        self
    }

    /// Shifts the value ids in the operands by `values`, for a plan that is appended to another.
    pub(crate) fn with_values_after(mut self, values: usize) -> Tap {
        for operand in self.action.operands_mut() {
            if let Operand::Value(value) = operand {
                *value = value.after(values);
            }
        }
        self
    }
}

/// Builder methods.
impl FromSite {
    /// Sets the source site; defaults to the tap's site.
    pub fn site(mut self, site: impl Into<String>) -> FromSite {
        self.site = Some(site.into());
        self
    }

    /// Sets the source row; defaults to the tap's row.
    pub fn row(self, row: usize) -> FromSite {
        self.rows([row])
    }

    /// Sets the source rows, one per row of the tap.
    pub fn rows(mut self, rows: impl IntoIterator<Item = usize>) -> FromSite {
        self.rows = Some(rows.into_iter().collect());
        self
    }

    /// Sets the source positions, as many as the tap selects or one for all; defaults to the tap's
    /// positions.
    pub fn positions(mut self, positions: impl Into<Positions>) -> FromSite {
        self.positions = Some(positions.into());
        self
    }

    /// Sets the source position to that of a token in the source row, by its text.
    pub fn token(self, text: impl Into<String>) -> FromSite {
        self.positions(Positions::Token(text.into()))
    }
}
