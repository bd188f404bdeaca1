//! Op profiler: a backend that times every op of another backend.

use crate::backend::{Backend, Frame, Taps};
use crate::error::Result;
use crate::model::Model;
use crate::program::{Linear, OpKind, Program, TokenSet};
use crate::weights::Weights;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// One execution of one op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpTime {
    /// Index of the op in the program.
    pub op: usize,
    /// Number of tokens in the pass.
    pub tokens: usize,
    /// Number of tokens that it computed. The last ops of a model run only for tokens whose output
    /// is used.
    pub computed: usize,
    /// For attention, the number of (query, visible key) pairs.
    pub pairs: usize,
    /// Start time, in seconds since the profile was created.
    pub at_s: f64,
    /// Duration in seconds.
    pub seconds: f64,
}

/// The cost of an op for some tokens, computed from its shapes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating-point operations; a multiply-add counts as two.
    pub flops: f64,
    /// Bytes of weights read.
    pub weight_bytes: f64,
}

/// A profile that grows while its model runs.
#[derive(Clone)]
pub struct Profile {
    began: Instant,
    times: Arc<Mutex<Vec<OpTime>>>,
}

impl Profile {
    /// All measurements so far, in order.
    pub fn times(&self) -> Vec<OpTime> {
        self.lock().clone()
    }

    /// Drops all measurements.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OpTime>> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A backend that times another one.
struct ProfilingBackend {
    inner: Arc<dyn Backend>,
    /// The tokens that each op computes.
    token_sets: Vec<TokenSet>,
    profile: Profile,
}

impl Backend for ProfilingBackend {
    fn execute(&self, index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
        let (tokens, computed) = (frame.pass.tokens.len(), frame.pass.len(self.token_sets[index]));
        let pairs = pairs(frame.program, index, frame.pass.positions.iter().copied());
        let started = Instant::now();
        let outcome = self.inner.execute(index, frame, taps);
        let seconds = started.elapsed().as_secs_f64();
        let at_s = started.duration_since(self.profile.began).as_secs_f64();
        self.profile.lock().push(OpTime { op: index, tokens, computed, pairs, at_s, seconds });
        outcome
    }
}

impl Model {
    /// Returns the model with a profiling backend, and its profile. Results are bit-identical.
    pub fn profiled(&self) -> (Model, Profile) {
        let profile = Profile { began: Instant::now(), times: Arc::default() };
        let inner = self.backend().clone();
        let mut token_sets = vec![TokenSet::All; self.program().ops().len()];
        for edge in self.program().edges() {
            token_sets[edge.producer] = edge.token_set;
        }
        (self.with_backend(Arc::new(ProfilingBackend { inner, token_sets, profile: profile.clone() })), profile)
    }
}

/// The number of (query, visible key) pairs of queries at these positions; 0 if the op is not
/// attention.
pub fn pairs(program: &Program, op: usize, positions: impl Iterator<Item = usize>) -> usize {
    match &program.ops()[op].kind {
        OpKind::Attention { shape, .. } => positions.map(|position| shape.visible(position).len()).sum(),
        _ => 0,
    }
}

/// The cost of an op for `tokens` tokens, and of attention for `pairs` (query, key) pairs. Counts
/// only matrix products; all other ops read their inputs from CPU caches, as attention does its KV
/// cache.
pub fn work(program: &Program, weights: &Weights, op: usize, tokens: usize, pairs: usize) -> Work {
    let product = |linear: &Linear| {
        let matrix = weights.matrix(linear.weight);
        Work {
            flops: 2.0 * (matrix.rows() * matrix.cols()) as f64 * tokens as f64,
            weight_bytes: matrix.bytes() as f64,
        }
    };
    match &program.ops()[op].kind {
        OpKind::MatMul { linear, .. } | OpKind::Project { linear, .. } => product(linear),
        OpKind::Experts { experts, weights: shares, .. } => {
            // Each token uses `chosen` experts, and only the weights of used experts are read.
            let top_k = program.edge(*shares).width;
            let one = experts.first().map(|expert| {
                let parts = expert.gate.iter().chain([&expert.up, &expert.down]);
                parts.map(product).fold(Work::default(), |a, b| Work {
                    flops: a.flops + b.flops,
                    weight_bytes: a.weight_bytes + b.weight_bytes,
                })
            });
            let one = one.unwrap_or_default();
            let read = (top_k * tokens).min(experts.len()) as f64;
            Work { flops: one.flops * top_k as f64, weight_bytes: one.weight_bytes * read }
        }
        OpKind::Attention { shape, .. } => {
            let each = 2 * shape.heads * (shape.key_dim + shape.value_dim);
            Work { flops: (each * pairs) as f64, weight_bytes: 0.0 }
        }
        _ => Work::default(),
    }
}
