//! A naive executor of plans: one closure at each site that resolves every selection again and
//! applies the formulas of docs/plans.md in f64. It shares nothing with the engine's compiler of
//! plans, its selections and its captures.

use pellucid_engine::plan::Phase;
use pellucid_engine::program::Layout;
use pellucid_engine::{
    Action, Callback, Capture, Model, Operand, Plan, Positions, Reduce, RunOptions, SelectedRow, Site, Tap,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A capture: tap, site and row, with the elements of each position. A mean has one line.
type Captured = BTreeMap<(usize, Site, usize), Vec<Vec<f64>>>;

/// The captures of a plan, computed naively.
pub struct NaiveRun {
    captured: Captured,
}

/// One tap at one site.
#[derive(Clone)]
struct SiteTap {
    index: usize,
    tap: Tap,
    site: Site,
    /// Selected columns, in the order of the plan.
    columns: Vec<usize>,
}

impl NaiveRun {
    /// Runs a plan of captures and edits; `None` if it has anything else: values, gradients,
    /// conditions, activations of other sites, attention, experts.
    pub fn new(model: &Model, rows: &[Vec<u32>], plan: &Plan) -> Option<NaiveRun> {
        if !plan.values.is_empty() || !plan.metrics.is_empty() {
            return None;
        }
        let program = model.program();
        let mut by_edge: BTreeMap<_, Vec<SiteTap>> = BTreeMap::new();
        for (index, tap) in plan.taps.iter().enumerate() {
            if tap.when.is_some() || tap.experts.is_some() || tap.keys.is_some() || !is_plain(&tap.action) {
                return None;
            }
            for site in model.find(&tap.site).ok()?.sites {
                let edge_id = program.edge_of(site)?;
                let edge = program.edge(edge_id);
                let columns = match (edge.layout, &tap.heads, &tap.units) {
                    (Layout::QueryKey, ..) => return None,
                    _ if edge.integer => return None,
                    (_, None, None) => (0..edge.width).collect(),
                    (_, None, Some(units)) => units.clone(),
                    (Layout::Heads(count), Some(heads), None) => {
                        let dim = edge.width / count;
                        heads.iter().flat_map(|head| head * dim..(head + 1) * dim).collect()
                    }
                    _ => return None,
                };
                by_edge.entry(edge_id).or_default().push(SiteTap { index, tap: tap.clone(), site, columns });
            }
        }
        let captured: Arc<Mutex<Captured>> = Arc::default();
        let mut naive = Plan { allow_nan: true, ..Plan::default() };
        for mut taps in by_edge.into_values() {
            // Two sites may be one edge: the earlier layer's taps come first.
            taps.sort_by_key(|tap| (tap.site.layer, tap.index));
            let (site, captured) = (taps[0].site.to_string(), captured.clone());
            let apply = move |rows: &mut [SelectedRow]| {
                let mut captured = captured.lock().expect("no closure panics while it holds the lock");
                rows.iter_mut().for_each(|row| taps.iter().for_each(|tap| tap.apply(row, &mut captured)));
            };
            naive.taps.push(Tap::new(site, Action::Call(Callback(Arc::new(apply)))));
        }
        // Sites inside ops are computed for every closure, so the last op runs as well.
        model.run(rows, &naive, &RunOptions::default()).ok()?;
        drop(naive);
        let captured = std::mem::take(&mut *captured.lock().expect("the run has ended"));
        Some(NaiveRun { captured })
    }

    /// Compares with the captures of the engine, relative to the largest element of each.
    ///
    /// # Panics
    /// They differ.
    pub fn assert_agrees(&self, captures: &[Capture], call: &impl std::fmt::Debug) {
        assert_eq!(captures.len(), self.captured.len(), "number of captures\n{call:?}");
        for capture in captures {
            let site = capture.site;
            let found = self.captured.get(&(capture.tap, site, capture.row));
            let lines =
                found.unwrap_or_else(|| panic!("tap {} at {site} in row {}\n{call:?}", capture.tap, capture.row));
            let naive: Vec<f64> = match &capture.sparse {
                Some(_) => lines.iter().flatten().copied().filter(|&x| x != 0.0).collect(),
                None => lines.iter().flatten().copied().collect(),
            };
            let ours = capture.array.values();
            let largest = naive.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            // Overflows happen at other elements in f64.
            if !largest.is_finite() || largest > 1e15 || ours.iter().any(|x| !x.is_finite()) {
                continue;
            }
            assert_eq!(ours.len(), naive.len(), "elements of tap {} at {site}\n{call:?}", capture.tap);
            for (index, (&a, &b)) in ours.iter().zip(&naive).enumerate() {
                let off = (f64::from(a) - b).abs();
                assert!(
                    off <= 2e-3 * largest + 1e-5,
                    "element {index} of tap {} at {site}: {a} and {b}\n{call:?}",
                    capture.tap
                );
            }
        }
    }
}

fn is_plain(action: &Action) -> bool {
    let plain = |operand: &&Operand| matches!(operand, Operand::Number(_) | Operand::Vector(_) | Operand::Rows(_));
    let known = !matches!(
        action,
        Action::Read
            | Action::Grad { .. }
            | Action::Skip(_)
            | Action::Splice(_)
            | Action::Call(_)
            | Action::Stop
            | Action::Mark(_)
            | Action::Replace(_)
    );
    known && action.operands().iter().all(plain)
}

/// The positions that a tap selects in a row of `length` tokens, in the order of the plan.
fn positions(tap: &Tap, length: usize) -> Vec<usize> {
    let n = length as i64;
    let at = |p: i64| if p < 0 { p + n } else { p };
    let chosen: Vec<i64> = match &tap.positions {
        Positions::All | Positions::Prompt => (0..n).collect(),
        Positions::Last => vec![n - 1],
        Positions::List(list) => list.iter().map(|&p| at(p)).collect(),
        Positions::Slice { start, end, step } => {
            let (start, end) = (start.map_or(0, at).max(0), end.map_or(n, at).min(n));
            (start..end).filter(|p| (p - start) % *step as i64 == 0).collect()
        }
        Positions::Generated | Positions::Token(_) | Positions::Messages(_) => Vec::new(),
    };
    let chosen = chosen.into_iter().filter(|_| tap.phase != Phase::Decode && tap.steps.is_none());
    chosen.map(|p| p as usize).collect()
}

fn norm(x: &[f64]) -> f64 {
    dot(x, x).sqrt()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn unit(x: &[f64]) -> Vec<f64> {
    let length = norm(x);
    x.iter().map(|x| x / length).collect()
}

fn vector(operand: &Operand, nth: usize, columns: usize) -> Vec<f64> {
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let short = match operand {
        Operand::Number(x) => vec![f64::from(*x); columns],
        Operand::Rows(rows) => wide(&rows[nth]),
        Operand::Vector(x) => wide(x),
        _ => Vec::new(),
    };
    // A vector of a head's width applies to each head.
    short.iter().copied().cycle().take(columns).collect()
}

/// Applies a formula to the whole selection, or to each head if its vector has a head's width.
fn by_part(h: &mut [f64], operand: &Operand, formula: impl Fn(&mut [f64], &[f64])) {
    let Operand::Vector(short) = operand else { return };
    let v: Vec<f64> = short.iter().map(|&x| f64::from(x)).collect();
    h.chunks_mut(v.len()).for_each(|part| formula(part, &v));
}

impl SiteTap {
    fn apply(&self, row: &mut SelectedRow, captured: &mut Captured) {
        if self.tap.rows.as_ref().is_some_and(|rows| !rows.contains(&row.row)) {
            return;
        }
        let length = row.positions.len();
        let chosen = positions(&self.tap, length);
        for (nth, &position) in chosen.iter().enumerate() {
            let line = &mut row.values[position * row.width..][..row.width];
            let mut h: Vec<f64> = self.columns.iter().map(|&column| f64::from(line[column])).collect();
            if let Action::Capture(reduce) = &self.tap.action {
                let lines = captured.entry((self.index, self.site, row.row)).or_default();
                match self.reduce(reduce.as_ref(), &h) {
                    Some(reduced) => lines.push(reduced),
                    None if lines.is_empty() => lines.push(h.iter().map(|x| x / chosen.len() as f64).collect()),
                    None => lines[0].iter_mut().zip(&h).for_each(|(sum, x)| *sum += x / chosen.len() as f64),
                }
                continue;
            }
            self.edit(&mut h, nth);
            self.columns.iter().zip(&h).for_each(|(&column, &x)| line[column] = x as f32);
        }
    }

    /// The captured elements of one position; `None` for a mean.
    fn reduce(&self, reduce: Option<&Reduce>, h: &[f64]) -> Option<Vec<f64>> {
        Some(match reduce {
            None | Some(Reduce::Sparse) => h.to_vec(),
            Some(Reduce::Mean) => return None,
            Some(Reduce::Norm) => vec![norm(h)],
            Some(Reduce::TopK(k)) => {
                let mut sorted = h.to_vec();
                sorted.sort_by(|a, b| b.total_cmp(a));
                sorted.truncate(*k);
                sorted
            }
            Some(Reduce::Dot(v)) => vec![dot(h, &vector(v, 0, h.len()))],
            Some(Reduce::Project(Operand::Rows(rows))) => (0..rows.len())
                .map(|index| dot(h, &vector(&Operand::Vector(rows[index].clone()), 0, h.len())))
                .collect(),
            Some(Reduce::Project(v)) => vec![dot(h, &vector(v, 0, h.len()))],
        })
    }

    fn edit(&self, h: &mut [f64], nth: usize) {
        let columns = h.len();
        let along = |part: &mut [f64], v: &[f64], new: &dyn Fn(f64) -> f64| {
            let v = unit(v);
            let old = dot(part, &v);
            part.iter_mut().zip(&v).for_each(|(x, v)| *x += (new(old) - old) * v);
        };
        match &self.tap.action {
            Action::Set(operand) | Action::MeanAblate(operand) => h.copy_from_slice(&vector(operand, nth, columns)),
            Action::Add { operand, scale } => {
                h.iter_mut().zip(vector(operand, nth, columns)).for_each(|(x, v)| *x += f64::from(*scale) * v);
            }
            Action::Scale(by) => h.iter_mut().for_each(|x| *x *= f64::from(*by)),
            Action::Zero => h.fill(0.0),
            Action::ProjectOut { vector, scale } => {
                by_part(h, vector, |part, v| along(part, v, &|old| f64::from(*scale) * old));
            }
            Action::Cap { vector, min, max } => by_part(h, vector, |part, v| {
                let bound = |old: f64| old.max(min.map_or(f64::NEG_INFINITY, f64::from));
                along(part, v, &|old| bound(old).min(max.map_or(f64::INFINITY, f64::from)));
            }),
            Action::AddScaled { vector, scale } => by_part(h, vector, |part, v| {
                let by = f64::from(*scale) * norm(part);
                part.iter_mut().zip(unit(v)).for_each(|(x, v)| *x += by * v);
            }),
            Action::NormMatch { vector, scale } => by_part(h, vector, |part, v| {
                let before = norm(part);
                part.iter_mut().zip(v).for_each(|(x, v)| *x += f64::from(*scale) * v);
                let after = norm(part);
                part.iter_mut().filter(|_| after > 0.0).for_each(|x| *x *= before / after);
            }),
            Action::Orthogonal { vector, scale } => {
                by_part(h, vector, |part, v| along(part, v, &|_| f64::from(*scale) * norm(v)));
            }
            Action::Swap { first: Operand::Vector(first), second: Operand::Vector(second) } => {
                let wide = |x: &[f32]| unit(&x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>());
                let (a, b) = (wide(first), wide(second));
                let mirror = unit(&a.iter().zip(&b).map(|(a, b)| a - b).collect::<Vec<f64>>());
                h.chunks_mut(mirror.len()).for_each(|part| along(part, &mirror, &|old| -old));
            }
            Action::Inject { operand, how } => {
                let w = vector(operand, nth, columns);
                let length = norm(&w);
                let matched = if length > 0.0 { norm(h) / length } else { 0.0 };
                let by = f64::from(how.scale) * if how.norm_match { matched } else { 1.0 };
                h.iter_mut().zip(w).for_each(|(x, w)| *x = by * w + if how.add { *x } else { 0.0 });
            }
            other => unreachable!("{other:?} is not plain"),
        }
    }
}
