//! Where the time goes: a backend that measures every op of another one.

use crate::backend::{Backend, Frame, Taps};
use crate::error::Result;
use crate::model::Model;
use crate::program::{Domain, Linear, OpKind, Program};
use crate::weights::Weights;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// One execution of one op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpTime {
    /// Which op of the program.
    pub op: usize,
    /// Tokens of its pass.
    pub tokens: usize,
    /// Tokens that it computed: at the end of the model only those that somebody reads.
    pub computed: usize,
    /// Queries times keys that they see, where it is attention.
    pub pairs: usize,
    /// When it began, in seconds since the profile did.
    pub at_s: f64,
    /// Seconds that it took.
    pub seconds: f64,
}

/// What an op has to do for some tokens, counted from its shapes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Multiplications and additions.
    pub flops: f64,
    /// Bytes of weights that are read.
    pub weight_bytes: f64,
}

/// A profile that grows while its model runs.
#[derive(Clone)]
pub struct Profile {
    began: Instant,
    times: Arc<Mutex<Vec<OpTime>>>,
}

impl Profile {
    /// Everything measured so far, in order.
    pub fn times(&self) -> Vec<OpTime> {
        self.locked().clone()
    }

    /// Forgets what was measured so far.
    pub fn clear(&self) {
        self.locked().clear();
    }

    fn locked(&self) -> MutexGuard<'_, Vec<OpTime>> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A backend that notes how long another one takes.
struct Profiled {
    inner: Arc<dyn Backend>,
    /// Which tokens each op computes.
    domains: Vec<Domain>,
    profile: Profile,
}

impl Backend for Profiled {
    fn execute(&self, index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
        let (tokens, computed) = (frame.pass.tokens.len(), frame.pass.len(self.domains[index]));
        let pairs = pairs(frame.program, index, frame.pass.positions.iter().copied());
        let started = Instant::now();
        let outcome = self.inner.execute(index, frame, taps);
        let seconds = started.elapsed().as_secs_f64();
        let at_s = started.duration_since(self.profile.began).as_secs_f64();
        self.profile.locked().push(OpTime { op: index, tokens, computed, pairs, at_s, seconds });
        outcome
    }
}

impl Model {
    /// The same model with a profile of everything that it runs from now on. Numbers do not change.
    pub fn profiled(&self) -> (Model, Profile) {
        let profile = Profile { began: Instant::now(), times: Arc::default() };
        let inner = self.backend().clone();
        let mut domains = vec![Domain::All; self.program().ops().len()];
        for edge in self.program().edges() {
            domains[edge.made_by] = edge.domain;
        }
        (self.with_backend(Arc::new(Profiled { inner, domains, profile: profile.clone() })), profile)
    }
}

/// How many keys queries at these positions see together, where an op is attention.
pub fn pairs(program: &Program, op: usize, positions: impl Iterator<Item = usize>) -> usize {
    match &program.ops()[op].kind {
        OpKind::Attention { shape, .. } => positions.map(|position| shape.visible(position).len()).sum(),
        _ => 0,
    }
}

/// What an op has to do for `tokens` tokens, and attention for `pairs` of queries and keys. Only products are counted: everything else reads
/// what it computes with from caches, as attention does its keys and values.
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
            // Each token uses a few of them; for one token only those are read.
            let chosen = program.edge(*shares).width;
            let one = experts.first().map(|expert| {
                let parts = expert.gate.iter().chain([&expert.up, &expert.down]);
                parts.map(product).fold(Work::default(), |a, b| Work {
                    flops: a.flops + b.flops,
                    weight_bytes: a.weight_bytes + b.weight_bytes,
                })
            });
            let one = one.unwrap_or_default();
            let read = (chosen * tokens).min(experts.len()) as f64;
            Work { flops: one.flops * chosen as f64, weight_bytes: one.weight_bytes * read }
        }
        OpKind::Attention { shape, .. } => {
            let each = 2 * shape.heads * (shape.key_dim + shape.value_dim);
            Work { flops: (each * pairs) as f64, weight_bytes: 0.0 }
        }
        _ => Work::default(),
    }
}
