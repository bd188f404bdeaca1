//! What a plan will do on a model, and what it will cost, before it runs.

use super::{Compiled, CompiledAction, CompiledReduce, Entry, Lengths, Plan, compile};
use crate::error::{Error, Result};
use crate::exec::Model;
use crate::profile::{pairs, work};
use crate::program::{Domain, Layout, OpKind, Program};
use pellucid_kernels::{DType, Matrix, Pool, matmul};
use serde::Serialize;
use std::fmt::{Display, Formatter};
use std::sync::OnceLock;
use std::time::Instant;

/// What a plan will do and cost, for rows of given lengths.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Tokens that go through.
    pub tokens: usize,
    /// Ops that run, of all.
    pub ops: usize,
    /// Ops of the whole program.
    pub all_ops: usize,
    /// The last layer that runs.
    pub last_layer: Option<usize>,
    /// Layers that nobody enters.
    pub skipped: Vec<usize>,
    /// Rows that run together, group after group.
    pub groups: Vec<Vec<usize>>,
    /// What happens where, in the plan's order.
    pub taps: Vec<Touch>,
    /// Layers whose attention is taken apart, with the rows that somebody looks into; all other attention is fused.
    pub attention_apart: Vec<(usize, Vec<usize>)>,
    /// Positions whose logits are computed.
    pub logits: usize,
    /// Multiplications and additions of the forward pass.
    pub flops: f64,
    /// Bytes of weights that the forward pass reads.
    pub weight_bytes: f64,
    /// About how long it will take here: for each op the longer of arithmetic and reading, at rates that are measured once.
    pub seconds: f64,
    /// Bytes that captures and saved values take.
    pub capture_bytes: usize,
    /// Bytes of keys and values.
    pub kv_bytes: usize,
    /// Whether a walk back follows: about as much arithmetic again, and the activations that it needs.
    pub gradients: bool,
}

/// A tap at a site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Touch {
    /// Which tap of the plan.
    pub tap: usize,
    /// The site.
    pub site: String,
    /// What it does there.
    pub action: String,
    /// In how many rows.
    pub rows: usize,
    /// At how many positions of all rows together.
    pub positions: usize,
    /// The whole buffer changes hands, and nothing is copied.
    pub handed_over: bool,
}

impl Plan {
    /// Every problem of the plan on a program, for prompts of these lengths; none means that it will run.
    pub fn check(&self, program: &Program, prompts: &[usize]) -> Vec<Error> {
        match compile(program, self, Lengths { prompts, limits: prompts }, false) {
            Ok(_) => Vec::new(),
            Err(Error::Several(all)) => all,
            Err(one) => vec![one],
        }
    }

