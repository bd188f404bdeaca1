//! Checks of random calls: every way to run a plan gives the same bits, and a naive executor gives
//! the same values.

use crate::naive_plans::NaiveRun;
use crate::random_plans::RandomCall;
use pellucid_engine::program::Layout;
use pellucid_engine::{Action, Capture, Control, GenerateOptions, Generation, Model, Operand, Plan, Run, RunOptions};

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The plan was refused.
    Refused,
    /// It ran, and all ways agree.
    Ran,
    /// It ran, and the naive executor agrees as well.
    RanAsNaive,
}

impl RandomCall {
    /// Runs the call in several ways.
    ///
    /// # Panics
    /// Two ways disagree, or the engine panics.
    pub fn check(&self, model: &Model) -> Outcome {
        let RandomCall { plan, rows, max_new } = self;
        if let Ok(json) = plan.to_json() {
            let read =
                Plan::from_json(&json).unwrap_or_else(|error| panic!("a plan that was written: {error}\n{json}"));
            let again = read.to_json().expect("a plan that was written before");
            assert_eq!(again, json, "JSON changes a plan");
        }
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        let explained = plan.explain(model, &lengths);
        match max_new {
            Some(max_new) => self.check_generation(model, *max_new),
            None => {
                let whole = model.run(rows, plan, &RunOptions::default());
                // A plan that explain accepts can still fail while it runs, but not the reverse.
                assert!(explained.is_ok() || whole.is_err(), "run accepts what explain refuses: {plan:?}");
                whole.map_or(Outcome::Refused, |whole| self.check_run(model, &whole))
            }
        }
    }

    fn check_run(&self, model: &Model, whole: &Run) -> Outcome {
        let RandomCall { plan, rows, .. } = self;
        let again = |how: &str, options: &RunOptions| {
            let run = model.run(rows, plan, options).unwrap_or_else(|error| panic!("{how}: {error}\n{self:?}"));
            assert_eq!(results(&run), results(whole), "{how}\n{self:?}");
        };
        // In a whole prompt a NaN of a later key reaches earlier queries, as 0 · NaN.
        let has_nan = whole.captures.iter().any(|capture| capture.array.values().iter().any(|x| x.is_nan()));
        if !edits_attention(model, plan) && !has_nan {
            again("in chunks of 2", &RunOptions { chunk: Some(2), ..RunOptions::default() });
        }
        again("on one thread", &RunOptions { threads: Some(1), ..RunOptions::default() });
        if !plan.metrics.is_empty() {
            again("with recomputation", &RunOptions { recompute: true, ..RunOptions::default() });
        }
        if rows.len() > 1 && is_per_row(plan) {
            for row in 0..rows.len() {
                self.check_row_alone(model, whole, row);
            }
        }
        match NaiveRun::new(model, rows, plan) {
            Some(naive) => {
                naive.assert_agrees(&whole.captures, self);
                Outcome::RanAsNaive
            }
            None => Outcome::Ran,
        }
    }

    /// A row alone has the bits that it has in the batch.
    fn check_row_alone(&self, model: &Model, whole: &Run, row: usize) {
        let mut plan = self.plan.clone();
        plan.taps.retain(|tap| tap.rows.as_ref().is_none_or(|rows| rows.contains(&row)));
        plan.taps.iter_mut().for_each(|tap| tap.rows = None);
        if plan.taps.is_empty() {
            return;
        }
        let alone = model.run(&[self.rows[row].clone()], &plan, &RunOptions::default());
        let alone = alone.unwrap_or_else(|error| panic!("row {row} alone: {error}\n{self:?}"));
        let of_row: Vec<CaptureBits> = whole.captures.iter().filter(|capture| capture.row == row).map(bits).collect();
        let alone: Vec<CaptureBits> = alone.captures.iter().map(bits).collect();
        assert_eq!(alone, of_row, "row {row} alone\n{self:?}");
    }

