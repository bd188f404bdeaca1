//! Programs built by hand: small networks whose named edges are sites like any model's.

use super::{Builder, finish};
use crate::architecture::{Activation, Architecture, Embedding, Gain, Head, Modules, Norm, NormKind};
use crate::error::{Error, Result};
use crate::point::Site;
use crate::point::{Point, Scope};
use crate::program::{EdgeId, Layout, Linear, OpKind, Program, RowOf};
use crate::program::{WeightId, WeightKind};
use pellucid_kernels::attention::{AttentionShape, CausalMask};
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, OnceLock};

/// A network under construction: each part takes nodes, makes one, and names its edge.
///
/// ```
/// use pellucid_engine::program::Network;
/// use pellucid_engine::architecture::Activation;
/// use pellucid_engine::{Action, Model, Operand, Plan, RunOptions, Tap, Weight, Weights};
///
/// let mut net = Network::new();
/// let x = net.input("x", 2)?;
/// let hidden = net.linear("hidden", x, 3, true)?;
/// let active = net.activation("active", hidden, Activation::Relu)?;
/// net.linear("y", active, 1, false)?;
/// let program = net.build()?;
/// let names: Vec<_> = program.weights().iter().map(|weight| weight.name.as_str()).collect();
/// assert_eq!(names, ["hidden", "hidden.bias", "y"]);
/// # Ok::<(), pellucid_engine::Error>(())
/// ```
#[derive(Default)]
pub struct Network {
    builder: Builder,
    names: HashSet<String>,
    /// Matrices and biases by name, so that a part may be used again.
    linears: HashMap<String, Linear>,
    vocab: usize,
    context: Option<usize>,
    width: usize,
}

/// A value of a network under construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node(EdgeId);

impl Network {
    /// An empty network.
    pub fn new() -> Network {
        Network { vocab: 1, ..Network::default() }
    }

    /// Vectors that the caller gives: one for each token of a row.
    pub fn input(&mut self, name: &str, width: usize) -> Result<Node> {
        let out = self.edge(name, width, Layout::Flat)?;
        self.builder.op(OpKind::Input { out });
        self.width = self.width.max(width);
        Ok(Node(out))
    }

    /// Rows of a table, by the tokens of the call.
    pub fn embedding(&mut self, name: &str, vocab: usize, width: usize) -> Result<Node> {
        if vocab == 0 || vocab > u32::MAX as usize || (self.vocab > 1 && self.vocab != vocab) {
            return Err(bad(
                name,
                format!("a table of {vocab} rows"),
                "all tables of tokens have as many rows, at least one",
            ));
        }
        self.vocab = vocab;
        self.lookup(name, vocab, width, RowOf::Token)
    }

    /// Rows of a table, by the positions of the tokens.
    pub fn positions(&mut self, name: &str, rows: usize, width: usize) -> Result<Node> {
        self.context = Some(self.context.map_or(rows, |context| context.min(rows)));
        self.lookup(name, rows, width, RowOf::Position(0))
    }

    fn lookup(&mut self, name: &str, rows: usize, width: usize, row: RowOf) -> Result<Node> {
        let out = self.edge(name, width, Layout::Flat)?;
        let table = self.builder.weight(name, vec![rows, width], WeightKind::Table);
        self.builder.op(OpKind::Lookup { table, row, out });
        self.width = self.width.max(width);
        Ok(Node(out))
    }

    /// A projection with its own weight (`name`, outputs by inputs) and perhaps a bias (`name.bias`).
    pub fn linear(&mut self, name: &str, x: Node, outputs: usize, bias: bool) -> Result<Node> {
        self.linear_again(name, name, x, outputs, bias)
    }

