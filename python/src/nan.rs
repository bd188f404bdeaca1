//! NaN in the results of a run.

use pellucid_engine::{Array, Capture, NanOrigin, Plan, Run, Saved};

/// A result with NaN, and where NaN first appears.
pub struct NanReport {
    /// Site of a capture, or `a saved value`.
    pub result: String,
    pub origin: Option<NanOrigin>,
}

/// `(result, (site, row, position, earlier site with infinity))`.
pub type NanTuple = (String, Option<(String, usize, usize, Option<String>)>);

impl NanReport {
    /// Returns the first result of a run with NaN, unless the plan allows NaN.
    pub fn of_results(run: &Run, plan: &Plan) -> Option<NanReport> {
        NanReport::of(&run.captures, &run.saved, plan)
    }

    /// Like [`of_results`](Self::of_results), for the results of any call.
    pub fn of(captures: &[Capture], saved: &[Saved], plan: &Plan) -> Option<NanReport> {
        if plan.allow_nan {
            return None;
        }
        let captured = captures.iter().find(|capture| has_nan(&capture.array));
        let captured = captured.map(|capture| format!("`{}`", capture.site));
        let result = captured.or_else(|| {
            let computed = saved.iter().any(|saved| has_nan(&saved.array));
            computed.then(|| "a saved value".into())
        })?;
        Some(NanReport { result, origin: None })
    }

    /// The report as a Python object.
    pub fn to_tuple(&self) -> NanTuple {
        let origin = self.origin.map(|origin| {
            let infinite = origin.infinite.map(|site| site.to_string());
            (origin.site.to_string(), origin.row, origin.position, infinite)
        });
        (self.result.clone(), origin)
    }
}

fn has_nan(array: &Array) -> bool {
    // No early exit inside a chunk, so that the loops vectorize. Values of a bf16 capture are not
    // widened.
    match array.halves() {
        Some(halves) => halves.chunks(4096).any(|chunk| chunk.iter().fold(false, |nan, x| nan | x.is_nan())),
        None => array.values().chunks(4096).any(|chunk| chunk.iter().fold(false, |nan, x| nan | x.is_nan())),
    }
}