    /// What the plan will do on a model and what that will cost, for prompts of these lengths.
    pub fn explain(&self, model: &Model, prompts: &[usize]) -> Result<Explanation> {
        let program = model.program();
        let compiled = compile(program, self, Lengths { prompts, limits: prompts }, false)?;
        let tokens: usize = prompts.iter().sum();
        let rows = prompts.iter().enumerate();
        let counted = |domains: &[Domain]| -> usize {
            let read = |row: usize, at: usize| domains.iter().any(|&domain| compiled.reads(program, domain, row, at));
            rows.clone().map(|(row, &n)| (0..n).filter(|&at| read(row, at)).count()).sum()
        };
        let (late, logits) = (counted(&[Domain::Late, Domain::Read]), counted(&[Domain::Read]));
        let ops = &program.ops()[..compiled.ops];
        let entered = |op: &&crate::program::Op| op.layer.is_none_or(|layer| !compiled.skipped[layer]);
        let (mut flops, mut weight_bytes, mut seconds) = (0.0, 0.0, 0.0);
        let (flop_rate, byte_rate) = rates(model.pool());
        let gradients = compiled.gradient_edges(program).is_some();
        for (index, _) in ops.iter().enumerate().filter(|(_, op)| entered(op)) {
            let computed = match program.edge(program.ops()[index].kind.output()).domain {
                // A plain run computes the last MLP everywhere.
                Domain::Late if gradients => late,
                Domain::All | Domain::Late => tokens,
                Domain::Read => logits,
            };
            let pairs = pairs(program, index, prompts.iter().flat_map(|&n| 0..n));
            let work = work(program, model.weights(), index, computed, pairs);
            flops += work.flops;
            let read = work.weight_bytes * compiled.groups.len() as f64;
            weight_bytes += read;
            // On the way back each product is done again with its weight turned.
            let ways = if gradients { 2.0 } else { 1.0 };
            seconds += ways * (work.flops / flop_rate).max(read / byte_rate);
        }
        let kv_bytes = ops.iter().filter(entered).map(|op| match &op.kind {
            OpKind::Attention { shape, .. } => 4 * tokens * shape.kv_heads * (shape.key_dim + shape.value_dim),
            _ => 0,
        });
        let taps: Vec<Touch> =
            compiled.entries.iter().enumerate().map(|(index, entry)| touch(&compiled, program, index, entry)).collect();
        Ok(Explanation {
            tokens,
            ops: ops.iter().filter(entered).count(),
            all_ops: program.ops().len(),
            last_layer: ops.iter().filter_map(|op| op.layer).max(),
            skipped: (0..compiled.skipped.len()).filter(|&layer| compiled.skipped[layer]).collect(),
            groups: compiled.groups.clone(),
            attention_apart: apart(&compiled, program),
            logits,
            flops,
            weight_bytes,
            seconds,
            capture_bytes: capture_bytes(&compiled, program),
            kv_bytes: kv_bytes.sum(),
            gradients,
            taps,
        })
    }
}

fn touch(compiled: &Compiled, program: &Program, index: usize, entry: &Entry) -> Touch {
    let whole = entry.whole && matches!(entry.action, CompiledAction::Capture(CompiledReduce::Whole));
    Touch {
        tap: entry.tap,
        site: entry.site.to_string(),
        action: entry.action.name().into(),
        rows: entry.rows.iter().flatten().count(),
        positions: entry.rows.iter().flatten().map(|chosen| chosen.len()).sum(),
        handed_over: whole
            && compiled.at_edge[entry.edge].last() == Some(&index)
            && program.edge(entry.edge).layout != Layout::QueryKey,
    }
}

/// The rows of each layer whose attention is not fused.
fn apart(compiled: &Compiled, program: &Program) -> Vec<(usize, Vec<usize>)> {
    let mut layers: Vec<(usize, Vec<usize>)> = Vec::new();
    for entry in compiled.entries.iter().filter(|entry| program.edge(entry.edge).layout == Layout::QueryKey) {
        let layer = entry.site.layer.unwrap_or_default();
        let rows = (0..entry.rows.len()).filter(|&row| entry.rows[row].is_some());
        match layers.iter_mut().find(|(known, _)| *known == layer) {
            Some((_, known)) => known.extend(rows),
            None => layers.push((layer, rows.collect())),
        }
    }
    for (_, rows) in &mut layers {
        rows.sort_unstable();
        rows.dedup();
    }
    layers.sort_unstable();
    layers
}

fn capture_bytes(compiled: &Compiled, program: &Program) -> usize {
    let of = |entry: &Entry, action: &CompiledAction| {
        let edge = program.edge(entry.edge);
        let rows = entry.rows.iter().enumerate().filter_map(|(row, chosen)| Some((row, chosen.as_ref()?.len())));
        let numbers = |row: usize, positions: usize| match action {
            CompiledAction::Capture(_) if edge.layout == Layout::QueryKey => {
                entry.heads.len() * positions * compiled.prompts[row]
            }
            CompiledAction::Capture(CompiledReduce::Whole) => positions * entry.columns.len(),
            CompiledAction::Capture(CompiledReduce::Mean) => entry.columns.len(),
            CompiledAction::Capture(CompiledReduce::TopK(k)) => 2 * positions * k,
            CompiledAction::Capture(CompiledReduce::Norm | CompiledReduce::Dot(_)) => positions,
            CompiledAction::Read | CompiledAction::Grad { .. } | CompiledAction::Edit(_) | CompiledAction::Call(_) => 0,
        };
        rows.map(|(row, positions)| 4 * numbers(row, positions)).sum::<usize>()
    };
    let captures = compiled.entries.iter().map(|entry| match &entry.action {
        CompiledAction::Grad { action, .. } => of(entry, action),
        CompiledAction::Capture(_) => of(entry, &entry.action),
        CompiledAction::Read | CompiledAction::Edit(_) | CompiledAction::Call(_) => 0,
    });
    let saved = compiled.values.save.iter().flat_map(|&value| &compiled.values.shapes[value]).flatten();
    captures.sum::<usize>() + saved.map(|shape| 4 * shape.iter().product::<usize>()).sum::<usize>()
}

