//! The values of a plan, checked: what each depends on, which rows it has, what shape it takes.

use super::compiled::{Entry, Lengths};
use super::value_shape::shape;
use super::{Expr, Map, Plan, Value, ValueId};
use crate::error::{Error, Result};
use crate::ids::IdVec;
use crate::point::Point;
use crate::program::{EdgeId, Layout, Op, OpKind, Program};
use crate::site::{self, Site};
use crate::weights::{WeightId, WeightSpec};

/// The rows that a value has an array for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rows {
    /// One array, the same for every row.
    Any,
    /// One for each of these.
    These(Vec<usize>),
}

impl Rows {
    /// The row whose array a reader uses; `None` where there is one for all.
    pub fn for_reader(&self, reader: Option<usize>) -> Option<usize> {
        match self {
            Rows::Any => None,
            Rows::These(rows) => match rows[..] {
                [one] => Some(one),
                _ => reader,
            },
        }
    }

    /// Each row that has an array, or none for the one of all.
    pub fn each(&self) -> Vec<Option<usize>> {
        match self {
            Rows::Any => vec![None],
            Rows::These(rows) => rows.iter().copied().map(Some).collect(),
        }
    }

    /// The rows of what is computed from both.
    fn with(self, other: &Rows) -> std::result::Result<Rows, String> {
        match (self, other) {
            (Rows::Any, other) => Ok(other.clone()),
            (mine, Rows::Any) => Ok(mine),
            (Rows::These(a), Rows::These(b)) if a == *b => Ok(Rows::These(a)),
            // One row's value serves every row; values of two single rows make one for all.
            (Rows::These(a), Rows::These(b)) if a.len() == 1 && b.len() == 1 => Ok(Rows::Any),
            (Rows::These(a), Rows::These(b)) if a.len() == 1 => Ok(Rows::These(b.clone())),
            (Rows::These(a), Rows::These(b)) if b.len() == 1 => Ok(Rows::These(a)),
            (Rows::These(a), Rows::These(b)) => Err(format!("rows {a:?} and rows {b:?} do not go together")),
        }
    }
}

/// A stretch of the model's own ops.
#[derive(Clone, Debug)]
pub(crate) struct Stretch {
    pub from: EdgeId,
    pub to: EdgeId,
    pub ops: Vec<usize>,
}

/// A value that is a metric's gradient with respect to a weight.
pub(crate) struct SoughtWeight {
    pub value: ValueId,
    pub metric: usize,
    pub weight: WeightId,
}

/// The checked values of a plan.
#[derive(Default)]
pub(crate) struct Values {
    pub list: IdVec<ValueId, Value>,
    pub rows: IdVec<ValueId, Rows>,
    /// For each value the reads that it depends on, itself included.
    pub reads: IdVec<ValueId, Vec<ValueId>>,
    /// For each read the entry that binds it.
    pub bound_by: IdVec<ValueId, Option<usize>>,
    /// For each value the metric whose gradient it depends on.
    pub gradient_of: IdVec<ValueId, Option<usize>>,
    /// For each value whether it passes through a function of arrays on its way from what was read.
    pub opaque: IdVec<ValueId, bool>,
    pub stretches: IdVec<ValueId, Option<Stretch>>,
    /// The gradients of weights among the values.
    pub weights: Vec<SoughtWeight>,
    /// For each value and each of its rows the shape in the first pass, where it is known.
    pub shapes: IdVec<ValueId, Vec<Option<Vec<usize>>>>,
    pub save: Vec<ValueId>,
    pub metrics: Vec<ValueId>,
    pub allow_nan: bool,
}

impl Values {
    /// The reads that a value takes for a reader, each with its row.
    pub fn leaves(&self, value: ValueId, reader: Option<usize>) -> Vec<(ValueId, usize)> {
        let (mut leaves, mut todo) = (Vec::new(), vec![(value, self.rows[value].for_reader(reader))]);
        let mut seen = std::collections::HashSet::new();
        while let Some((value, reader)) = todo.pop() {
            if !seen.insert((value, reader)) {
                continue;
            }
            match (&self.list[value].expr, reader) {
                (Expr::Read(_), Some(row)) => leaves.push((value, row)),
                _ => todo.extend(self.inputs(value, reader)),
            }
        }
        leaves
    }