    /// A projection whose weight may be another one's: parts that are called several times have an edge for each call.
    pub fn linear_again(&mut self, name: &str, weight: &str, x: Node, outputs: usize, bias: bool) -> Result<Node> {
        let inputs = self.width_of(x);
        let known = self.linears.get(weight).copied();
        let linear = match known {
            Some(linear) => {
                let shape = &self.builder.weights[linear.weight].shape;
                if *shape != [outputs, inputs] || linear.bias.is_some() != bias {
                    let problem = format!("the weight {weight:?} is {shape:?}, not [{outputs}, {inputs}]");
                    return Err(bad(name, problem, "use it again for the same widths, bias included"));
                }
                linear
            }
            None => {
                let linear = self.builder.linear(weight, outputs, inputs, bias);
                self.linears.insert(weight.into(), linear);
                linear
            }
        };
        let out = self.edge(name, outputs, Layout::Flat)?;
        self.builder.op(OpKind::MatMul { x: x.0, linear, out });
        Ok(Node(out))
    }

    /// A function of each number.
    pub fn activation(&mut self, name: &str, x: Node, activation: Activation) -> Result<Node> {
        let out = self.like(name, x)?;
        self.builder.op(OpKind::Activate { x: x.0, activation, out });
        Ok(Node(out))
    }

    /// A normalisation with a gain (`name.gain`) and, where asked for, a bias (`name.bias`).
    pub fn norm(&mut self, name: &str, x: Node, kind: NormKind, eps: f32, bias: bool) -> Result<Node> {
        let width = self.width_of(x);
        let gain: WeightId = self.builder.weight(&format!("{name}.gain"), vec![width], WeightKind::Vector);
        let bias_id = bias.then(|| self.builder.weight(&format!("{name}.bias"), vec![width], WeightKind::Vector));
        let scale = self.edge(&format!("{name}.scale"), 1, Layout::Flat)?;
        let normed = self.edge(&format!("{name}.normed"), width, Layout::Flat)?;
        let out = self.edge(name, width, Layout::Flat)?;
        let norm = Norm { kind, eps, gain: Gain::Weight, bias };
        self.builder.op(OpKind::Norm {
            x: x.0,
            norm,
            gain: Some(gain),
            bias: bias_id,
            group: width,
            scale,
            normed,
            out,
        });
        Ok(Node(out))
    }

    /// The sum of two nodes.
    pub fn add(&mut self, name: &str, a: Node, b: Node) -> Result<Node> {
        self.alike(name, a, b)?;
        let out = self.like(name, a)?;
        self.builder.op(OpKind::Add { a: a.0, b: b.0, out });
        Ok(Node(out))
    }

    /// The product of two nodes, number by number.
    pub fn multiply(&mut self, name: &str, a: Node, b: Node) -> Result<Node> {
        self.alike(name, a, b)?;
        let out = self.like(name, a)?;
        self.builder.op(OpKind::Gate { gate: a.0, linear: b.0, activation: Activation::Identity, out });
        Ok(Node(out))
    }

    /// A node times a number.
    pub fn scale(&mut self, name: &str, x: Node, by: f32) -> Result<Node> {
        let out = self.like(name, x)?;
        self.builder.op(OpKind::Scale { x: x.0, by, out });
        Ok(Node(out))
    }

    /// Nodes one behind the other.
    pub fn concat(&mut self, name: &str, parts: &[Node]) -> Result<Node> {
        let width = parts.iter().map(|&part| self.width_of(part)).sum();
        let out = self.edge(name, width, Layout::Flat)?;
        self.builder.op(OpKind::Concat { parts: parts.iter().map(|part| part.0).collect(), out });
        Ok(Node(out))
    }

