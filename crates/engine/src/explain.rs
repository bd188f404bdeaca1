//! `Plan::explain`: what a plan will do on a model and what it will cost, without running it.

use crate::adapter::LowRank;
use crate::array::CaptureDtype;
use crate::error::{Error, Result};
use crate::memory_limit::{allowed_memory, format_bytes};
use crate::model::Model;
use crate::needed_memory::{
    activation_bytes, capture_bytes, keeps_dense, sae_memory, sae_positions, unfused_bytes, value_bytes,
};
use crate::plan::{CompiledAction, CompiledPlan, CompiledReduce, CompiledTap, Lengths, Plan, compile};
use crate::profile::{pairs, work};
use crate::program::{EdgeId, Layout, Op, OpKind, Program, TokenSet};
use pellucid_kernels::{DType, Matrix, Pool, matmul};
use serde::Serialize;
use std::fmt::{Display, Formatter};
use std::sync::OnceLock;
use std::time::Instant;

/// What a plan will do and cost, for prompts of given lengths.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Number of input tokens.
    pub tokens: usize,
    /// Number of ops that run.
    pub ops: usize,
    /// Number of ops in the program.
    pub all_ops: usize,
    /// Last layer that runs.
    pub last_layer: Option<usize>,
    /// Layers that all rows skip.
    pub skipped: Vec<usize>,
    /// Groups of rows; groups run one after the other.
    pub groups: Vec<Vec<usize>>,
    /// Taps at their matched sites, in the plan's order.
    pub taps: Vec<TapExplanation>,
    /// Layers with unfused attention, each with the rows that tap its scores or weights; all other
    /// attention is fused.
    #[serde(rename = "attention_apart")]
    pub unfused_attention: Vec<(usize, Vec<usize>)>,
    /// Number of positions whose logits are computed.
    pub logits: usize,
    /// FLOPs of the forward pass.
    pub flops: f64,
    /// Weight bytes that the forward pass reads.
    pub weight_bytes: f64,
    /// Estimated time in seconds on this machine: per op the maximum of compute and weight reading,
    /// at rates measured once per process.
    pub seconds: f64,
    /// Bytes of captures and saved values.
    pub capture_bytes: usize,
    /// Bytes of the KV cache.
    pub kv_bytes: usize,
    /// Bytes of the activations of features that exist at once, if an autoencoder runs.
    #[serde(skip_serializing_if = "is_zero")]
    pub feature_bytes: usize,
    /// Bytes of the activations that exist at once, without captures and features.
    pub activation_bytes: usize,
    /// Bytes of the computed values that are not saved.
    #[serde(skip_serializing_if = "is_zero")]
    pub value_bytes: usize,
    /// Bytes of weights, autoencoders, adapters, KV cache, activations, features, captures and
    /// values together.
    pub peak_bytes: usize,
    /// Bytes that a call may take on this machine now, beside the weights; absent if not limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_bytes: Option<usize>,
    /// Ops that the backend does not support and that run on the CPU; empty for the CPU backend.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<String>,
    /// Whether a backward pass follows, with about the same FLOPs and the stored activations.
    pub gradients: bool,
}

/// A tap at one matched site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TapExplanation {
    /// Index of the tap in the plan.
    pub tap: usize,
    /// The site.
    pub site: String,
    /// Name of the action.
    pub action: String,
    /// Number of rows.
    pub rows: usize,
    /// Number of positions, summed over rows.
    pub positions: usize,
    /// The capture takes ownership of the whole buffer, without a copy.
    #[serde(rename = "handed_over")]
    pub zero_copy: bool,
    /// Nonzero elements per position that `capture_bytes` counts, for a sparse capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonzero: Option<usize>,
    /// Whether `nonzero` is an upper bound (TopK: k, unless features are edited) or an assumption
    /// (other features: 1 in 64 active).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nonzero_is_bound: bool,
}

impl Plan {
    /// Returns every problem of the plan on a program, for prompts of these lengths; empty if it is
    /// valid.
    pub fn check(&self, program: &Program, prompts: &[usize]) -> Vec<Error> {
        match compile(program, self, Lengths { prompts, limits: prompts }, false) {
            Ok(_) => Vec::new(),
            Err(Error::Several(all)) => all,
            Err(single) => vec![single],
        }
    }