    fn check_generation(&self, model: &Model, max_new: usize) -> Outcome {
        let options = GenerateOptions { max_new, ..GenerateOptions::default() };
        let generate =
            |options: &GenerateOptions| model.generate(&self.rows, &self.plan, options, &mut |_, _| Control::Go);
        let Ok(whole) = generate(&options) else { return Outcome::Refused };
        for (row, generated) in whole.rows.iter().enumerate() {
            let computed = self.rows[row].len() + generated.tokens.len() - 1;
            for capture in whole.captures.iter().filter(|capture| capture.row == row) {
                assert!(capture.positions.iter().all(|&position| position < computed), "{capture:?}\n{self:?}");
            }
        }
        for (how, options) in [
            ("in chunks of 2", GenerateOptions { chunk: Some(2), ..options.clone() }),
            ("on one thread", GenerateOptions { threads: Some(1), ..options.clone() }),
        ] {
            if options.chunk.is_some() && edits_attention(model, &self.plan) {
                continue;
            }
            let again = generate(&options).unwrap_or_else(|error| panic!("{how}: {error}\n{self:?}"));
            assert_eq!(generated(&again), generated(&whole), "{how}\n{self:?}");
        }
        Outcome::Ran
    }
}

/// Site, positions, shape and bits of a capture, and its units.
type CaptureBits = (String, Vec<usize>, Vec<usize>, Vec<u32>, Vec<u32>);

fn bits(capture: &Capture) -> CaptureBits {
    let of = |values: &[f32]| values.iter().map(|&x| to_bits(x)).collect::<Vec<u32>>();
    let units = capture.units.as_ref().map(|units| of(units.values())).unwrap_or_default();
    let shape = capture.array.shape().to_vec();
    (capture.site.to_string(), capture.positions.clone(), shape, of(capture.array.values()), units)
}

/// The bits of a float; all NaNs are equal, because their payload may depend on the order of
/// operands.
fn to_bits(x: f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}

type Results = (Vec<(usize, usize, CaptureBits)>, Vec<(String, Vec<usize>, Vec<u32>)>, usize);

fn results(run: &Run) -> Results {
    let captures = run.captures.iter().map(|capture| (capture.tap, capture.row, bits(capture))).collect();
    let saved = run.saved.iter().map(|saved| {
        let name = format!("{} of {:?} at {}", saved.value, saved.row, saved.step);
        (name, saved.array.shape().to_vec(), saved.array.values().iter().map(|&x| to_bits(x)).collect())
    });
    (captures, saved.collect(), run.marks.len())
}

fn generated(generation: &Generation) -> (Vec<Vec<u32>>, Results) {
    let run = Run {
        captures: generation.captures.clone(),
        saved: generation.saved.clone(),
        marks: generation.marks.clone(),
        ..Run::default()
    };
    (generation.rows.iter().map(|row| row.tokens.clone()).collect(), results(&run))
}

/// Whether each row of a plan depends on that row alone, and taps do not depend on each other by
/// index.
fn is_per_row(plan: &Plan) -> bool {
    let other_row = |operand: &&Operand| matches!(operand, Operand::From(_) | Operand::Value(_));
    let crosses = |action: &Action| matches!(action, Action::Skip(_)) || action.operands().iter().any(other_row);
    plan.values.is_empty() && !plan.taps.iter().any(|tap| crosses(&tap.action))
}

/// Whether a plan edits attention scores or weights. Such an edit also writes keys after the query,
/// which exist in a whole prompt and not in its first chunk (docs/plans.md, keys).
fn edits_attention(model: &Model, plan: &Plan) -> bool {
    let program = model.program();
    let on_attention = |site| program.edge_of(site).is_some_and(|edge| program.edge(edge).layout == Layout::QueryKey);
    let edits = |action: &Action| !matches!(action, Action::Capture(_) | Action::Read | Action::Grad { .. });
    plan.taps
        .iter()
        .filter(|tap| edits(&tap.action))
        .any(|tap| model.find(&tap.site).is_ok_and(|found| found.sites.into_iter().any(on_attention)))
}
