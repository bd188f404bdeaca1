//! Vector-Jacobian products between sites.

use super::tape::check_site;
use super::{Cotangents, GradientTape, record, run_backward};
use crate::adapter::RowAdapters;
use crate::array::Array;
use crate::error::{Error, Result};
use crate::exec::Executor;
use crate::interrupt::InterruptPoller;
use crate::job::{CacheUse, Job, JobOptions, Pass, Segment};
use crate::model::Model;
use crate::plan::{Capture, Lengths, Plan, compile};
use crate::program::{EdgeId, Layout, Program, TokenSet};
use crate::site::Site;
use std::collections::HashSet;
use std::sync::Arc;

/// An upstream gradient: the derivative of a scalar with respect to a site, at some positions of a
/// row.
#[derive(Clone, Debug, PartialEq)]
pub struct Seed {
    /// The site.
    pub site: Site,
    /// The row of the call.
    pub row: usize,
    /// Positions of the row. Attention sites take all positions.
    pub positions: Vec<usize>,
    /// One float per element of the site at these positions, in the layout of a capture.
    pub values: Vec<f32>,
}

/// Options of gradient computation.
#[derive(Clone, Debug, Default)]
pub struct GradOptions {
    /// Gradient checkpointing: retain only each layer's inputs and recompute the layers in the
    /// backward pass. Bit-identical, with less memory and more time.
    pub recompute: bool,
}

impl Model {
    /// Computes a vector-Jacobian product with one forward and one backward pass: from the upstream
    /// gradients `seeds` to the gradients at the sites `to`.
    ///
    /// Returns one capture per row and site, in the shape of the site's own captures; zeros if the
    /// seeded sites do not depend on it. `plan` may capture and add constants; other edits are an
    /// error, because the gradient before and after them differs.
    pub fn vjp(
        &self,
        inputs: &[Vec<u32>],
        plan: &Plan,
        seeds: &[Seed],
        to: &[Site],
        options: &GradOptions,
    ) -> Result<Vec<Capture>> {
        self.check_inputs(inputs, 0, None)?;
        let program = self.program();
        refuse_edits(plan)?;
        let prompts: Vec<usize> = inputs.iter().map(Vec::len).collect();
        let mut compiled = compile(program, plan, Lengths { prompts: &prompts, limits: &prompts }, false)?;
        let wanted = to.iter().map(|&site| check_site(program, site)).collect::<Result<Vec<EdgeId>>>()?;
        let seeds = seeds.iter().map(|seed| Ok((check_seed(program, seed, &prompts)?, seed)));
        let seeds = seeds.collect::<Result<Vec<(EdgeId, &Seed)>>>()?;
        let ops = wanted.iter().chain(seeds.iter().map(|(edge, _)| edge)).map(|&edge| program.edge(edge).producer + 1);
        compiled.ops = compiled.ops.max(ops.max().unwrap_or(0));

        let mut gradients = Vec::new();
        let mut executor = Executor::new(self, InterruptPoller::new(None));
        let compiled = Arc::new(compiled);
        let adapters = self.row_adapters(&RowAdapters::ModelDefault, inputs.len())?;
        let job_options = JobOptions { adapters, ..JobOptions::new(self.kv(), CacheUse::Discard) };
        let mut job = Job::new(program, compiled.clone(), job_options)?;
        let seeded = |token_set: TokenSet| {
            let seeds = seeds.iter().filter(move |(edge, _)| program.edge(*edge).token_set == token_set);
            seeds.flat_map(|(_, seed)| seed.positions.iter().map(|&position| (seed.row, position)))
        };
        job.demand.logits_at = seeded(TokenSet::ForLogits).collect();
        job.demand.last_mlp_at = match wanted.iter().any(|&edge| program.edge(edge).token_set == TokenSet::ForLastMlp) {
            true => prompts.iter().enumerate().flat_map(|(row, &n)| (0..n).map(move |at| (row, at))).collect(),
            false => seeded(TokenSet::ForLastMlp).collect(),
        };
        job.demand.logits_at.sort_unstable();
        job.demand.last_mlp_at.sort_unstable();
        for group in &compiled.groups {
            let is_wanted = |edge| wanted.contains(&edge);
            let mut tape = GradientTape::new(program, &is_wanted, HashSet::new(), compiled.ops - 1, options.recompute);
            record(&mut executor, &mut job, group, inputs, &mut tape)?;
            let mut vjp_seeds = VjpSeeds { seeds: &seeds, to, wanted: &wanted, gradients: Vec::new() };
            run_backward(&mut executor, &mut job, &tape, &mut vjp_seeds)?;
            gradients.append(&mut vjp_seeds.gradients);
        }
        gradients.sort_by_key(|capture: &Capture| (capture.tap, capture.row));
        Ok(gradients)
    }
}

