//! Random plans: a structure-aware generator for property tests and fuzz targets.
//!
//! [`RandomCall::new`] draws rows of tokens and a plan of captures, edits, conditions, values,
//! metrics and gradients for a model, for a run or a generation. Most plans are valid; some have
//! one mistake. `check_plans.rs` runs them in several ways that must agree.

use crate::choices::Choices;
use pellucid_engine::plan::{Across, Combine, Expr, Fold, FromSite, Injection, Map, Phase, Pick, Probe, ValueId, When};
use pellucid_engine::program::{Edge, Layout, Program};
use pellucid_engine::{Action, Array, Operand, Plan, Positions, Reduce, Site, Tap};

/// Rows and a plan, for a run or a generation.
#[derive(Clone, Debug)]
pub struct RandomCall {
    /// Tokens of each row.
    pub rows: Vec<Vec<u32>>,
    /// The plan.
    pub plan: Plan,
    /// New tokens of a generation; `None` for a run.
    pub max_new: Option<usize>,
}

impl RandomCall {
    /// Draws a call for a program.
    pub fn new(program: &Program, choices: &mut Choices) -> RandomCall {
        let max_new = (program.logits_edge().is_some() && choices.chance(64)).then(|| 1 + choices.below(4));
        let vocab = program.architecture().vocab;
        let rows: Vec<Vec<u32>> = (0..1 + choices.below(3))
            .map(|_| (0..1 + choices.below(6)).map(|_| choices.below(vocab) as u32).collect())
            .collect();
        let sites = program.sites().filter(|site| program.edge_of(*site).is_some()).collect();
        let shortest = rows.iter().map(Vec::len).min().unwrap_or(1);
        let draw = Draw { program, choices, sites, rows: rows.len(), shortest, max_new, plan: Plan::default() };
        RandomCall { plan: draw.plan(), rows, max_new }
    }
}

/// A plan being drawn.
struct Draw<'p, 'c, 'b> {
    program: &'p Program,
    choices: &'c mut Choices<'b>,
    sites: Vec<Site>,
    rows: usize,
    /// Tokens of the shortest row.
    shortest: usize,
    max_new: Option<usize>,
    plan: Plan,
}

/// Sites on which edits and reads are most telling.
const COMMON: [&str; 8] = ["resid_post", "resid_pre", "z", "mlp_act", "attn_out", "mlp_out", "logits", "embed"];

