//! Branches: re-runs from the middle of a run.
//!
//! A [`Base`] is a run that keeps, for each layer, what enters it and its keys and values. A branch is a plan on the same tokens: it
//! starts at the layer and position of its first edit, since everything before is the base's, and computes only what can change.
//! Branches are rows of one ragged batch. The batch begins with those that start first; the others join it at their own layers.
//! Every number has the bits of a full re-run.

mod start;

use crate::array::Array;
use crate::error::{Error, Result};
use crate::exec::{
    After, Arena, Buffers, Call, Collector, Frame, Model, Pass, RowState, Run, RunOptions, Segment, Taps, Wanted,
    pass_by,
};
use crate::grad::Tape;
use crate::interrupt::{Interrupt, Watch};
use crate::plan::{Action, Expr, Lengths, Plan, Tap, compile};
use crate::program::Layout;
use crate::site::Site;
use pellucid_kernels::attention::KvStore;
use start::{Door, Start, doors};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;

/// Tokens that go through together: enough to share every weight read, few enough to bound memory.
const TOGETHER: usize = 4096;

/// A run that branches start from.
pub struct Base {
    model: Model,
    tokens: Vec<u32>,
    /// What the base itself reads and changes.
    plan: Plan,
    /// Keys and values of each layer.
    kv: Vec<Option<KvStore>>,
    /// The values that cross from a layer to the next, by edge.
    crossing: Vec<Option<Vec<f32>>>,
    /// Where branches may join.
    doors: Vec<Door>,
    interrupt: Option<Interrupt>,
    /// Whole sites of the base, computed when a branch first asks for what it shares with the base.
    seen: Mutex<HashMap<Site, Array>>,
}

impl Model {
    /// Runs a row under a plan and keeps what branches need to start from it. The plan's captures are not taken here: a branch
    /// asks for what it wants to see.
    pub fn base(&self, tokens: &[u32], plan: &Plan) -> Result<Base> {
        self.base_with(tokens, plan, None)
    }

    /// The same, with somebody who is asked now and then whether to stop: while this runs, and whenever branches of it do.
    pub fn base_with(&self, tokens: &[u32], plan: &Plan, interrupt: Option<Interrupt>) -> Result<Base> {
        let inputs = [tokens.to_vec()];
        self.check_inputs(&inputs, 0, None)?;
        let program = self.program();
        let plan = without_captures(own_row(plan, 0)?);
        let prompts = [tokens.len()];
        let mut compiled = compile(program, &plan, Lengths { prompts: &prompts, limits: &prompts }, false)?;
        let doors = doors(program);
        compiled.ops = compiled.ops.max(doors.last().map_or(0, |door| door.op));
        let mut keeps = vec![false; program.edge_count()];
        doors.iter().flat_map(|door| &door.crossing).for_each(|&edge| keeps[edge] = true);
        let mut tape = Tape::keeping(program, keeps);
        tape.reads_late = (0..tokens.len()).map(|position| (0, position)).collect();
        let mut call = Call::new(self, &compiled, &prompts, None, After::Keys);
        call.watch = Watch::new(interrupt.as_ref());
        call.record(&[0], &inputs, &mut tape)?;
        let kv = std::mem::take(&mut call.rows[0].kv);
        let crossing = (0..program.edge_count()).map(|edge| tape.take(edge)).collect();
        let (model, tokens, seen) = (self.clone(), tokens.to_vec(), Mutex::default());
        Ok(Base { model, tokens, plan, kv, crossing, doors, interrupt, seen })
    }
}

impl Base {
    /// Its tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// One branch: what a run of the base's tokens under this plan (after the base's own) would give, bit for bit.
    pub fn branch(&self, plan: &Plan) -> Result<Run> {
        Ok(self.branches(std::slice::from_ref(plan))?.remove(0))
    }

    /// Many branches, as rows of a batch.
    pub fn branches(&self, plans: &[Plan]) -> Result<Vec<Run>> {
        let each = (TOGETHER / self.tokens.len()).max(1);
        let mut runs = Vec::with_capacity(plans.len());
        let watch = Watch::new(self.interrupt.as_ref());
        for plans in plans.chunks(each) {
            runs.extend(self.together(plans, &watch)?);
        }
        Ok(runs)
    }