    /// Returns what the plan will do on a model and what it will cost, for prompts of these
    /// lengths.
    pub fn explain(&self, model: &Model, prompts: &[usize]) -> Result<Explanation> {
        let program = model.program();
        let compiled = compile(program, self, Lengths { prompts, limits: prompts }, false)?;
        let tokens: usize = prompts.iter().sum();
        let rows = prompts.iter().enumerate();
        let count_positions = |token_sets: &[TokenSet]| -> usize {
            let read =
                |row: usize, at: usize| token_sets.iter().any(|&token_set| compiled.reads(program, token_set, row, at));
            rows.clone().map(|(row, &n)| (0..n).filter(|&at| read(row, at)).count()).sum()
        };
        let (last_mlp, logits) =
            (count_positions(&[TokenSet::ForLastMlp, TokenSet::ForLogits]), count_positions(&[TokenSet::ForLogits]));
        let ops = &program.ops()[..compiled.ops];
        // The op of an autoencoder that the plan does not name does not run.
        let is_unused = |kind: &OpKind| matches!(kind, OpKind::Sae { sae, .. } if !compiled.sae_uses[*sae].runs);
        let entered = |op: &&Op| op.layer.is_none_or(|layer| !compiled.skipped[layer]) && !is_unused(&op.kind);
        let (mut flops, mut weight_bytes, mut seconds, mut feature_bytes) = (0.0, 0.0, 0.0, 0);
        let (flop_rate, byte_rate) = rates(model.pool());
        let gradients = compiled.gradient_edges(program).is_some();
        for (index, _) in ops.iter().enumerate().filter(|(_, op)| entered(op)) {
            let computed = match program.edge(program.ops()[index].kind.output()).token_set {
                // Without gradients the last MLP runs for all tokens.
                TokenSet::ForLastMlp if gradients => last_mlp,
                TokenSet::All | TokenSet::ForLastMlp => tokens,
                TokenSet::ForLogits => logits,
            };
            let pairs = pairs(program, index, prompts.iter().flat_map(|&n| 0..n));
            let mut work = work(program, model.weights(), index, computed, pairs);
            if let Some(LowRank { a, b, .. }) = model.default_update(index) {
                work.flops += 2.0 * (a.rows() * (a.cols() + b.rows()) * computed) as f64;
                work.weight_bytes += (a.bytes() + b.bytes()) as f64;
            }
            if let OpKind::Sae { sae, .. } = &program.ops()[index].kind {
                let (sae, runs) =
                    (&model.saes()[*sae].sae, sae_positions(program, &compiled, &program.ops()[index].kind));
                let runs = if gradients && runs > 0 { computed } else { runs };
                work.flops = 2.0 * (sae.n_features() * sae.d_in() * runs) as f64;
                work.weight_bytes = if runs > 0 { sae.encoder.bytes() as f64 } else { 0.0 };
                let memory =
                    sae_memory(sae.n_features(), runs, gradients, keeps_dense(&compiled, &program.ops()[index].kind));
                feature_bytes = feature_bytes.max(memory);
            }
            flops += work.flops;
            let read = work.weight_bytes * compiled.groups.len() as f64;
            weight_bytes += read;
            // The backward pass repeats each matmul with the transposed weight.
            let passes = if gradients { 2.0 } else { 1.0 };
            seconds += passes * (work.flops / flop_rate).max(read / byte_rate);
        }
        let kv_bytes = ops.iter().filter(entered).map(|op| match &op.kind {
            OpKind::Attention { shape, .. } => 4 * tokens * shape.kv_heads * (shape.key_dim + shape.value_dim),
            _ => 0,
        });
        let kv_bytes: usize = kv_bytes.sum();
        let capture_bytes = capture_bytes(&compiled, program, prompts, CaptureDtype::F32);
        let positions_of = |edge: EdgeId| match program.edge(edge).token_set {
            TokenSet::ForLogits => logits,
            TokenSet::All | TokenSet::ForLastMlp => tokens,
        };
        let activation_bytes = activation_bytes(program, &compiled, positions_of)
            .saturating_add(unfused_bytes(program, &compiled, prompts));
        let value_bytes = value_bytes(&compiled);
        let sae_bytes: usize = model.saes().iter().map(|attached| attached.sae.bytes()).sum();
        let adapter_bytes: usize = model.adapters().iter().map(|adapter| adapter.bytes()).sum();
        let weight_memory = model.weights().bytes() + sae_bytes + adapter_bytes;
        let taps: Vec<TapExplanation> = compiled
            .taps
            .iter()
            .enumerate()
            .map(|(index, entry)| explain_tap(&compiled, program, index, entry))
            .collect();
        Ok(Explanation {
            tokens,
            ops: ops.iter().filter(entered).count(),
            all_ops: program.ops().len(),
            last_layer: ops.iter().filter_map(|op| op.layer).max(),
            skipped: (0..compiled.skipped.len()).filter(|&layer| compiled.skipped[layer]).collect(),
            groups: compiled.groups.clone(),
            unfused_attention: unfused_attention(&compiled, program),
            logits,
            flops,
            weight_bytes,
            seconds,
            capture_bytes,
            kv_bytes,
            feature_bytes,
            activation_bytes,
            value_bytes,
            peak_bytes: [weight_memory, kv_bytes, activation_bytes, feature_bytes, capture_bytes, value_bytes]
                .into_iter()
                .fold(0, usize::saturating_add),
            allowed_bytes: allowed_memory().ok().flatten().map(|allowed| allowed.bytes),
            fallbacks: fallbacks(model, &compiled),
            gradients,
            taps,
        })
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Returns the ops that the model's backend does not support under a plan, such as
/// `attention of layer 3`.
fn fallbacks(model: &Model, compiled: &CompiledPlan) -> Vec<String> {
    let is_tapped = |edge: EdgeId| !compiled.backward_at_edge[edge].is_empty() || !compiled.sources_at[edge].is_empty();
    let falls_back = |op: &&Op| !model.backend().runs(&op.kind, op.kind.tap_edges().into_iter().any(is_tapped));
    let name = |op: &Op| match op.layer {
        Some(layer) => format!("{} of layer {layer}", op.kind.name()),
        None => op.kind.name().to_string(),
    };
    model.program().ops()[..compiled.ops].iter().filter(falls_back).map(name).collect()
}

fn explain_tap(compiled: &CompiledPlan, program: &Program, index: usize, entry: &CompiledTap) -> TapExplanation {
    let whole = entry.whole && matches!(entry.action, CompiledAction::Capture(CompiledReduce::Whole));
    let sparse = match entry.action {
        CompiledAction::Capture(CompiledReduce::Sparse(size)) => Some(size),
        _ => None,
    };
    TapExplanation {
        tap: entry.tap,
        site: entry.site.to_string(),
        action: entry.action.name().into(),
        rows: entry.rows.iter().flatten().count(),
        positions: entry.rows.iter().flatten().map(|chosen| chosen.len()).sum(),
        zero_copy: whole
            && compiled.at_edge[entry.edge].last() == Some(&index)
            && program.edge(entry.edge).layout != Layout::QueryKey,
        nonzero: sparse.map(|size| size.per_position),
        nonzero_is_bound: sparse.is_some_and(|size| size.is_bound),
    }
}

/// Returns the layers with unfused attention, each with the rows that need it.
fn unfused_attention(compiled: &CompiledPlan, program: &Program) -> Vec<(usize, Vec<usize>)> {
    let mut layers: Vec<(usize, Vec<usize>)> = Vec::new();
    for entry in compiled.taps.iter().filter(|entry| program.edge(entry.edge).layout == Layout::QueryKey) {
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

impl Explanation {
    /// Returns the explanation as JSON.
    pub fn to_json(&self) -> std::result::Result<String, String> {
        serde_json::to_string(self).map_err(|error| error.to_string())
    }
}

impl Display for Explanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let last = self.last_layer.map_or(String::new(), |layer| format!(", up to layer {layer}"));
        writeln!(f, "{} tokens through {} of {} ops{last}", self.tokens, self.ops, self.all_ops)?;
        if !self.skipped.is_empty() {
            writeln!(f, "skipped layers: {:?}", self.skipped)?;
        }
        if self.groups.len() > 1 {
            writeln!(f, "rows run in groups, one after the other: {:?}", self.groups)?;
        }
        for (layer, rows) in &self.unfused_attention {
            writeln!(f, "attention of layer {layer} is unfused for rows {rows:?}")?;
        }
        if !self.fallbacks.is_empty() {
            writeln!(f, "ops without backend support, run on the CPU: {}", self.fallbacks.join(", "))?;
        }
        writeln!(f, "logits of {} positions", self.logits)?;
        writeln!(
            f,
            "arithmetic {:.2} GFLOP, weights read {}",
            self.flops / 1e9,
            format_bytes(self.weight_bytes as usize)
        )?;
        writeln!(f, "time: about {} here", time(self.seconds))?;
        let (captures, kv) = (format_bytes(self.capture_bytes), format_bytes(self.kv_bytes));
        let more = |name: &str, count: usize| match count {
            0 => String::new(),
            count => format!(", {name} {}", format_bytes(count)),
        };
        let (features, values) = (more("features", self.feature_bytes), more("values", self.value_bytes));
        let (peak, activations) = (format_bytes(self.peak_bytes), format_bytes(self.activation_bytes));
        writeln!(
            f,
            "memory: {peak}, of it activations {activations}, captures {captures}, KV cache {kv}{features}{values}"
        )?;
        let parts = [self.activation_bytes, self.capture_bytes, self.kv_bytes, self.feature_bytes, self.value_bytes];
        let needed = parts.into_iter().fold(0, usize::saturating_add);
        if let Some(allowed) = self.allowed_bytes.filter(|&allowed| needed > allowed) {
            let (needed, allowed) = (format_bytes(needed), format_bytes(allowed));
            writeln!(f, "it would be refused here: it needs {needed} beside the weights, and {allowed} may be used")?;
        }
        if self.gradients {
            writeln!(f, "backward pass: about as much arithmetic again, plus stored activations")?;
        }
        for tap in &self.taps {
            let copied = if tap.zero_copy { ", zero-copy" } else { "" };
            let sparse = match tap.nonzero {
                Some(count) if tap.nonzero_is_bound => format!(", sparse: at most {count} elements each"),
                Some(count) => format!(", sparse: about {count} elements each, if 1 feature in 64 is active"),
                None => String::new(),
            };
            let (site, action, rows, positions) = (&tap.site, &tap.action, tap.rows, tap.positions);
            writeln!(f, "tap {}: {action} at {site}, {positions} positions in {rows} rows{copied}{sparse}", tap.tap)?;
        }
        Ok(())
    }
}

/// Returns FLOPs per second and weight bytes per second of this machine, measured once in a few
/// milliseconds.
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
