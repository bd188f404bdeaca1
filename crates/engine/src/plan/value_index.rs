//! Resolves numpy-style indexing to element offsets.

use super::Pick;
use crate::memory_limit::check_value_bytes;

/// The selected elements of an array: contiguous runs of equal length, and the result's shape.
pub(crate) struct Selection {
    pub shape: Vec<usize>,
    /// Offset of each run.
    starts: Vec<usize>,
    /// Length of a run.
    run: usize,
}

impl Selection {
    /// Resolves picks against a shape, as numpy does, except that several lists select their
    /// combinations (`np.ix_`).
    pub fn new(shape: &[usize], picks: &[Pick]) -> Result<Selection, String> {
        let axes = picks.iter().filter(|pick| !matches!(pick, Pick::New | Pick::Rest)).count();
        let rests = picks.iter().filter(|pick| matches!(pick, Pick::Rest)).count();
        if axes > shape.len() || rests > 1 {
            return Err(format!("an index of {axes} axes into shape {shape:?}"));
        }
        let whole = || Pick::Slice(None, None, 1);
        let left = shape.len() - axes;
        let mut all: Vec<Pick> = Vec::with_capacity(shape.len() + 1);
        for pick in picks {
            match pick {
                Pick::Rest => all.extend((0..left).map(|_| whole())),
                other => all.push(other.clone()),
            }
        }
        if rests == 0 {
            all.extend((0..left).map(|_| whole()));
        }
        let (mut out, mut indices, mut axis, mut count) = (Vec::new(), Vec::new(), 0, 1usize);
        for pick in &all {
            if *pick == Pick::New {
                out.push(1);
                continue;
            }
            let selected = axis_indices(shape[axis], pick)?;
            // Lists combine, so a few of them can select more than there is memory.
            count = count.saturating_mul(selected.len());
            check_value_bytes(count.saturating_mul(4)).map_err(|problem| format!("{count} elements: {problem}"))?;
            if !matches!(pick, Pick::At(_)) {
                out.push(selected.len());
            }
            indices.push(selected);
            axis += 1;
        }
        // Whole axes at the end are copied in one run.
        let mut run = 1;
        while let Some(last) = indices.last()
            && last.iter().copied().eq(0..shape[indices.len() - 1])
        {
            run *= last.len();
            indices.pop();
        }
        let mut starts = vec![0];
        for (axis, selected) in indices.iter().enumerate() {
            let stride: usize = shape[axis + 1..].iter().product();
            starts = starts.iter().flat_map(|start| selected.iter().map(move |index| start + index * stride)).collect();
        }
        Ok(Selection { shape: out, starts, run })
    }

    /// Returns the offsets of the selected elements, in the order of the result.
    pub fn indices(&self) -> impl Iterator<Item = usize> + '_ {
        self.starts.iter().flat_map(|&start| start..start + self.run)
    }

    /// Returns the selected elements.
    pub fn gather(&self, from: &[f32]) -> Vec<f32> {
        let mut out = Vec::with_capacity(self.starts.len() * self.run);
        self.starts.iter().for_each(|&start| out.extend_from_slice(&from[start..start + self.run]));
        out
    }
}

/// Returns the indices of one axis that a pick selects.
fn axis_indices(length: usize, pick: &Pick) -> Result<Vec<usize>, String> {
    let n = length as i64;
    let resolve = |at: i64| {
        let from_first = if at < 0 { at + n } else { at };
        if (0..n).contains(&from_first) {
            Ok(from_first as usize)
        } else {
            Err(format!("index {at} is out of range for an axis of {length}"))
        }
    };
    match pick {
        Pick::At(at) => Ok(vec![resolve(*at)?]),
        Pick::Each(list) => list.iter().map(|&at| resolve(at)).collect(),
        Pick::Slice(_, _, 0) => Err("slice step cannot be 0".into()),
        Pick::Slice(start, end, step) => {
            let bound = |at: i64| if at < 0 { at + n } else { at };
            let (low, high) = if *step > 0 { (0, n) } else { (-1, n - 1) };
            let start = start.map_or(if *step > 0 { 0 } else { n - 1 }, |at| bound(at).clamp(low, high));
            let end = end.map_or(if *step > 0 { n } else { -1 }, |at| bound(at).clamp(low, high));
            let mut indices = Vec::new();
            let mut at = start;
            while if *step > 0 { at < end } else { at > end } {
                indices.push(at as usize);
                // A huge step must end the loop, not wrap around.
                at = at.saturating_add(*step);
            }
            Ok(indices)
        }
        Pick::New | Pick::Rest => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexing_follows_numpy() {
        let elements: Vec<f32> = (0..24).map(|n| n as f32).collect();
        let pick = |picks: &[Pick]| {
            let selection = Selection::new(&[2, 3, 4], picks).unwrap();
            (selection.shape.clone(), selection.gather(&elements))
        };
        assert_eq!(pick(&[Pick::At(-1), Pick::At(0)]), (vec![4], vec![12.0, 13.0, 14.0, 15.0]));
        assert_eq!(pick(&[Pick::Rest, Pick::At(1)]).0, vec![2, 3]);
        assert_eq!(pick(&[Pick::Rest, Pick::At(1)]).1, vec![1.0, 5.0, 9.0, 13.0, 17.0, 21.0]);
        let backwards = pick(&[Pick::At(0), Pick::At(0), Pick::Slice(None, None, -2)]);
        assert_eq!(backwards, (vec![2], vec![3.0, 1.0]));
        assert_eq!(pick(&[Pick::New, Pick::Each(vec![1, 0])]).0, vec![1, 2, 3, 4]);
        assert!(Selection::new(&[2], &[Pick::At(2)]).is_err_and(|e| e.contains("index 2")));
    }
}