impl Draw<'_, '_, '_> {
    fn plan(mut self) -> Plan {
        for _ in 0..self.choices.below(4) {
            let tap = self.tap();
            self.plan.taps.push(tap);
        }
        if self.choices.chance(150) {
            self.values();
        }
        for _ in 0..self.choices.below(3) {
            let tap = self.tap();
            self.plan.taps.push(tap);
        }
        // A result to look at.
        if self.choices.chance(160) {
            let site = self.site();
            let tap = self.selection(Tap::capture(site.to_string()), site);
            self.plan.taps.push(tap);
        }
        self.plan.allow_nan = self.choices.chance(200);
        self.plan
    }

    fn site(&mut self) -> Site {
        let common: Vec<Site> = self.sites.iter().copied().filter(|site| COMMON.contains(&site.point.name())).collect();
        let common = !common.is_empty() && self.choices.chance(160);
        let among: Vec<Site> =
            self.sites.iter().copied().filter(|site| !common || COMMON.contains(&site.point.name())).collect();
        among[self.choices.below(among.len())]
    }

    fn edge(&self, site: Site) -> &Edge {
        self.program.edge(self.program.edge_of(site).expect("a site of the program"))
    }

    /// The address of a site, sometimes a pattern, sometimes wrong.
    fn address(&mut self, site: Site) -> String {
        match site.layer {
            Some(_) if self.choices.chance(30) => {
                let layers = self.choices.pick(&["*", "0-1", "{0,1}", "{1,0}"]);
                site.to_string().replacen(&format!(".{}.", site.layer.unwrap_or_default()), &format!(".{layers}."), 1)
            }
            _ if self.choices.chance(4) => format!("{site}x"),
            _ => site.to_string(),
        }
    }

    fn positions(&mut self) -> Positions {
        let limit = self.shortest + self.max_new.map_or(0, |new| new - 1);
        match self.choices.below(8) {
            0..=2 => Positions::All,
            3 => Positions::Last,
            4 => Positions::Prompt,
            5 => Positions::List(self.choices.some_below(self.shortest).into_iter().map(|at| at as i64).collect()),
            6 if self.choices.chance(16) => Positions::List(vec![limit as i64 + 3, -1]),
            6 => Positions::List(vec![-1 - self.choices.below(self.shortest) as i64]),
            _ => {
                let bound = |draw: &mut Self| draw.choices.chance(128).then(|| draw.choices.below(9) as i64 - 4);
                let (start, end) = (bound(self), bound(self));
                Positions::Slice { start, end, step: 1 + self.choices.below(3) }
            }
        }
    }

    /// Narrows the selection of a tap.
    fn selection(&mut self, mut tap: Tap, site: Site) -> Tap {
        if self.choices.chance(60) {
            tap.rows = Some(self.choices.some_below(self.rows));
        }
        tap.positions = self.positions();
        if self.max_new.is_some() && self.choices.chance(60) {
            tap.phase = *self.choices.pick(&[Phase::Prefill, Phase::Decode]);
        }
        if self.max_new.is_some() && self.choices.chance(20) {
            tap.steps = Some(Positions::List(vec![self.choices.below(2) as i64]));
        }
        let (layout, width) = (self.edge(site).layout, self.edge(site).width);
        match layout {
            Layout::Heads(count) if self.choices.chance(60) => tap.heads = Some(self.choices.some_below(count)),
            Layout::QueryKey => {
                if self.choices.chance(60) {
                    tap.heads = Some(self.choices.some_below(width));
                }
                if self.choices.chance(60) {
                    tap.keys = Some(self.positions());
                }
            }
            _ if self.choices.chance(60) => tap.units = Some(self.choices.some_below(width)),
            _ => {}
        }
        tap
    }

    /// Selected columns of a tap at a site.
    fn columns(&self, tap: &Tap, site: Site) -> usize {
        let edge = self.edge(site);
        match (edge.layout, &tap.heads, &tap.units) {
            (_, _, Some(units)) => units.len(),
            (Layout::Heads(count), Some(heads), _) => heads.len() * edge.width / count,
            _ => edge.width,
        }
    }

    fn vector(&mut self, columns: usize) -> Operand {
        let wrong = usize::from(self.choices.chance(4));
        Operand::Vector(self.choices.floats(columns + wrong))
    }

    fn operand(&mut self, columns: usize) -> Operand {
        let values = self.plan.values.len();
        match self.choices.below(7) {
            0 | 1 => Operand::Number(self.choices.float()),
            2 | 3 => self.vector(columns),
            4 if values > 0 => Operand::Value(ValueId::new(self.choices.below(values))),
            4 | 5 => {
                let site = self.choices.chance(128).then(|| self.site().to_string());
                let rows = self.choices.chance(128).then(|| vec![self.choices.below(self.rows)]);
                let positions = self.choices.chance(128).then(|| self.positions());
                Operand::From(FromSite { site, rows, positions })
            }
            _ => Operand::Rows((0..1 + self.choices.below(3)).map(|_| self.choices.floats(columns)).collect()),
        }
    }

    fn tap(&mut self) -> Tap {
        let site = self.site();
        let address = self.address(site);
        let tap = self.selection(Tap::capture(address), site);
        let columns = self.columns(&tap, site);
        let mut tap = Tap { action: self.action(columns), ..tap };
        if matches!(tap.action, Action::Stop | Action::Mark(_)) || self.choices.chance(24) {
            tap.when = Some(self.when());
        }
        if let (Action::Skip(_), Some(layer)) = (&tap.action, site.layer) {
            tap = Tap { site: format!("layers.{layer}"), units: None, heads: None, keys: None, ..tap };
        }
        tap
    }

    fn when(&mut self) -> When {
        let site = self.site();
        let width = self.edge(site).width;
        let probe = match self.choices.chance(128) {
            true => Probe::Unit(self.choices.below(width)),
            false => Probe::Direction(self.vector(width)),
        };
        When { site: site.to_string(), probe, above: Some(self.choices.float()), below: None }
    }

    fn reduce(&mut self, columns: usize) -> Option<Reduce> {
        Some(match self.choices.below(9) {
            0 => Reduce::Mean,
            1 => Reduce::Norm,
            2 => Reduce::TopK(1 + self.choices.below(columns.min(5))),
            3 => Reduce::Dot(self.vector(columns)),
            4 => Reduce::Project(Operand::Rows(vec![self.choices.floats(columns), self.choices.floats(columns)])),
            5 => Reduce::Sparse,
            _ => return None,
        })
    }

    fn action(&mut self, columns: usize) -> Action {
        let scale = |draw: &mut Self| draw.choices.float();
        match self.choices.below(20) {
            0..=3 => Action::Capture(self.reduce(columns)),
            4 | 5 => Action::Set(self.operand(columns)),
            6 | 7 => Action::Add { operand: self.operand(columns), scale: scale(self) },
            8 => Action::Scale(scale(self)),
            9 => Action::Zero,
            10 => Action::MeanAblate(self.vector(columns)),
            11 => Action::ProjectOut { vector: self.vector(columns), scale: scale(self) },
            12 => {
                let low = self.choices.float();
                let max = self.choices.chance(128).then(|| low + self.choices.float().abs());
                Action::Cap { vector: self.vector(columns), min: Some(low), max }
            }
            13 => Action::AddScaled { vector: self.vector(columns), scale: scale(self) },
            14 => Action::NormMatch { vector: self.vector(columns), scale: scale(self) },
            15 => Action::Orthogonal { vector: self.vector(columns), scale: scale(self) },
            16 => Action::Swap { first: self.vector(columns), second: self.vector(columns) },
            17 => {
                let (add, norm_match) = (self.choices.chance(128), self.choices.chance(128));
                Action::Inject { operand: self.vector(columns), how: Injection { scale: scale(self), add, norm_match } }
            }
            18 if self.max_new.is_some() => Action::Stop,
            18 => Action::Mark("mark".into()),
            _ => Action::Skip(None),
        }
    }

    /// Adds reads, expressions over them, saved values, edits that write them, and gradients.
    fn values(&mut self) {
        for _ in 0..1 + self.choices.below(2) {
            let site = self.site();
            let tap = self.selection(Tap::read(site.to_string()), site);
            self.plan.read(tap);
        }
        for _ in 0..self.choices.below(6) {
            let expr = self.expr();
            self.plan.value(expr);
        }
        for _ in 0..1 + self.choices.below(2) {
            let value = self.value();
            self.plan.save_value(value);
        }
        if self.max_new.is_none() && self.choices.chance(110) {
            self.gradients();
        }
    }

    fn value(&mut self) -> ValueId {
        // Later values more often: they depend on earlier ones.
        let count = self.plan.values.len();
        let back = self.choices.below(count).min(self.choices.below(count));
        ValueId::new(count - 1 - back)
    }

    fn picks(&mut self) -> Vec<Pick> {
        let pick = |draw: &mut Self| match draw.choices.below(7) {
            0 => Pick::At(draw.choices.below(4) as i64 - 2),
            1 => Pick::Slice(None, Some(draw.choices.below(5) as i64 - 1), 1),
            2 => Pick::Slice(None, None, -1 - draw.choices.below(2) as i64),
            3 => Pick::Each(vec![0, draw.choices.below(3) as i64 - 1]),
            4 => Pick::New,
            5 => Pick::Rest,
            _ => Pick::Slice(None, None, 1),
        };
        (0..1 + self.choices.below(3)).map(|_| pick(self)).collect()
    }

    fn expr(&mut self) -> Expr {
        let (a, b) = (self.value(), self.value());
        let maps = [
            Map::Neg,
            Map::Abs,
            Map::Exp,
            Map::Log,
            Map::Sqrt,
            Map::Square,
            Map::Sign,
            Map::Not,
            Map::Sin,
            Map::Detach,
        ];
        let combines = [
            Combine::Add,
            Combine::Sub,
            Combine::Mul,
            Combine::Div,
            Combine::Pow,
            Combine::Max,
            Combine::Min,
            Combine::Less,
            Combine::GreaterEqual,
            Combine::Equal,
        ];
        let folds = [Fold::Sum, Fold::Mean, Fold::Max, Fold::Min, Fold::ArgMax, Fold::Norm, Fold::Var];
        let axis = self.choices.below(4) as i64 - 2;
        match self.choices.below(17) {
            0 | 1 => Expr::Map(*self.choices.pick(&maps), a),
            2..=4 => Expr::Combine(*self.choices.pick(&combines), a, b),
            5 => Expr::Constant(Array::new(vec![], vec![self.choices.float()])),
            6 => Expr::Where(a, b, self.value()),
            7 => Expr::MatMul(a, b),
            8 => {
                let axis = self.choices.chance(180).then_some(axis);
                Expr::Fold { of: a, how: *self.choices.pick(&folds), axis, keep: self.choices.chance(128) }
            }
            9 => Expr::Softmax { of: a, axis, log: self.choices.chance(128) },
            10 => Expr::TopK { of: a, k: 1 + self.choices.below(3), indices: self.choices.chance(100) },
            11 => Expr::Index { of: a, picks: self.picks() },
            12 => Expr::Put { of: a, picks: self.picks(), by: b },
            13 => Expr::Reshape { of: a, shape: self.choices.pick(&[vec![-1], vec![1, -1], vec![2, -1]]).clone() },
            14 => Expr::Concat { parts: vec![a, b], axis },
            15 => Expr::Across {
                of: a,
                how: *self.choices.pick(&[Across::Sum, Across::Mean, Across::Stack, Across::Concat]),
            },
            _ => match self.choices.below(3) {
                0 => Expr::Row { of: a, row: self.choices.below(self.rows) },
                1 => Expr::Unembed(a),
                _ => Expr::Through { of: a, from: self.site().to_string(), to: self.site().to_string() },
            },
        }
    }

    /// A metric over everything that a value holds, and taps on its gradient.
    fn gradients(&mut self) {
        let value = self.value();
        let sum = self.plan.value(Expr::Fold { of: value, how: Fold::Sum, axis: None, keep: false });
        let total = self.plan.value(Expr::Across { of: sum, how: Across::Sum });
        let metric = self.plan.add_metric(total);
        for _ in 0..1 + self.choices.below(2) {
            let site = self.site();
            let tap = self.selection(Tap::capture(site.to_string()), site);
            let columns = self.columns(&tap, site);
            let action = match self.choices.below(6) {
                0 => Action::Scale(self.choices.float()),
                1 => Action::Zero,
                2 => Action::Add { operand: self.vector(columns), scale: 1.0 },
                _ => Action::Capture(None),
            };
            self.plan.taps.push(Tap { action: Action::Grad { metric, action: Box::new(action) }, ..tap });
        }
        if self.choices.chance(60) {
            let weights = self.program.weights();
            let weight = self.choices.pick(weights).name.clone();
            let gradient = self.plan.value(Expr::WeightGrad { metric, weight });
            self.plan.save_value(gradient);
        }
    }
}