    /// What a value is computed from for a reader: each input with the row that it is taken of.
    pub fn inputs(&self, value: ValueId, reader: Option<usize>) -> Vec<(ValueId, Option<usize>)> {
        match &self.list[value].expr {
            Expr::Across { of, .. } => self.rows[*of].each().into_iter().map(|row| (*of, row)).collect(),
            Expr::Row { of, row } => vec![(*of, self.rows[*of].for_reader(Some(*row)))],
            expr => expr.inputs().into_iter().map(|of| (of, self.rows[of].for_reader(reader))).collect(),
        }
    }

    /// The shape of a value for a reader in the first pass, where it is known.
    pub fn shape(&self, value: ValueId, reader: Option<usize>) -> Option<&[usize]> {
        let row = self.rows[value].for_reader(reader);
        let place = self.rows[value].each().iter().position(|&each| each == row)?;
        self.shapes[value][place].as_deref()
    }

    /// Stands for a value that cannot be, so that those after it can still be looked at.
    fn unknown(&mut self, id: ValueId) {
        let len = id.index() + 1;
        self.rows.resize(len, Rows::Any);
        self.reads.resize(len, Vec::new());
        self.bound_by.resize(len, None);
        self.gradient_of.resize(len, None);
        self.opaque.resize(len, false);
        self.stretches.resize(len, None);
        self.shapes.resize(len, vec![None]);
    }

    /// What a value is called in messages.
    pub fn name(&self, value: ValueId) -> String {
        match &self.list[value].name {
            Some(name) => format!("value `{name}`"),
            None => format!("value {value}"),
        }
    }
}

/// Checks the values of a plan whose taps have become entries.
pub(super) fn values(program: &Program, plan: &Plan, entries: &[Entry], lengths: Lengths) -> Result<Values> {
    let mut values = Values {
        list: plan.values.clone(),
        save: plan.save.clone(),
        metrics: plan.metrics.clone(),
        allow_nan: plan.allow_nan,
        ..Values::default()
    };
    let mut problems = Vec::new();
    for (id, value) in plan.values.iter_with_ids() {
        let fail = |values: &Values, problem: String| Error::Value {
            value: values.name(id),
            problem,
            remedy: "docs/plans.md says what each operation takes".into(),
        };
        let later = value.expr.inputs().into_iter().find(|&input| input >= id);
        let added = match later {
            Some(later) => Err(format!("it is computed from value {later}, which does not come before it")),
            None => add(&mut values, program, plan, entries, lengths, id),
        };
        if let Err(problem) = added {
            problems.push(fail(&values, problem));
            values.unknown(id);
        }
    }
    if problems.is_empty() {
        check_uses(&values, plan)?;
        return Ok(values);
    }
    Err(Error::all(problems))
}

fn add(
    values: &mut Values,
    program: &Program,
    plan: &Plan,
    entries: &[Entry],
    lengths: Lengths,
    id: ValueId,
) -> std::result::Result<(), String> {
    let expr = plan.values[id].expr.clone();
    let inputs = expr.inputs();
    let mut reads: Vec<ValueId> = inputs.iter().flat_map(|&of| values.reads[of].clone()).collect();
    let (mut rows, mut bound_by, mut stretch) = (Rows::Any, None, None);
    let mut metrics: Vec<usize> = inputs.iter().filter_map(|&of| values.gradient_of[of]).collect();
    match &expr {
        Expr::Read(tap) => {
            let (entry, metric) = read_entry(plan, entries, *tap)?;
            let read = (0..lengths.prompts.len()).filter(|&row| entries[entry].rows[row].is_some());
            rows = Rows::These(read.collect());
            if rows == Rows::These(Vec::new()) {
                return Err(format!("tap {tap} on `{}` selects nothing", plan.taps[*tap].site));
            }
            reads.push(id);
            bound_by = Some(entry);
            metrics.extend(metric);
        }
        Expr::Across { .. } => {}
        Expr::WeightGrad { metric, weight } => {
            if *metric >= plan.metrics.len() {
                return Err(format!("there is no metric {metric}: the plan has {}", plan.metrics.len()));
            }
            metrics.push(*metric);
            values.weights.push(SoughtWeight { value: id, metric: *metric, weight: sought(program, weight)? });
        }
        Expr::Row { of, row } => {
            let there = values.rows[*of].each().iter().any(|each| each.is_none_or(|each| each == *row));
            if !there {
                return Err(format!("there is no row {row} in it"));
            }
        }
        Expr::Through { from, to, .. } => {
            stretch = Some(between(program, from, to)?);
            rows = values.rows[inputs[0]].clone();
        }
        Expr::Unembed(_) => {
            stretch = Some(to_logits(program)?);
            rows = values.rows[inputs[0]].clone();
        }
        Expr::File(file) => {
            return Err(format!("the file {file:?} was not read; files are resolved before a plan is compiled"));
        }
        _ => {
            for &of in &inputs {
                rows = rows.with(&values.rows[of])?;
            }
        }
    }
    reads.sort_unstable();
    reads.dedup();
    metrics.dedup();
    if metrics.len() > 1 {
        return Err("it mixes gradients of several metrics".into());
    }
    let opaque = match &expr {
        Expr::Map(Map::Detach, _) => false,
        Expr::Call { .. } => !reads.is_empty(),
        _ => inputs.iter().any(|&of| values.opaque[of]),
    };
    values.opaque.push(opaque);
    values.rows.push(rows);
    values.reads.push(reads);
    values.bound_by.push(bound_by);
    values.gradient_of.push(metrics.first().copied());
    values.stretches.push(stretch);
    let shapes = values.rows[id].each().into_iter().map(|row| shape_of(values, program, entries, lengths, id, row));
    let shapes = shapes.collect::<std::result::Result<_, _>>()?;
    values.shapes.push(shapes);
    Ok(())
}

