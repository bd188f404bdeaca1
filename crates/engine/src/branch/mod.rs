//! Branches: re-runs from the middle of a run.
//!
//! A [`Base`] is a run that retains the inputs and the KV cache of each layer. A branch is a plan
//! on the same tokens. Everything before its first edit is identical to the base, so it starts at
//! that layer and position. Each branch is a job of one row. The jobs share one pass, which starts
//! with the earliest branches; the others join it at their own layers. Results are bit-identical to
//! a full re-run.

mod start;

use crate::adapter::RowAdapters;
use crate::array::Array;
use crate::backend::{AttentionRow, RetainedValues, Taps};
use crate::error::{Error, Result};
use crate::exec::{Executor, OpSequence, RowTokens};
use crate::interrupt::{Interrupt, InterruptPoller};
use crate::job::{CacheUse, CaptureOptions, Job, JobOptions, KvPrefix, Pass};
use crate::memory::DeviceRow;
use crate::model::Model;
use crate::needed_memory::{CallShape, check_call};
use crate::plan::{Action, Expr, Lengths, Plan, Tap, compile, refuse_conditions};
use crate::program::Layout;
use crate::run::{Run, RunOptions};
use crate::site::Site;
use pellucid_kernels::attention::KvCache;
use start::{JoinPoint, Start, join_points};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of tokens in a pass: enough to amortize reading the weights, few enough to bound
/// memory.
const MAX_BATCH_TOKENS: usize = 4096;

/// A run that branches start from.
pub struct Base {
    model: Model,
    tokens: Vec<u32>,
    /// The base's own reads and edits, without captures.
    plan: Plan,
    /// KV cache of each layer.
    kv: Arc<Vec<Option<KvCache>>>,
    /// The row's state in device memory.
    device: Option<Box<dyn DeviceRow>>,
    /// The values of the edges live at the join points.
    live: RetainedValues,
    /// The points where branches may join the pass.
    join_points: Vec<JoinPoint>,
    interrupt: Option<Interrupt>,
    /// Whole sites of the base, computed when a branch first taps positions that it shares with the
    /// base.
    sites: Mutex<HashMap<Site, Array>>,
}

impl Model {
    /// Runs a row under a plan and retains the state that branches start from. The plan's captures
    /// are ignored: each branch has its own.
    pub fn base(&self, tokens: &[u32], plan: &Plan) -> Result<Base> {
        self.base_with(tokens, plan, None)
    }

    /// Like [`base`](Self::base), polling `interrupt` during this run and its branches.
    pub fn base_with(&self, tokens: &[u32], plan: &Plan, interrupt: Option<Interrupt>) -> Result<Base> {
        let inputs = [tokens.to_vec()];
        self.check_inputs(&inputs, 0, None)?;
        let program = self.program();
        refuse_conditions(&plan.taps, "a base")?;
        let plan = without_captures(own_row(plan, 0)?);
        let prompts = [tokens.len()];
        let mut compiled = compile(program, &plan, Lengths { prompts: &prompts, limits: &prompts }, false)?;
        let join_points = join_points(program);
        compiled.ops = compiled.ops.max(join_points.last().map_or(0, |point| point.op));
        let (captures, chunk, limits) = (&CaptureOptions::default(), None, &prompts[..]);
        check_call(self, &compiled, &CallShape { limits, chunk, cache: CacheUse::Keep, captures })?;
        let mut keeps = program.list_by_edge(false);
        join_points.iter().flat_map(|point| &point.live).for_each(|&edge| keeps[edge] = true);
        let mut live = RetainedValues::new(program, keeps);
        let adapters = self.row_adapters(&RowAdapters::ModelDefault, 1)?;
        let options = JobOptions { adapters, ..JobOptions::new(self.kv(), CacheUse::Keep) };
        let mut job = Job::new(program, Arc::new(compiled), options)?;
        let mut executor = Executor::new(self, InterruptPoller::new(interrupt.as_ref()));
        let whole = std::iter::once(RowTokens { job: 0, row: 0, tokens });
        executor.pass(&mut [&mut job], whole, false, Some(&mut live))?;
        let (kv, device) = (Arc::new(std::mem::take(&mut job.rows[0].kv)), job.rows[0].device.take());
        let (model, tokens, sites) = (self.clone(), tokens.to_vec(), Mutex::default());
        Ok(Base { model, tokens, plan, kv, device, live, join_points, interrupt, sites })
    }
}

impl Base {
    /// The tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Runs one branch: bit-identical to a run of the base's tokens under the base's plan followed
    /// by this one.
    pub fn branch(&self, plan: &Plan) -> Result<Run> {
        Ok(self.branches(std::slice::from_ref(plan))?.remove(0))
    }

