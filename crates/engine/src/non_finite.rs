//! Finds where NaN or infinity begins in a run.
//!
//! Nothing looks for them while a model runs. If a result contains one, [`Model::find_non_finite`]
//! runs the same rows again and looks at the output of every op.

use crate::job::{Job, Pass};
use crate::memory::Value;
use crate::plan::CompiledTap;
use crate::program::{EdgeId, Program};
use crate::site::Site;
use std::fmt;

#[cfg(doc)]
use crate::Model;

/// The first NaN or infinity of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct NonFinite {
    /// The site; `None` if the activation has no name.
    pub site: Option<Site>,
    /// Kind of the op that computed it, such as `matmul`.
    pub op: &'static str,
    /// Layer of the op.
    pub layer: Option<usize>,
    /// Row of the call.
    pub row: usize,
    /// Position in the row.
    pub position: usize,
    /// Unit of the activation.
    pub unit: usize,
    /// NaN, infinity or -infinity.
    pub value: f32,
    /// The last tap of the plan that edits the activation at this site, which may have written it.
    pub edited_by: Option<usize>,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} begins in row {} at ", self.value, self.row)?;
        match (self.site, self.layer) {
            (Some(site), _) => write!(f, "{site}")?,
            (None, Some(layer)) => write!(f, "the output of `{}` in layer {layer}", self.op)?,
            (None, None) => write!(f, "the output of `{}`", self.op)?,
        }
        write!(f, ", position {}, unit {}", self.position, self.unit)?;
        match self.edited_by {
            Some(tap) => write!(f, ", which tap {tap} of the plan edits"),
            None => write!(f, ", computed by `{}` from finite values", self.op),
        }
    }
}

/// Looks at the outputs of ops until it finds a value that is not finite.
#[derive(Default)]
pub(crate) struct NonFiniteScan {
    pub found: Option<NonFinite>,
}

impl NonFiniteScan {
    /// Looks at the value that op `index` has put on one of its edges, `[tokens, width]`.
    pub fn look(&mut self, program: &Program, pass: &Pass, jobs: &[&mut Job], edge: EdgeId, value: Option<&Value>) {
        let Some(Value::Host(value)) = value.filter(|_| self.found.is_none()) else { return };
        let spec = program.edge(edge);
        let edit = |job: &&mut Job, row: usize| {
            let taps = job.compiled.at_edge[edge].iter().map(|&index| &job.compiled.taps[index]);
            let edits = |entry: &&CompiledTap| !entry.is_read_only() && entry.rows[row].is_some();
            taps.rev().find(edits).map(|entry| entry.tap)
        };
        for segment in &pass.segments {
            for (token, position) in pass.segment_tokens(spec.token_set, segment) {
                let line = value.get(token * spec.width..(token + 1) * spec.width).unwrap_or_default();
                let Some(unit) = line.iter().position(|x| !x.is_finite()) else { continue };
                let edited_by = jobs.get(segment.job).and_then(|job| edit(job, segment.row));
                // An edit may mask with -inf on purpose.
                if line[unit] == f32::NEG_INFINITY && edited_by.is_some() {
                    continue;
                }
                let op = &program.ops()[spec.producer];
                self.found = Some(NonFinite {
                    site: program.sites().find(|&site| program.edge_of(site) == Some(edge)),
                    op: op.kind.name(),
                    layer: op.layer,
                    row: segment.row,
                    position,
                    unit,
                    value: line[unit],
                    edited_by,
                });
                return;
            }
        }
    }
}