fn refuse_edits(plan: &Plan) -> Result<()> {
    for (tap, spec) in plan.taps.iter().enumerate() {
        if !spec.action.keeps_gradient() {
            return Err(Error::Plan {
                tap,
                site: spec.site.clone(),
                problem: "the gradient before and after this edit differs".into(),
                remedy: "use a plan that only captures and adds constants".into(),
            });
        }
    }
    Ok(())
}

fn check_seed(program: &Program, seed: &Seed, prompts: &[usize]) -> Result<EdgeId> {
    let edge = check_site(program, seed.site)?;
    let Some(&length) = prompts.get(seed.row) else {
        let problem =
            format!("a seed at `{}` is for row {}: this call has {} inputs", seed.site, seed.row, prompts.len());
        return Err(Error::input(problem, "rows count the inputs of the call from 0"));
    };
    let spec = program.edge(edge);
    let attention = spec.layout == Layout::QueryKey;
    let outside = seed.positions.iter().find(|&&position| position >= length);
    if let Some(position) = outside.filter(|_| !attention) {
        let problem = format!("a seed at `{}` is for position {position} of a row of {length}", seed.site);
        return Err(Error::input(problem, "positions count a row's tokens from 0"));
    }
    let count = if attention { spec.width * length * length } else { spec.width * seed.positions.len() };
    if seed.values.len() != count {
        let problem = format!("a seed at `{}` has {} values instead of {count}", seed.site, seed.values.len());
        return Err(Error::input(problem, "give one value for each element of a capture at these positions"));
    }
    Ok(edge)
}

/// Adds the seeds and captures the wanted gradients.
struct VjpSeeds<'a> {
    seeds: &'a [(EdgeId, &'a Seed)],
    to: &'a [Site],
    wanted: &'a [EdgeId],
    gradients: Vec<Capture>,
}

impl VjpSeeds<'_> {
    fn take(&mut self, edge: EdgeId, row: usize, positions: Vec<usize>, array: Array) {
        for (tap, (&site, _)) in self.to.iter().zip(self.wanted).enumerate().filter(|(_, (_, wanted))| **wanted == edge)
        {
            let (positions, array) = (positions.clone(), array.clone());
            self.gradients.push(Capture { site, tap, row, positions, array, units: None, sparse: None });
        }
    }
}

impl Cotangents for VjpSeeds<'_> {
    fn wants(&self, edge: EdgeId) -> bool {
        self.wanted.contains(&edge) || self.seeds.iter().any(|(seeded, _)| *seeded == edge)
    }

    fn wants_row(&self, edge: EdgeId, row: usize) -> bool {
        self.wanted.contains(&edge) || self.seeds.iter().any(|(seeded, seed)| *seeded == edge && seed.row == row)
    }

    fn visit(&mut self, program: &Program, pass: &Pass, edge: EdgeId, gradient: &mut [f32]) -> Result<()> {
        let spec = program.edge(edge);
        for segment in &pass.segments {
            let tokens: Vec<(usize, usize)> = pass.segment_tokens(spec.token_set, segment).collect();
            for (_, seed) in self.seeds.iter().filter(|(seeded, seed)| *seeded == edge && seed.row == segment.row) {
                for (&position, values) in seed.positions.iter().zip(seed.values.chunks_exact(spec.width)) {
                    let index = tokens.iter().find(|(_, at)| *at == position).map_or(0, |(index, _)| *index);
                    gradient[index * spec.width..][..spec.width].iter_mut().zip(values).for_each(|(g, x)| *g += x);
                }
            }
            let elements = tokens.iter().flat_map(|(index, _)| &gradient[index * spec.width..][..spec.width]);
            let array = Array::new(program.shape(edge, tokens.len()), elements.copied().collect());
            self.take(edge, segment.row, tokens.into_iter().map(|(_, position)| position).collect(), array);
        }
        Ok(())
    }

    fn visit_attention(
        &mut self,
        program: &Program,
        segment: &Segment,
        edge: EdgeId,
        gradient: &mut [f32],
    ) -> Result<()> {
        for (_, seed) in self.seeds.iter().filter(|(seeded, seed)| *seeded == edge && seed.row == segment.row) {
            gradient.iter_mut().zip(&seed.values).for_each(|(g, x)| *g += x);
        }
        let array = Array::new(program.shape(edge, segment.count), gradient.to_vec());
        self.take(edge, segment.row, (0..segment.count).collect(), array);
        Ok(())
    }
}
