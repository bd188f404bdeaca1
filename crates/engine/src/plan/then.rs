//! One plan after another.

use super::{Action, Plan};

impl Plan {
    /// Both plans as one: the taps of this one come first, as those of standing edits do.
    ///
    /// The later plan's taps, values and metrics keep their order after this one's, so that tap `i` of it is tap
    /// `self.taps.len() + i` of the whole, and likewise for the others.
    ///
    /// ```
    /// use pellucid_engine::{Action, Plan, Tap};
    /// let edits = Plan::default().with(Tap::new("layers.0.z", Action::Zero));
    /// let both = edits.then(Plan::capture(["logits"]));
    /// assert_eq!(both.taps[1].site, "logits");
    /// ```
    pub fn then(mut self, later: Plan) -> Plan {
        let (taps, values, metrics) = (self.taps.len(), self.values.len(), self.metrics.len());
        self.taps.extend(later.taps.into_iter().map(|tap| {
            let mut tap = tap.with_values_after(values);
            if let Action::Grad { metric, .. } = &mut tap.action {
                *metric += metrics;
            }
            tap
        }));
        self.values.extend(later.values.into_iter().map(|value| value.after(taps, values, metrics)));
        self.save.extend(later.save.iter().map(|id| id.after(values)));
        self.metrics.extend(later.metrics.iter().map(|id| id.after(values)));
        self.allow_nan |= later.allow_nan;
        self
    }
}
