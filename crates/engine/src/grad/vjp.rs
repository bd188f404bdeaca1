//! The mechanism by itself: from given gradients at some sites to those at others.

use super::tape::check_site;
use super::{Cotangents, Tape};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::exec::{After, Call, Model, Pass, Segment};
use crate::plan::{Capture, Lengths, Plan, compile};
use crate::program::{Domain, EdgeId, Layout, Program};
use crate::site::Site;
use std::collections::HashSet;

/// A gradient to begin with: what a scalar's derivative with respect to a site is, at some positions of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Seed {
    /// The site.
    pub site: Site,
    /// The row of the call.
    pub row: usize,
    /// Positions of the row; for attention sites all of them.
    pub positions: Vec<usize>,
    /// One number for each number of the site at these positions, in a capture's order.
    pub values: Vec<f32>,
}

/// How to compute gradients.
#[derive(Clone, Debug, Default)]
pub struct GradOptions {
    /// Keep only what enters each layer, and run the layers again on the way back: the same numbers for less memory and more time.
    pub recompute: bool,
}

impl Model {
    /// One forward pass and one walk back: the gradients at the sites `to` of the scalar whose gradients at other sites the seeds give.
    ///
    /// The captures of `to` come row by row, in the shapes of the sites' own captures; where nothing depends on a site, they are zeros.
    /// `plan` may capture and may add constants; other edits change what a gradient means before and after them, and are refused here.
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
        let ops = wanted.iter().chain(seeds.iter().map(|(edge, _)| edge)).map(|&edge| program.edge(edge).made_by + 1);
        compiled.ops = compiled.ops.max(ops.max().unwrap_or(0));

        let mut gradients = Vec::new();
        let mut call = Call::new(self, &compiled, &prompts, None, After::Nothing);
        for group in &compiled.groups {
            let mut tape =
                Tape::new(program, &|edge| wanted.contains(&edge), HashSet::new(), compiled.ops - 1, options.recompute);
            let seeded = |domain: Domain| {
                let seeds = seeds.iter().filter(move |(edge, _)| program.edge(*edge).domain == domain);
                seeds.flat_map(|(_, seed)| seed.positions.iter().map(|&position| (seed.row, position)))
            };
            tape.reads = seeded(Domain::Read).collect();
            tape.reads_late = match wanted.iter().any(|&edge| program.edge(edge).domain == Domain::Late) {
                true => prompts.iter().enumerate().flat_map(|(row, &n)| (0..n).map(move |at| (row, at))).collect(),
                false => seeded(Domain::Late).collect(),
            };
            tape.reads.sort_unstable();
            tape.reads_late.sort_unstable();
            call.record(group, inputs, &mut tape)?;
            let mut given = Given { seeds: &seeds, to, wanted: &wanted, gradients: Vec::new() };
            call.backward(&tape, &mut given)?;
            gradients.append(&mut given.gradients);
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
                problem: "this edit changes what a gradient means before and after it".into(),
                remedy: "take gradients under a plan that captures and adds constants".into(),
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
    let numbers = if attention { spec.width * length * length } else { spec.width * seed.positions.len() };
    if seed.values.len() != numbers {
        let problem = format!("a seed at `{}` has {} numbers instead of {numbers}", seed.site, seed.values.len());
        return Err(Error::input(problem, "give one number for each number of a capture at these positions"));
    }
    Ok(edge)
}

/// Adds the seeds and takes the gradients down.
struct Given<'a> {
    seeds: &'a [(EdgeId, &'a Seed)],
    to: &'a [Site],
    wanted: &'a [EdgeId],
    gradients: Vec<Capture>,
}

impl Given<'_> {
    fn take(&mut self, edge: EdgeId, row: usize, positions: Vec<usize>, array: Array) {
        for (tap, (&site, _)) in self.to.iter().zip(self.wanted).enumerate().filter(|(_, (_, wanted))| **wanted == edge)
        {
            let (positions, array) = (positions.clone(), array.clone());
            self.gradients.push(Capture { site, tap, row, positions, array, units: None });
        }
    }
}

impl Cotangents for Given<'_> {
    fn touches(&self, edge: EdgeId) -> bool {
        self.wanted.contains(&edge) || self.seeds.iter().any(|(seeded, _)| *seeded == edge)
    }

    fn touches_row(&self, edge: EdgeId, row: usize) -> bool {
        self.wanted.contains(&edge) || self.seeds.iter().any(|(seeded, seed)| *seeded == edge && seed.row == row)
    }

    fn meet(&mut self, program: &Program, pass: &Pass, edge: EdgeId, gradient: &mut [f32]) -> Result<()> {
        let spec = program.edge(edge);
        for segment in &pass.segments {
            let places: Vec<(usize, usize)> = pass.places(spec.domain, segment).collect();
            for (_, seed) in self.seeds.iter().filter(|(seeded, seed)| *seeded == edge && seed.row == segment.row) {
                for (&position, values) in seed.positions.iter().zip(seed.values.chunks_exact(spec.width)) {
                    let place = places.iter().find(|(_, at)| *at == position).map_or(0, |(place, _)| *place);
                    gradient[place * spec.width..][..spec.width].iter_mut().zip(values).for_each(|(g, x)| *g += x);
                }
            }
            let numbers = places.iter().flat_map(|(place, _)| &gradient[place * spec.width..][..spec.width]);
            let array = Array::new(program.shape(edge, places.len()), numbers.copied().collect());
            self.take(edge, segment.row, places.into_iter().map(|(_, position)| position).collect(), array);
        }
        Ok(())
    }

    fn meet_attention(
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