    /// Runs many branches, as jobs of shared passes.
    pub fn branches(&self, plans: &[Plan]) -> Result<Vec<Run>> {
        let each = (MAX_BATCH_TOKENS / self.tokens.len()).max(1);
        let mut runs = Vec::with_capacity(plans.len());
        let mut executor = Executor::new(&self.model, InterruptPoller::new(self.interrupt.as_ref()));
        for plans in plans.chunks(each) {
            runs.extend(self.run_batch(plans, &mut executor)?);
        }
        Ok(runs)
    }

    fn run_batch(&self, plans: &[Plan], executor: &mut Executor) -> Result<Vec<Run>> {
        let mut branches = plans.iter().map(|plan| self.prepare(plan)).collect::<Result<Vec<Branch>>>()?;
        for branch in &mut branches {
            self.apply_taps_to_shared(branch)?;
        }
        self.run_jobs(&mut branches, executor)?;
        branches.into_iter().map(|branch| self.finish(branch)).collect()
    }

    /// Creates the job of a branch: the base's plan followed by its own, on one row.
    fn prepare(&self, plan: &Plan) -> Result<Branch> {
        if !plan.metrics.is_empty() {
            return Err(Error::input("a branch cannot have metrics", "compute gradients in a separate run"));
        }
        refuse_conditions(&plan.taps, "a branch")?;
        let (program, n) = (self.model.program(), self.tokens.len());
        let joint = self.plan.clone().then(own_row(plan, 0)?);
        let compiled = compile(program, &joint, Lengths { prompts: &[n], limits: &[n] }, false)?;
        if compiled.gradient_edges(program).is_some() {
            return Err(Error::input("a branch cannot have gradients", "compute gradients in a separate run"));
        }
        let (captures, chunk, limits) = (&CaptureOptions::default(), None, &[n][..]);
        check_call(&self.model, &compiled, &CallShape { limits, chunk, cache: CacheUse::Discard, captures })?;
        let start = Start::of(program, &self.join_points, &compiled, self.plan.taps.len(), n);
        let adapters = self.model.row_adapters(&RowAdapters::ModelDefault, 1)?;
        let options = JobOptions { shared: true, adapters, ..JobOptions::new(self.model.kv(), CacheUse::Discard) };
        let mut job = Job::new(program, Arc::new(compiled), options)?;
        job.demand.last_mlp_everywhere = false;
        let row = &mut job.rows[0];
        (row.len, row.capacity) = (start.position, n);
        // A branch that starts at position 0 reuses nothing of the base, not even recurrent states.
        let device = self.device.as_ref().filter(|_| start.position > 0);
        row.device = device.map(|device| device.prefix(start.position, n));
        row.kv_prefix = Some(KvPrefix { kv: self.kv.clone(), positions: start.position });
        Ok(Branch { job, start })
    }

    /// Returns the captures and saved values of a branch, indexed by its own plan.
    fn finish(&self, branch: Branch) -> Result<Run> {
        let Branch { mut job, .. } = branch;
        let memory = self.model.backend().memory();
        job.end_step(&self.model, &[])?;
        let (own_taps, own_values) = (self.plan.taps.len(), self.plan.values.len());
        let mut run = Run { saved: job.collector.take_saved(), ..Run::default() };
        run.saved.iter_mut().for_each(|saved| saved.value = saved.value.without(own_values));
        let lengths = [self.tokens.len()];
        run.captures = job.collector.finish(self.model.program(), &job.compiled, &lengths, memory, &mut run.moved)?;
        run.captures.iter_mut().for_each(|capture| capture.tap -= own_taps);
        Ok(run)
    }

    /// Applies a branch's taps to the positions that it shares with the base.
    fn apply_taps_to_shared(&self, branch: &mut Branch) -> Result<()> {
        let program = self.model.program();
        let Branch { job, start } = branch;
        let compiled = job.compiled.clone();
        job.first_tap = self.plan.taps.len();
        for edge in program.edge_ids() {
            let shared = start.shared(program, &self.join_points, edge, self.tokens.len());
            let entries = compiled.at_edge[edge].iter().map(|&index| &compiled.taps[index]);
            let mut entries = entries.filter(|entry| {
                let early = |position: &usize| *position < shared;
                entry.rows[0].as_ref().is_some_and(|chosen| chosen.positions().iter().any(early))
            });
            let Some(site) = entries.next().map(|entry| entry.site) else { continue };
            let array = self.site(site)?;
            let pass = Pass::of_all(shared, None);
            // A capture by expert picks slots by the chosen experts.
            let by_expert = compiled.at_edge[edge].iter().any(|&tap| compiled.taps[tap].experts.is_some());
            let routed = program.edge(edge).routed.filter(|_| by_expert);
            let choices = match routed.and_then(|routed| program.site_of(routed.indices)) {
                Some(site) => self.site(site)?.values().to_vec(),
                None => Vec::new(),
            };
            let mut taps = Taps { ops: &self.model, jobs: &mut [&mut *job] };
            if program.edge(edge).layout == Layout::QueryKey {
                let n = self.tokens.len();
                let lines = array.values().chunks_exact(n * n).flat_map(|head| head.chunks_exact(n).take(shared));
                let values = lines.flat_map(|line| line[..shared].iter().copied()).collect();
                let row = AttentionRow { segment: pass.segments[0].clone(), values };
                taps.apply_attention(program, edge, &mut [row])?;
            } else {
                let mut values = array.values()[..shared * program.edge(edge).width].to_vec();
                taps.apply(program, &pass, edge, &mut values, &choices)?;
            }
        }
        job.first_tap = 0;
        Ok(())
    }

