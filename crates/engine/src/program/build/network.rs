//! Programs built by hand: small networks whose named edges are sites, as in any model.

use super::{Builder, finish};
use crate::architecture::{Activation, Architecture, Embedding, Gain, Head, Modules, Norm, NormKind};
use crate::error::{Error, Result};
use crate::point::Site;
use crate::point::{Point, Scope};
use crate::program::{EdgeId, Layout, Linear, OpKind, Program, TableRow};
use crate::program::{WeightId, WeightKind};
use pellucid_kernels::attention::{AttentionShape, CausalMask};
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, OnceLock};

/// A network under construction. Each method adds an op, names its output edge and returns it as a
/// node.
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
    /// Projections by weight name, so that a weight can be reused.
    linears: HashMap<String, Linear>,
    vocab: usize,
    context: Option<usize>,
    width: usize,
}

/// An output of a network under construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node(EdgeId);

impl Network {
    /// Returns an empty network.
    pub fn new() -> Network {
        Network { vocab: 1, ..Network::default() }
    }

    /// Adds an input: vectors supplied by the caller, one per token of a row.
    pub fn input(&mut self, name: &str, width: usize) -> Result<Node> {
        let out = self.edge(name, width, Layout::Flat)?;
        self.builder.op(OpKind::Input { out });
        self.width = self.width.max(width);
        Ok(Node(out))
    }

    /// Adds a token embedding, `[vocab, width]`.
    pub fn embedding(&mut self, name: &str, vocab: usize, width: usize) -> Result<Node> {
        if vocab == 0 || vocab > u32::MAX as usize || (self.vocab > 1 && self.vocab != vocab) {
            return Err(network_error(
                name,
                format!("an embedding table of {vocab} rows"),
                "use at least one row, and the same number in all token embeddings",
            ));
        }
        self.vocab = vocab;
        self.embed(name, vocab, width, TableRow::Token)
    }

    /// Adds a position embedding, `[rows, width]`.
    pub fn positions(&mut self, name: &str, rows: usize, width: usize) -> Result<Node> {
        self.context = Some(self.context.map_or(rows, |context| context.min(rows)));
        self.embed(name, rows, width, TableRow::Position(0))
    }

    fn embed(&mut self, name: &str, rows: usize, width: usize, row: TableRow) -> Result<Node> {
        let out = self.edge(name, width, Layout::Flat)?;
        let table = self.builder.weight(name, vec![rows, width], WeightKind::Table);
        self.builder.op(OpKind::Embed { table, row, out });
        self.width = self.width.max(width);
        Ok(Node(out))
    }

    /// Adds a projection with its own weight (`name`, `[outputs, inputs]`) and an optional bias
    /// (`name.bias`).
    pub fn linear(&mut self, name: &str, x: Node, outputs: usize, bias: bool) -> Result<Node> {
        self.linear_again(name, name, x, outputs, bias)
    }