    fn together(&self, plans: &[Plan], watch: &Watch) -> Result<Vec<Run>> {
        let program = self.model.program();
        let (joint, first_taps) = self.joint(plans)?;
        let prompts = vec![self.tokens.len(); plans.len()];
        let compiled = compile(program, &joint, Lengths { prompts: &prompts, limits: &prompts }, false)?;
        if compiled.gradient_edges(program).is_some() {
            return Err(Error::input("a branch has no gradients", "take gradients in a run of its own"));
        }
        let own = self.plan.taps.len();
        let starts: Vec<Start> = (0..plans.len())
            .map(|row| Start::of(program, &self.doors, &compiled, row, own, self.tokens.len()))
            .collect();
        let mut collector = Collector::new(&compiled, false);
        let mut taps =
            Taps { model: &self.model, compiled: &compiled, collector: &mut collector, again: false, first_tap: own };
        for (row, start) in starts.iter().enumerate() {
            self.show_shared(&mut taps, row, start)?;
        }
        self.walk(&mut taps, &starts, &prompts, watch)?;
        collector.end_step(&self.model, &compiled, &[])?;
        let mut runs: Vec<Run> = plans.iter().map(|_| Run::default()).collect();
        let value_of = |value: usize, row: usize| value - self.first_value(plans, row);
        for saved in collector.take_saved() {
            // A value of all rows belongs to the branch whose plan lists it.
            let row = saved.row.unwrap_or_else(|| self.branch_of(plans, saved.value));
            runs[row].saved.push(crate::exec::Saved {
                value: value_of(saved.value, row),
                row: saved.row.map(|_| 0),
                ..saved
            });
        }
        for mut capture in collector.finish(program, &compiled, &prompts) {
            let row = capture.row;
            (capture.row, capture.tap) = (0, capture.tap - first_taps[row]);
            runs[row].captures.push(capture);
        }
        Ok(runs)
    }

    /// All branches' plans as one, each on its own row, after the base's on every row; and where each one's taps begin.
    fn joint(&self, plans: &[Plan]) -> Result<(Plan, Vec<usize>)> {
        let mut joint = self.plan.clone();
        let mut first_taps = Vec::with_capacity(plans.len());
        for (row, plan) in plans.iter().enumerate() {
            if !plan.metrics.is_empty() {
                return Err(Error::input("a branch has no metrics", "take gradients in a run of its own"));
            }
            first_taps.push(joint.taps.len());
            joint = joint.then(own_row(plan, row)?);
        }
        Ok((joint, first_taps))
    }

    fn first_value(&self, plans: &[Plan], row: usize) -> usize {
        self.plan.values.len() + plans[..row].iter().map(|plan| plan.values.len()).sum::<usize>()
    }

    fn branch_of(&self, plans: &[Plan], value: usize) -> usize {
        (0..plans.len()).rfind(|&row| self.first_value(plans, row) <= value).unwrap_or(0)
    }

    /// Shows a row's taps what the branch shares with the base.
    fn show_shared(&self, taps: &mut Taps, row: usize, start: &Start) -> Result<()> {
        let (program, compiled) = (self.model.program(), taps.compiled);
        for edge in 0..program.edge_count() {
            let looks = compiled.at_edge[edge].iter().map(|&index| &compiled.entries[index]);
            let limit = start.shared(program, &self.doors, edge, self.tokens.len());
            let looks = looks.filter(|entry| {
                let early = |position: &usize| *position < limit;
                entry.rows[row].as_ref().is_some_and(|chosen| chosen.positions().iter().any(early))
            });
            let Some(site) = looks.map(|entry| entry.site).next() else { continue };
            let array = self.site(site)?;
            let segment = Segment { row, position: 0, count: limit, token: 0 };
            if program.edge(edge).layout == Layout::QueryKey {
                let n = self.tokens.len();
                let lines = array.values().chunks_exact(n * n).flat_map(|head| head.chunks_exact(n).take(limit));
                let mut first: Vec<f32> = lines.flat_map(|line| line[..limit].iter().copied()).collect();
                taps.apply_attention(program, &segment, edge, &mut first)?;
            } else {
                let mut first = array.values()[..limit * program.edge(edge).width].to_vec();
                let pass = Pass {
                    segments: vec![segment],
                    tokens: self.tokens[..limit].to_vec(),
                    positions: (0..limit).collect(),
                    late: (0..limit).collect(),
                    read: (0..limit).collect(),
                };
                taps.apply(program, &pass, edge, &mut first)?;
            }
        }
        Ok(())
    }

