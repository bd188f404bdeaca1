//! Locates the first NaN of a run.

use super::RunOptions;
use crate::error::Result;
use crate::model::Model;
use crate::plan::{Action, Expr, Plan, Reduce, Tap};
use crate::point::Point;
use crate::program::Layout;
use crate::site::Site;

/// The first site, in forward order, whose activations are NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NanOrigin {
    /// The site.
    pub site: Site,
    /// Its row.
    pub row: usize,
    /// The first position of the row with a NaN there.
    pub position: usize,
    /// An earlier site, or the same one, whose norm is infinite: NaN is often `inf - inf`.
    pub infinite: Option<Site>,
}

impl Model {
    /// Runs the rows again under the plan and returns where NaN first appears; `None` if all
    /// activations are numbers, or if the plan calls functions, which would be called twice.
    ///
    /// It captures the norm of every site, so it needs little memory. Attention scores are left
    /// out: their NaN appears at `z` of the same layer.
    pub fn find_nan(&self, inputs: &[Vec<u32>], plan: &Plan, options: &RunOptions) -> Result<Option<NanOrigin>> {
        let calls = |tap: &Tap| matches!(tap.action, Action::Call(_));
        if plan.taps.iter().any(calls) || plan.values.iter().any(|value| matches!(value.expr, Expr::Call { .. })) {
            return Ok(None);
        }
        let mut plan = plan.clone();
        let first = plan.taps.len();
        for site in self.program().sites() {
            // Sites that only taps compute are large and copies of others.
            let skipped = matches!(site.point, Point::HeadOut | Point::MixerState);
            let Some(edge) = self.program().edge_of(site).map(|id| self.program().edge(id)) else { continue };
            if !skipped && !edge.integer && edge.layout != Layout::QueryKey {
                plan.taps.push(Tap::new(site.to_string(), Action::Capture(Some(Reduce::Norm))));
            }
        }
        let run = self.run(inputs, &plan, options)?;
        let mut infinite = None;
        for capture in run.captures.iter().filter(|capture| capture.tap >= first) {
            let norms = capture.array.values();
            if infinite.is_none() && norms.iter().any(|norm| norm.is_infinite()) {
                infinite = Some(capture.site);
            }
            if let Some(at) = norms.iter().position(|norm| norm.is_nan()) {
                let position = capture.positions[at * capture.positions.len() / norms.len()];
                return Ok(Some(NanOrigin { site: capture.site, row: capture.row, position, infinite }));
            }
        }
        Ok(None)
    }
}