    /// Adds a projection that can reuse an earlier weight: a module that is called several times
    /// has an edge per call.
    pub fn linear_again(&mut self, name: &str, weight: &str, x: Node, outputs: usize, bias: bool) -> Result<Node> {
        let inputs = self.width_of(x);
        let known = self.linears.get(weight).copied();
        let linear = match known {
            Some(linear) => {
                let shape = &self.builder.weights[linear.weight].shape;
                if *shape != [outputs, inputs] || linear.bias.is_some() != bias {
                    let problem = format!("the weight {weight:?} is {shape:?}, not [{outputs}, {inputs}]");
                    return Err(network_error(
                        name,
                        problem,
                        "reuse a weight only with the same input and output widths and the same bias setting",
                    ));
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

    /// Adds an activation function.
    pub fn activation(&mut self, name: &str, x: Node, activation: Activation) -> Result<Node> {
        let out = self.edge_like(name, x)?;
        self.builder.op(OpKind::Activate { x: x.0, activation, out });
        Ok(Node(out))
    }

    /// Adds a norm with a gain (`name.gain`) and an optional bias (`name.bias`).
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

    /// Adds the sum of two nodes.
    pub fn add(&mut self, name: &str, a: Node, b: Node) -> Result<Node> {
        self.check_same_width(name, a, b)?;
        let out = self.edge_like(name, a)?;
        self.builder.op(OpKind::Add { a: a.0, b: b.0, out });
        Ok(Node(out))
    }

    /// Adds the elementwise product of two nodes.
    pub fn multiply(&mut self, name: &str, a: Node, b: Node) -> Result<Node> {
        self.check_same_width(name, a, b)?;
        let out = self.edge_like(name, a)?;
        self.builder.op(OpKind::Gate { gate: a.0, linear: b.0, activation: Activation::Identity, out });
        Ok(Node(out))
    }

    /// Adds a node times a constant.
    pub fn scale(&mut self, name: &str, x: Node, by: f32) -> Result<Node> {
        let out = self.edge_like(name, x)?;
        self.builder.op(OpKind::Scale { x: x.0, by, out });
        Ok(Node(out))
    }

    /// Concatenates nodes along the last axis.
    pub fn concat(&mut self, name: &str, parts: &[Node]) -> Result<Node> {
        let width = parts.iter().map(|&part| self.width_of(part)).sum();
        let out = self.edge(name, width, Layout::Flat)?;
        self.builder.op(OpKind::Concat { parts: parts.iter().map(|part| part.0).collect(), out });
        Ok(Node(out))
    }

    /// Adds causal attention: q `[tokens, heads * d]`, k and v `[tokens, kv_heads * d]`. Its scores
    /// and weights are the sites `name.scores` and `name.probs`. A network can have one attention
    /// op.
    pub fn attention(&mut self, name: &str, q: Node, k: Node, v: Node, heads: usize, kv_heads: usize) -> Result<Node> {
        let widths = [q, k, v].map(|node| self.width_of(node));
        let divisible = heads > 0 && kv_heads > 0 && heads.is_multiple_of(kv_heads);
        if !divisible
            || widths[0] % heads != 0
            || widths[1] % kv_heads != 0
            || widths[2] % kv_heads != 0
            || widths[0] / heads != widths[1] / kv_heads
        {
            let problem = format!(
                "q, k and v have widths {widths:?}, which do not split into {heads} query heads and {kv_heads} key heads"
            );
            return Err(network_error(
                name,
                problem,
                "use the same head width for q and k, and a multiple of the key heads as query heads",
            ));
        }
        if self.builder.ops.iter().any(|op| matches!(op.kind, OpKind::Attention { .. })) {
            return Err(network_error(
                name,
                "the network already has attention".into(),
                "use one attention op per network",
            ));
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
        self.builder.op(OpKind::Attention {
            q,
            k,
            v,
            shape,
            alibi: None,
            sinks: None,
            max_keys: None,
            scores,
            probs,
            out,
        });
        Ok(Node(out))
    }

    /// Builds the program; fails if the network is empty.
    pub fn build(self) -> Result<Program> {
        if self.builder.ops.is_empty() {
            return Err(Error::Architecture { problem: "the network has no ops".into() });
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

    fn edge_like(&mut self, name: &str, x: Node) -> Result<EdgeId> {
        let (width, layout) = (self.width_of(x), self.builder.edges[x.0].layout);
        self.edge(name, width, layout)
    }

    fn check_same_width(&self, name: &str, a: Node, b: Node) -> Result<()> {
        let (a, b) = (self.width_of(a), self.width_of(b));
        let problem = || format!("the inputs have widths {a} and {b}");
        if a == b { Ok(()) } else { Err(network_error(name, problem(), "use inputs of the same width")) }
    }

    fn edge(&mut self, name: &str, width: usize, layout: Layout) -> Result<EdgeId> {
        if width == 0 {
            return Err(network_error(name, "its width is 0".into(), "use a width of at least 1"));
        }
        let taken = Point::named(name).is_some_and(|point| point.info().scope == Scope::Model);
        if name.is_empty() || name.contains(['*', '{', '}']) || taken || name.starts_with("layers.") {
            return Err(network_error(
                name,
                "the name is reserved".into(),
                "use another name: not empty, no `*`, `{` or `}`, not a model point such as `logits`",
            ));
        }
        if !self.names.insert(name.into()) {
            return Err(network_error(name, "the name is already used".into(), "use a unique name"));
        }
        let edge = self.builder.edge(None, width, layout);
        self.builder.sites.insert(Site::model(Point::Named(intern(name))), edge);
        Ok(edge)
    }
}

fn network_error(name: &str, problem: String, remedy: &str) -> Error {
    Error::input(format!("network node `{name}`: {problem}"), remedy)
}

/// Returns a leaked copy of `name`, one per distinct name: [`Site`] is `Copy` and holds `&'static
/// str`.
fn intern(name: &str) -> &'static str {
    static NAMES: OnceLock<Mutex<HashSet<&'static str>>> = OnceLock::new();
    let mut names = NAMES.get_or_init(Mutex::default).lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = names.get(name) {
        return known;
    }
    let leaked: &'static str = Box::leak(name.to_string().into_boxed_str());
    names.insert(leaked);
    leaked
}