impl Explanation {
    /// All of it as JSON.
    pub fn to_json(&self) -> std::result::Result<String, String> {
        serde_json::to_string(self).map_err(|error| error.to_string())
    }
}

impl Display for Explanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let last = self.last_layer.map_or(String::new(), |layer| format!(", up to layer {layer}"));
        writeln!(f, "{} tokens through {} of {} ops{last}", self.tokens, self.ops, self.all_ops)?;
        if !self.skipped.is_empty() {
            writeln!(f, "layers that nobody enters: {:?}", self.skipped)?;
        }
        if self.groups.len() > 1 {
            writeln!(f, "rows run in groups, one after the other: {:?}", self.groups)?;
        }
        for (layer, rows) in &self.attention_apart {
            writeln!(f, "attention of layer {layer} is taken apart for rows {rows:?}; the rest is fused")?;
        }
        writeln!(f, "logits of {} positions", self.logits)?;
        writeln!(f, "arithmetic {:.2} GFLOP, weights read {}", self.flops / 1e9, bytes(self.weight_bytes))?;
        writeln!(f, "time: about {} here", time(self.seconds))?;
        let (captures, kv) = (bytes(self.capture_bytes as f64), bytes(self.kv_bytes as f64));
        writeln!(f, "memory: captures {captures}, keys and values {kv}")?;
        if self.gradients {
            writeln!(f, "a walk back follows: about as much arithmetic again, and the activations that it needs")?;
        }
        for touch in &self.taps {
            let copied = if touch.handed_over { ", handed over without a copy" } else { "" };
            let (site, action, rows, positions) = (&touch.site, &touch.action, touch.rows, touch.positions);
            writeln!(f, "tap {}: {action} at {site}, {positions} positions in {rows} rows{copied}", touch.tap)?;
        }
        Ok(())
    }
}

/// Multiplications and additions a second, and bytes of weights a second, on these threads: measured once, in a few milliseconds.
fn rates(pool: &Pool) -> (f64, f64) {
    static RATES: OnceLock<(f64, f64)> = OnceLock::new();
    *RATES.get_or_init(|| {
        const SIDE: usize = 1536;
        const TOKENS: usize = 64;
        let matrix = Matrix::pack(pool, SIDE, SIDE, DType::F32, &|row, out| out.fill(row as f32));
        let fastest = |tokens: usize| {
            let (x, mut y) = (vec![1.0; tokens * SIDE], vec![0.0; tokens * SIDE]);
            let run = |_| {
                let started = Instant::now();
                matmul(pool, &x, &matrix, None, &mut y);
                started.elapsed().as_secs_f64()
            };
            (0..3).map(run).fold(f64::INFINITY, f64::min)
        };
        let flops = (2 * SIDE * SIDE * TOKENS) as f64 / fastest(TOKENS);
        (flops, matrix.bytes() as f64 / fastest(1))
    })
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", 1e3 * s),
        s => format!("{:.0} µs", 1e6 * s),
    }
}

fn bytes(count: f64) -> String {
    match count {
        x if x >= 1e9 => format!("{:.2} GB", x / 1e9),
        x if x >= 1e6 => format!("{:.1} MB", x / 1e6),
        x => format!("{:.1} kB", x / 1e3),
    }
}