/// A weight by its name, if it has a gradient.
fn sought(program: &Program, name: &str) -> std::result::Result<WeightId, String> {
    let id = program.weight_named(name).ok_or_else(|| {
        let nearest = program.weights().iter().max_by(|a, b| {
            let likeness = |spec: &WeightSpec| strsim::jaro_winkler(name, &spec.name);
            likeness(a).total_cmp(&likeness(b))
        });
        format!("no weight is called `{name}`; did you mean `{}`?", nearest.map_or("", |spec| &spec.name))
    })?;
    let decides = |op: &Op| matches!(op.kind, OpKind::Route { correction: Some(weight), .. } if weight == id);
    match program.ops().iter().any(decides) {
        true => Err(format!(
            "`{name}` has no gradient: op `route` uses it only to choose experts, and a choice is a constant"
        )),
        false => Ok(id),
    }
}

/// The one entry of a tap that reads, and the metric whose gradient it reads.
fn read_entry(plan: &Plan, entries: &[Entry], tap: usize) -> std::result::Result<(usize, Option<usize>), String> {
    use super::Action;
    let metric = match plan.taps.get(tap).map(|tap| &tap.action) {
        Some(Action::Read) => None,
        Some(Action::Grad { metric, action }) if **action == Action::Read => Some(*metric),
        Some(_) => return Err(format!("tap {tap} does not read")),
        None => return Err(format!("there is no tap {tap}")),
    };
    let mut found = entries.iter().enumerate().filter(|(_, entry)| entry.tap == tap).map(|(index, _)| index);
    match (found.next(), found.next()) {
        (Some(entry), None) => Ok((entry, metric)),
        _ => Err(format!("tap {tap} on `{}` names several sites; a value is read at one", plan.taps[tap].site)),
    }
}

fn shape_of(
    values: &Values,
    program: &Program,
    entries: &[Entry],
    lengths: Lengths,
    id: ValueId,
    row: Option<usize>,
) -> std::result::Result<Option<Vec<usize>>, String> {
    let expr = &values.list[id].expr;
    match (expr, row) {
        (Expr::Constant(array), _) => return Ok(Some(array.shape().to_vec())),
        (Expr::Read(_), Some(row)) => {
            let entry = values.bound_by[id].map(|entry| &entries[entry]);
            return Ok(entry.and_then(|entry| selection_shape(program, entry, lengths, row)));
        }
        (Expr::Call { .. }, _) => return Ok(None),
        (Expr::WeightGrad { .. }, _) => {
            let sought = values.weights.iter().find(|sought| sought.value == id);
            return Ok(sought.map(|sought| program.weight(sought.weight).shape.clone()));
        }
        _ => {}
    }
    let inputs: Option<Vec<&[usize]>> =
        values.inputs(id, row).into_iter().map(|(of, row)| values.shape(of, row)).collect();
    let Some(inputs) = inputs else { return Ok(None) };
    match &values.stretches[id] {
        Some(stretch) => stretched(program, stretch, inputs[0]).map(Some),
        None => shape(expr, &inputs).map(Some),
    }
}