    /// Computes a whole site of the base, with caching.
    fn site(&self, site: Site) -> Result<Array> {
        let known = |sites: &HashMap<Site, Array>| sites.get(&site).cloned();
        if let Some(array) = known(&self.sites.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(array);
        }
        let plan = self.plan.clone().with(Tap::new(site.to_string(), Action::Capture(None)));
        let options = RunOptions { interrupt: self.interrupt.clone(), ..RunOptions::default() };
        let run = self.model.run(std::slice::from_ref(&self.tokens), &plan, &options)?;
        let array = run.captures.into_iter().next_back().map(|capture| capture.array);
        let array = array.ok_or_else(|| Error::input(format!("the base has no `{site}`"), "capture another site"))?;
        self.sites.lock().unwrap_or_else(PoisonError::into_inner).insert(site, array.clone());
        Ok(array)
    }

    /// Runs the op list once; branches join the pass where they start.
    fn run_jobs(&self, branches: &mut [Branch], executor: &mut Executor) -> Result<()> {
        let n = self.tokens.len();
        let mut active: Vec<&mut Branch> = branches.iter_mut().filter(|branch| branch.start.position < n).collect();
        active.sort_by_key(|branch| branch.start.op);
        let starts: Vec<Start> = active.iter().map(|branch| branch.start).collect();
        let mut jobs: Vec<&mut Job> = active.into_iter().map(|branch| &mut branch.job).collect();
        let ops = jobs.iter().map(|job| job.compiled.ops).max().unwrap_or(0);
        let tokens = starts.iter().map(|start| n - start.position).sum();
        executor.begin();
        let mut joined = 0;
        while joined < starts.len() {
            let start = starts[joined];
            let joining = joined..joined + starts[joined..].iter().take_while(|other| other.op == start.op).count();
            self.join(executor, &mut jobs, &starts, joining.clone())?;
            joined = joining.end;
            let until = starts.get(joined).map_or(ops, |next| next.op);
            // The pass grows as branches join it: reserve capacity for all of them.
            executor.reserve_tokens(tokens);
            let last = joined == starts.len();
            executor.run_ops(&mut jobs, OpSequence { ops: start.op..until, only: None, keep: None, last }, None)?;
        }
        executor.end(&mut jobs);
        jobs.iter_mut().find_map(|job| job.failure.take()).map_or(Ok(()), Err)
    }

    /// Adds branches to the pass, with the base's values on the edges live at their start. Each
    /// branch's own taps apply first.
    fn join(
        &self,
        executor: &mut Executor,
        jobs: &mut [&mut Job],
        starts: &[Start],
        joining: Range<usize>,
    ) -> Result<()> {
        let (program, memory) = (self.model.program(), self.model.backend().memory());
        let edges = starts[joining.start].join_point.map_or([].as_slice(), |point| &self.join_points[point].live);
        for index in joining {
            let (job, position) = (&mut *jobs[index], starts[index].position);
            let mut own = Pass::default();
            own.add(program, (0, job), 0, position, &self.tokens[position..]);
            job.first_tap = self.plan.taps.len();
            for &edge in edges {
                let (width, token_set) = (program.edge(edge).width, program.edge(edge).token_set);
                let tokens = own.segment_tokens(token_set, &own.segments[0]).map(|(_, position)| position);
                let mut taps = Taps { ops: &self.model, jobs: &mut [&mut *job] };
                let more = self.live.select(edge, width, tokens, memory);
                executor.extend_edge(edge, taps.apply_to(program, &own, edge, more, memory)?);
            }
            job.first_tap = 0;
            let tokens = RowTokens { job: index, row: 0, tokens: &self.tokens[position..] };
            executor.pack(jobs, std::iter::once((tokens, Some(position))));
        }
        Ok(())
    }
}

/// A branch in progress.
struct Branch {
    job: Job,
    start: Start,
}

/// Removes a plan's captures and saved values and applies its other taps to every row.
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

/// Binds a plan for one row to row `row`.
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
        return Err(Error::input("a branch has one row, but a value joins or selects rows", "remove that value"));
    }
    Ok(plan)
}