    /// Causal attention of queries to keys and values, each `heads` (or `kv_heads`) vectors side by side. Its scores and weights are
    /// the sites `name.scores` and `name.probs`. A network may attend once; models with layers have families.
    pub fn attention(&mut self, name: &str, q: Node, k: Node, v: Node, heads: usize, kv_heads: usize) -> Result<Node> {
        let widths = [q, k, v].map(|node| self.width_of(node));
        let whole = heads > 0 && kv_heads > 0 && heads.is_multiple_of(kv_heads);
        if !whole
            || widths[0] % heads != 0
            || widths[1] % kv_heads != 0
            || widths[2] % kv_heads != 0
            || widths[0] / heads != widths[1] / kv_heads
        {
            let problem = format!("widths {widths:?} do not make {heads} heads of queries and {kv_heads} of keys");
            return Err(bad(
                name,
                problem,
                "queries and keys have heads of the same width; key heads divide query heads",
            ));
        }
        if self.builder.ops.iter().any(|op| matches!(op.kind, OpKind::Attention { .. })) {
            return Err(bad(name, "there is attention already".into(), "a network attends once"));
        }
        let (key_dim, value_dim) = (widths[0] / heads, widths[2] / kv_heads);
        let shape = AttentionShape {
            heads,
            kv_heads,
            key_dim,
            value_dim,
            scale: (key_dim as f32).sqrt().recip(),
            soft_cap: None,
            mask: CausalMask::default(),
        };
        let scores = self.edge(&format!("{name}.scores"), heads, Layout::QueryKey)?;
        let probs = self.edge(&format!("{name}.probs"), heads, Layout::QueryKey)?;
        let out = self.edge(name, heads * value_dim, Layout::Heads(heads))?;
        let (q, k, v) = (q.0, k.0, v.0);
        self.builder.op(OpKind::Attention { q, k, v, shape, alibi: None, sinks: None, kept: None, scores, probs, out });
        Ok(Node(out))
    }

    /// The program.
    pub fn build(self) -> Result<Program> {
        if self.builder.ops.is_empty() {
            return Err(Error::Architecture { problem: "a network of nothing".into() });
        }
        let architecture = Architecture {
            family: "network".into(),
            vocab: self.vocab,
            width: self.width,
            context: self.context,
            embedding: Embedding::default(),
            layers: Vec::new(),
            final_norm: None,
            head: Head::default(),
            ropes: Vec::new(),
            modules: Modules::default(),
        };
        Ok(finish(self.builder, architecture, Vec::new()))
    }

    fn width_of(&self, node: Node) -> usize {
        self.builder.edges[node.0].width
    }

    fn like(&mut self, name: &str, x: Node) -> Result<EdgeId> {
        let (width, layout) = (self.width_of(x), self.builder.edges[x.0].layout);
        self.edge(name, width, layout)
    }

    fn alike(&self, name: &str, a: Node, b: Node) -> Result<()> {
        let (a, b) = (self.width_of(a), self.width_of(b));
        let problem = || format!("one part has {a} numbers a token, the other {b}");
        if a == b { Ok(()) } else { Err(bad(name, problem(), "give both the same width")) }
    }

    fn edge(&mut self, name: &str, width: usize, layout: Layout) -> Result<EdgeId> {
        if width == 0 {
            return Err(bad(name, "it would be 0 wide".into(), "give at least one number a token"));
        }
        let taken = Point::named(name).is_some_and(|point| point.info().scope == Scope::Model);
        if name.is_empty() || name.contains(['*', '{', '}']) || taken || name.starts_with("layers.") {
            return Err(bad(
                name,
                "the name means something else".into(),
                "call it otherwise: not empty, no pattern, no point of models",
            ));
        }
        if !self.names.insert(name.into()) {
            return Err(bad(name, "there is such a part already".into(), "give each part a name of its own"));
        }
        let edge = self.builder.edge(None, width, layout);
        self.builder.sites.insert(Site::model(Point::Named(interned(name))), edge);
        Ok(edge)
    }
}

fn bad(name: &str, problem: String, remedy: &str) -> Error {
    Error::input(format!("`{name}` of the network: {problem}"), remedy)
}

/// One lasting copy of each name: sites are small values that carry their names with them.
fn interned(name: &str) -> &'static str {
    static NAMES: OnceLock<Mutex<HashSet<&'static str>>> = OnceLock::new();
    let mut names = NAMES.get_or_init(Mutex::default).lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = names.get(name) {
        return known;
    }
    let lasting: &'static str = Box::leak(name.to_string().into_boxed_str());
    names.insert(lasting);
    lasting
}