/// The shape of what an entry selects of a row in the first pass, if it selects anything there.
pub(super) fn selection_shape(program: &Program, entry: &Entry, lengths: Lengths, row: usize) -> Option<Vec<usize>> {
    let prompt = lengths.prompts[row];
    let count = entry.rows[row].as_ref()?.positions().iter().filter(|&&position| position < prompt).count();
    if count == 0 {
        return None;
    }
    let edge = program.edge(entry.edge);
    if edge.layout == Layout::QueryKey {
        let keys = entry.keys.as_ref().map_or(prompt, |keys| keys[row].iter().filter(|&&key| key < prompt).count());
        return Some(vec![entry.heads.len(), count, keys]);
    }
    Some(entry.columns.shape(edge, count))
}

/// The shape that a stretch of ops gives vectors of this shape.
pub(crate) fn stretched(program: &Program, stretch: &Stretch, of: &[usize]) -> std::result::Result<Vec<usize>, String> {
    let inner = |edge: EdgeId| program.shape(edge, 1)[1..].to_vec();
    let (from, to) = (inner(stretch.from), inner(stretch.to));
    match of.strip_suffix(&from[..]) {
        Some(before) => Ok([before, &to].concat()),
        None => Err(format!("the site takes {from:?} for each token, not {of:?}")),
    }
}

/// The ops from the end of the stream to the logits.
pub(crate) fn to_logits(program: &Program) -> std::result::Result<Stretch, String> {
    let last = program.architecture().layers.len().checked_sub(1).ok_or("this model has no layers, so no stream")?;
    between(program, &Site::layer(last, Point::ResidPost).to_string(), Point::Logits.name())
}

/// The ops that lead from one site to another and need nothing else.
fn between(program: &Program, from: &str, to: &str) -> std::result::Result<Stretch, String> {
    let edge = |text: &str| {
        let found = site::find(program, text).map_err(|error| error.to_string())?;
        let [site] = found.sites[..] else { return Err(format!("`{text}` names several sites")) };
        let edge = program.edge_of(site).ok_or("the site is gone")?;
        if program.edge(edge).layout == Layout::QueryKey {
            return Err(format!("`{text}` is no vector for each token"));
        }
        Ok(edge)
    };
    let (from, to) = (edge(from)?, edge(to)?);
    let no = || "nothing leads from the one site to the other alone; the second needs more than the first".to_string();
    let (mut ops, mut todo) = (Vec::new(), vec![to]);
    while let Some(edge) = todo.pop() {
        if edge == from {
            continue;
        }
        let made_by = program.edge(edge).made_by;
        let inputs = program.ops()[made_by].kind.inputs();
        if inputs.is_empty() || made_by <= program.edge(from).made_by {
            return Err(no());
        }
        if !ops.contains(&made_by) {
            ops.push(made_by);
            todo.extend(inputs);
        }
    }
    ops.sort_unstable();
    if ops.is_empty() && from != to {
        return Err(no());
    }
    Ok(Stretch { from, to, ops })
}

/// Saves and metrics name values that exist; a metric is a single number.
fn check_uses(values: &Values, plan: &Plan) -> Result<()> {
    for &id in plan.save.iter().chain(&plan.metrics) {
        if values.list.get(id).is_none() {
            return Err(Error::input(
                format!("there is no value {id}: the plan has {}", values.list.len()),
                "save and metric name values of the plan",
            ));
        }
    }
    for &id in &plan.metrics {
        let fail = |problem: String| Error::Value {
            value: values.name(id),
            problem,
            remedy: "a metric is one number: sum or average it, over rows too".into(),
        };
        if values.rows[id].each().len() > 1 {
            return Err(fail(format!("as a metric it has a number for each of {} rows", values.rows[id].each().len())));
        }
        if let Some(shape) = values.shape(id, None).filter(|shape| shape.iter().product::<usize>() != 1) {
            return Err(fail(format!("as a metric it has shape {shape:?}")));
        }
        if values.gradient_of[id].is_some() {
            return Err(fail("as a metric it depends on a gradient".into()));
        }
        if values.reads[id].is_empty() {
            return Err(fail("as a metric it reads nothing of the run".into()));
        }
    }
    Ok(())
}