    /// A whole site of the base.
    fn site(&self, site: Site) -> Result<Array> {
        let known = |seen: &HashMap<Site, Array>| seen.get(&site).cloned();
        if let Some(array) = known(&self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())) {
            return Ok(array);
        }
        let plan = self.plan.clone().with(Tap::new(site.to_string(), Action::Capture(None)));
        let options = RunOptions { interrupt: self.interrupt.clone(), ..RunOptions::default() };
        let run = self.model.run(std::slice::from_ref(&self.tokens), &plan, &options)?;
        let array = run.captures.into_iter().next_back().map(|capture| capture.array);
        let array = array.ok_or_else(|| Error::input(format!("the base has no `{site}`"), "capture another site"))?;
        self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(site, array.clone());
        Ok(array)
    }

    /// Walks the op list once: rows join where they start.
    fn walk(&self, taps: &mut Taps, starts: &[Start], prompts: &[usize], watch: &Watch) -> Result<()> {
        let (program, compiled) = (self.model.program(), taps.compiled);
        let n = self.tokens.len();
        let mut rows: Vec<RowState> =
            starts.iter().map(|start| RowState { len: start.position, ..RowState::new(n, self.model.kv()) }).collect();
        let mut order: Vec<usize> = (0..starts.len()).filter(|&row| starts[row].position < n).collect();
        order.sort_by_key(|&row| starts[row].op);
        let (mut arena, mut buffers) = (Arena::default(), Buffers::new(program));
        let mut pass = Pass::default();
        let wanted =
            Wanted { compiled, program, prompts, ends: false, also: &[], also_late: &[], late_everywhere: false };
        // The batch grows where rows join it: its buffers have room for all of them from the start.
        let all: usize = order.iter().map(|&row| n - starts[row].position).sum();
        for (nth, joining) in order.chunk_by(|&a, &b| starts[a].op == starts[b].op).enumerate() {
            let op = starts[joining[0]].op;
            let mut joined = Pass::default();
            for &row in joining {
                joined.add(row, starts[row].position, &self.tokens[starts[row].position..], &wanted);
            }
            // What the base has put on the edges that cross here; the branches' own taps see it first.
            let edges = starts[joining[0]].door.map_or([].as_slice(), |door| &self.doors[door].crossing);
            for &edge in edges {
                let (width, domain) = (program.edge(edge).width, program.edge(edge).domain);
                let value = self.crossing[edge].as_deref().unwrap_or_default();
                let places = joined.segments.iter().flat_map(|segment| joined.places(domain, segment));
                let mut more: Vec<f32> =
                    places.flat_map(|(_, position)| &value[position * width..][..width]).copied().collect();
                // The base's own taps have had their effect on it.
                taps.first_tap = self.plan.taps.len();
                taps.apply(program, &joined, edge, &mut more)?;
                buffers.extend(edge, more);
            }
            taps.first_tap = 0;
            joining.iter().for_each(|&row| {
                pass.add(row, starts[row].position, &self.tokens[starts[row].position..], &wanted);
            });
            let next = order.chunk_by(|&a, &b| starts[a].op == starts[b].op).nth(nth + 1);
            let until = next.map_or(compiled.ops, |rows| starts[rows[0]].op);
            let pool = self.model.pool();
            arena.expect(all as f64 / pass.tokens.len() as f64);
            let mut frame = Frame::new(program, self.model.weights(), pool, &pass, &mut rows, &mut arena, &mut buffers);
            frame.prepare(program.architecture());
            self.run(&mut frame, taps, op..until, watch)?;
            if next.is_none() {
                frame.release_all(taps);
            }
        }
        Ok(())
    }

    /// Runs some ops. A row's keys and values live while its layer runs: before, they are the base's up to where the row starts.
    fn run(&self, frame: &mut Frame, taps: &mut Taps, ops: Range<usize>, watch: &Watch) -> Result<()> {
        let (program, compiled) = (self.model.program(), taps.compiled);
        let backend = self.model.backend();
        let mut index = ops.start;
        while index < ops.end {
            watch.check()?;
            let layer = program.ops()[index].layer;
            if let Some(layer) = layer.filter(|&layer| program.layer_ops(layer).start == index) {
                if compiled.skipped[layer] {
                    index = pass_by(frame, taps, layer)?;
                    continue;
                }
                self.lend_keys(frame, layer);
            }
            backend.execute(index, frame, taps)?;
            frame.release(index, taps, None);
            index += 1;
            if let Some(layer) = layer.filter(|&layer| program.layer_ops(layer).end == index) {
                frame.forget_keys(layer);
            }
        }
        Ok(())
    }

    fn lend_keys(&self, frame: &mut Frame, layer: usize) {
        let Some(Some(kv)) = self.kv.get(layer) else { return };
        for segment in &frame.pass.segments {
            frame.lend_keys(segment.row, layer, kv, segment.position, self.tokens.len());
        }
    }
}

/// What a plan changes, in every row; it hands nothing over.
fn without_captures(plan: Plan) -> Plan {
    let stays = |tap: &Tap| !matches!(tap.action, Action::Capture(_));
    let mut values = plan.values;
    for value in &mut values {
        if let Expr::Read(tap) = &mut value.expr {
            *tap = plan.taps[..*tap].iter().filter(|tap| stays(tap)).count();
        }
    }
    let taps = plan.taps.into_iter().filter(stays).map(|tap| Tap { rows: None, ..tap }).collect();
    Plan { taps, values, save: Vec::new(), ..plan }
}

/// A plan for one row as a plan for that row of several.
fn own_row(plan: &Plan, row: usize) -> Result<Plan> {
    let mut plan = plan.clone();
    for (index, tap) in plan.taps.iter_mut().enumerate() {
        if tap.rows.as_ref().is_some_and(|rows| rows.iter().any(|&row| row != 0)) {
            return Err(Error::Plan {
                tap: index,
                site: tap.site.clone(),
                problem: "a branch has one row".into(),
                remedy: "leave out `rows`; write one plan for each branch".into(),
            });
        }
        tap.rows = Some(vec![row]);
    }
    if plan.values.iter().any(|value| matches!(value.expr, Expr::Row { .. } | Expr::Across { .. })) {
        return Err(Error::input("a branch has one row, and a value joins or picks rows", "leave that out"));
    }
    Ok(plan)
}
