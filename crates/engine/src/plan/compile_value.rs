//! Compiles the values of a plan: the dependencies, rows and shape of each.

use super::compiled::{CompiledTap, Lengths};
use super::value_shape::shape;
use super::{Expr, Map, Plan, Value, ValueId};
use crate::error::{Error, MAX_PROBLEMS, Result};
use crate::ids::IdVec;
use crate::memory_limit::{check_value_bytes, shape_bytes};
use crate::point::Point;
use crate::program::{EdgeId, Layout, Op, OpKind, Program};
use crate::site::{self, Site};
use crate::weights::WeightId;

/// Rows for which a value has an array.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rows {
    /// One array, the same for every row.
    Any,
    /// One array per listed row.
    These(Vec<usize>),
}

impl Rows {
    /// Returns the row whose array a reader uses; `None` if all rows share one array.
    pub fn for_reader(&self, reader: Option<usize>) -> Option<usize> {
        match self {
            Rows::Any => None,
            Rows::These(rows) => match rows[..] {
                [one] => Some(one),
                _ => reader,
            },
        }
    }

    /// Returns each row that has an array; `[None]` if all rows share one array.
    pub fn each(&self) -> Vec<Option<usize>> {
        match self {
            Rows::Any => vec![None],
            Rows::These(rows) => rows.iter().copied().map(Some).collect(),
        }
    }

    /// Returns the rows of a value computed from two values.
    fn with(self, other: &Rows) -> std::result::Result<Rows, String> {
        match (self, other) {
            (Rows::Any, other) => Ok(other.clone()),
            (mine, Rows::Any) => Ok(mine),
            (Rows::These(a), Rows::These(b)) if a == *b => Ok(Rows::These(a)),
            // A value of a single row is usable by every row; combining two of them gives one
            // shared array.
            (Rows::These(a), Rows::These(b)) if a.len() == 1 && b.len() == 1 => Ok(Rows::Any),
            (Rows::These(a), Rows::These(b)) if a.len() == 1 => Ok(Rows::These(b.clone())),
            (Rows::These(a), Rows::These(b)) if b.len() == 1 => Ok(Rows::These(a)),
            (Rows::These(a), Rows::These(b)) => Err(format!("cannot combine values of rows {a:?} and rows {b:?}")),
        }
    }
}

/// The model's ops between two edges.
#[derive(Clone, Debug)]
pub(crate) struct OpRange {
    pub from: EdgeId,
    pub to: EdgeId,
    /// Indices of the ops that compute `to` from `from`, in order.
    pub ops: Vec<usize>,
}

/// A requested gradient of a metric with respect to a weight.
pub(crate) struct WeightGradRequest {
    pub value: ValueId,
    pub metric: usize,
    pub weight: WeightId,
}

/// The compiled values of a plan. Lists are indexed by value.
#[derive(Default)]
pub(crate) struct CompiledValues {
    pub list: IdVec<ValueId, Value>,
    pub rows: IdVec<ValueId, Rows>,
    /// Reads that the value depends on, itself included.
    pub reads: IdVec<ValueId, Vec<ValueId>>,
    /// For a read, the index of the compiled tap that binds it.
    pub bound_by: IdVec<ValueId, Option<usize>>,
    /// Metric whose gradient the value depends on.
    pub gradient_of: IdVec<ValueId, Option<usize>>,
    /// Whether the value depends on a read through an opaque function.
    pub opaque: IdVec<ValueId, bool>,
    pub op_ranges: IdVec<ValueId, Option<OpRange>>,
    /// Requested weight gradients.
    pub weight_grads: Vec<WeightGradRequest>,
    /// Shape per row in the first pass, if known.
    pub shapes: IdVec<ValueId, Vec<Option<Vec<usize>>>>,
    pub save: Vec<ValueId>,
    pub metrics: Vec<ValueId>,
    pub allow_nan: bool,
}

impl CompiledValues {
    /// Returns the reads that a value depends on for a reader, each with its row.
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

    /// Returns the inputs of a value for a reader, each with the row that it is taken from.
    pub fn inputs(&self, value: ValueId, reader: Option<usize>) -> Vec<(ValueId, Option<usize>)> {
        match &self.list[value].expr {
            Expr::Across { of, .. } => self.rows[*of].each().into_iter().map(|row| (*of, row)).collect(),
            Expr::Row { of, row } => vec![(*of, self.rows[*of].for_reader(Some(*row)))],
            expr => expr.inputs().into_iter().map(|of| (of, self.rows[of].for_reader(reader))).collect(),
        }
    }

    /// Returns the shape of a value for a reader in the first pass, if known.
    pub fn shape(&self, value: ValueId, reader: Option<usize>) -> Option<&[usize]> {
        let row = self.rows[value].for_reader(reader);
        let index = self.rows[value].each().iter().position(|&each| each == row)?;
        // The placeholder of an invalid value has one shape, whatever its rows.
        self.shapes[value].get(index)?.as_deref()
    }

    /// Adds a placeholder for an invalid value, so that later values can still be checked.
    fn add_placeholder(&mut self, id: ValueId) {
        // Some lists may already have an entry of this value; all must describe the placeholder.
        set_last(&mut self.rows, id, Rows::Any);
        set_last(&mut self.reads, id, Vec::new());
        set_last(&mut self.bound_by, id, None);
        set_last(&mut self.gradient_of, id, None);
        set_last(&mut self.opaque, id, false);
        set_last(&mut self.op_ranges, id, None);
        set_last(&mut self.shapes, id, vec![None]);
    }

    /// Returns the description of a value for messages.
    pub fn name(&self, value: ValueId) -> String {
        match &self.list[value].name {
            Some(name) => format!("value `{name}`"),
            None => format!("value {value}"),
        }
    }
}

/// Makes an item the one of `id` and the last of the list.
fn set_last<T: Clone>(list: &mut IdVec<ValueId, T>, id: ValueId, item: T) {
    list.resize(id.index(), item.clone());
    list.push(item);
}

/// Compiles the values of a plan whose taps are compiled.
pub(super) fn compile_values(
    program: &Program,
    plan: &Plan,
    entries: &[CompiledTap],
    lengths: Lengths,
) -> Result<CompiledValues> {
    let mut values = CompiledValues {
        list: plan.values.clone(),
        save: plan.save.clone(),
        metrics: plan.metrics.clone(),
        allow_nan: plan.allow_nan,
        ..CompiledValues::default()
    };
    let (mut problems, mut total) = (Vec::new(), 0usize);
    for (id, value) in plan.values.iter_with_ids() {
        let fail = |values: &CompiledValues, problem: String| Error::Value {
            value: values.name(id),
            problem,
            remedy: "docs/plans.md describes each operation".into(),
        };
        let later = value.expr.inputs().into_iter().find(|&input| input >= id);
        let added = match later {
            Some(later) => Err(format!("it uses value {later}, which is not defined before it")),
            None => compile_value(&mut values, program, plan, entries, lengths, id),
        };
        // A value is kept until the call ends, so all of them count.
        let added = added.and_then(|()| {
            let bytes = values.shapes[id].iter().flatten().map(|shape| shape_bytes(shape));
            total = bytes.fold(total, usize::saturating_add);
            check_value_bytes(total).map_err(|problem| format!("with the values before it, {problem}"))
        });
        if let Err(problem) = added {
            problems.push(fail(&values, problem));
            values.add_placeholder(id);
            if problems.len() == MAX_PROBLEMS {
                break;
            }
        }
    }
    if problems.is_empty() {
        check_uses(&values, plan)?;
        return Ok(values);
    }
    Err(Error::all(problems))
}

fn compile_value(
    values: &mut CompiledValues,
    program: &Program,
    plan: &Plan,
    entries: &[CompiledTap],
    lengths: Lengths,
    id: ValueId,
) -> std::result::Result<(), String> {
    let expr = plan.values[id].expr.clone();
    let inputs = expr.inputs();
    let mut reads: Vec<ValueId> = inputs.iter().flat_map(|&of| values.reads[of].clone()).collect();
    let (mut rows, mut bound_by, mut op_range) = (Rows::Any, None, None);
    let mut metrics: Vec<usize> = inputs.iter().filter_map(|&of| values.gradient_of[of]).collect();
    match &expr {
        Expr::Read(tap) => {
            let (entry, metric) = find_read_tap(plan, entries, *tap)?;
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
                return Err(format!("there is no metric {metric}: the plan has {} metrics", plan.metrics.len()));
            }
            metrics.push(*metric);
            values.weight_grads.push(WeightGradRequest {
                value: id,
                metric: *metric,
                weight: find_weight(program, weight)?,
            });
        }
        Expr::Row { of, row } => {
            let has_row = values.rows[*of].each().iter().any(|each| each.is_none_or(|each| each == *row));
            if !has_row {
                return Err(format!("its input has no row {row}"));
            }
        }
        Expr::Through { from, to, .. } => {
            op_range = Some(op_range_between(program, from, to)?);
            rows = values.rows[inputs[0]].clone();
        }
        Expr::Unembed(_) => {
            op_range = Some(to_logits(program)?);
            rows = values.rows[inputs[0]].clone();
        }
        Expr::File(file) => {
            return Err(format!(
                "the file {file:?} was not loaded; files must be resolved before the plan is compiled"
            ));
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
        return Err("it depends on gradients of several metrics".into());
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
    values.op_ranges.push(op_range);
    let shapes = values.rows[id].each().into_iter().map(|row| shape_of(values, program, entries, lengths, id, row));
    let shapes = shapes.collect::<std::result::Result<_, _>>()?;
    values.shapes.push(shapes);
    Ok(())
}

/// Returns the id of a weight by its name; fails if it has no gradient.
fn find_weight(program: &Program, name: &str) -> std::result::Result<WeightId, String> {
    let id = program.weight_named(name).ok_or_else(|| {
        let nearest = program.nearest_weight(name).unwrap_or_default();
        format!("no weight is called `{name}`; did you mean `{nearest}`?")
    })?;
    let only_selects = |op: &Op| matches!(op.kind, OpKind::Route { correction: Some(weight), .. } if weight == id);
    match program.ops().iter().any(only_selects) {
        true => Err(format!(
            "`{name}` has no gradient: op `route` uses it only to select experts, which is not differentiable"
        )),
        false => Ok(id),
    }
}

/// Returns the compiled tap of a reading tap, and the metric if it reads a gradient.
fn find_read_tap(
    plan: &Plan,
    entries: &[CompiledTap],
    tap: usize,
) -> std::result::Result<(usize, Option<usize>), String> {
    use super::Action;
    let metric = match plan.taps.get(tap).map(|tap| &tap.action) {
        Some(Action::Read) => None,
        Some(Action::Grad { metric, action }) if **action == Action::Read => Some(*metric),
        Some(_) => return Err(format!("tap {tap} is not a read")),
        None => return Err(format!("there is no tap {tap}")),
    };
    let mut matching = entries.iter().enumerate().filter(|(_, entry)| entry.tap == tap).map(|(index, _)| index);
    match (matching.next(), matching.next()) {
        (Some(entry), None) => Ok((entry, metric)),
        _ => Err(format!("tap {tap} on `{}` matches several sites; a value is read at one site", plan.taps[tap].site)),
    }
}

fn shape_of(
    values: &CompiledValues,
    program: &Program,
    entries: &[CompiledTap],
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
            let request = values.weight_grads.iter().find(|request| request.value == id);
            return Ok(request.map(|request| program.weight(request.weight).shape.clone()));
        }
        _ => {}
    }
    let inputs: Option<Vec<&[usize]>> =
        values.inputs(id, row).into_iter().map(|(of, row)| values.shape(of, row)).collect();
    let Some(inputs) = inputs else { return Ok(None) };
    match &values.op_ranges[id] {
        Some(range) => op_range_shape(program, range, inputs[0]).map(Some),
        None => shape(expr, &inputs).map(Some),
    }
}

/// Returns the shape of a tap's selection in a row in the first pass, if it selects anything there.
pub(super) fn selection_shape(
    program: &Program,
    entry: &CompiledTap,
    lengths: Lengths,
    row: usize,
) -> Option<Vec<usize>> {
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

/// Returns the output shape of an op range for an input of this shape.
pub(crate) fn op_range_shape(
    program: &Program,
    range: &OpRange,
    of: &[usize],
) -> std::result::Result<Vec<usize>, String> {
    let token_shape = |edge: EdgeId| program.shape(edge, 1)[1..].to_vec();
    let (from, to) = (token_shape(range.from), token_shape(range.to));
    match of.strip_suffix(&from[..]) {
        Some(before) => Ok([before, &to].concat()),
        None => Err(format!("the site has shape {from:?} per token, not {of:?}")),
    }
}

/// Returns the ops from the last `resid_post` to the logits.
pub(crate) fn to_logits(program: &Program) -> std::result::Result<OpRange, String> {
    let last = program.architecture().layers.len().checked_sub(1).ok_or("this model has no layers")?;
    op_range_between(program, &Site::layer(last, Point::ResidPost).to_string(), Point::Logits.name())
}

/// Returns the ops that compute one site from another alone; fails if they need any other input.
fn op_range_between(program: &Program, from: &str, to: &str) -> std::result::Result<OpRange, String> {
    let edge = |text: &str| {
        let found = site::find(program, text).map_err(|error| error.to_string())?;
        let [site] = found.sites[..] else { return Err(format!("`{text}` matches several sites")) };
        let edge = program.edge_of(site).ok_or("the site has no edge")?;
        if program.edge(edge).layout == Layout::QueryKey {
            return Err(format!("`{text}` does not have one vector per token"));
        }
        Ok(edge)
    };
    let (from, to) = (edge(from)?, edge(to)?);
    let producer = &program.ops()[program.edge(to).producer].kind;
    if matches!(producer, OpKind::Sae { .. }) && producer.inner().contains(&to) {
        return Err("`through` does not run the inside of an autoencoder; read its site instead".into());
    }
    let no = || "the second site cannot be computed from the first alone".to_string();
    let (mut ops, mut todo) = (Vec::new(), vec![to]);
    while let Some(edge) = todo.pop() {
        if edge == from {
            continue;
        }
        let producer = program.edge(edge).producer;
        let inputs = program.ops()[producer].kind.inputs();
        if inputs.is_empty() || producer <= program.edge(from).producer {
            return Err(no());
        }
        if !ops.contains(&producer) {
            ops.push(producer);
            todo.extend(inputs);
        }
    }
    ops.sort_unstable();
    if ops.is_empty() && from != to {
        return Err(no());
    }
    Ok(OpRange { from, to, ops })
}

/// Checks that saved values and metrics exist and that metrics are scalars.
fn check_uses(values: &CompiledValues, plan: &Plan) -> Result<()> {
    for &id in plan.save.iter().chain(&plan.metrics) {
        if values.list.get(id).is_none() {
            return Err(Error::input(
                format!("there is no value {id}: the plan has {} values", values.list.len()),
                "`save` and `metric` must name values of the plan",
            ));
        }
    }
    for &id in &plan.metrics {
        let fail = |problem: String| Error::Value {
            value: values.name(id),
            problem,
            remedy: "a metric must be a scalar: sum or average it, also over rows".into(),
        };
        if values.rows[id].each().len() > 1 {
            return Err(fail(format!(
                "a metric must be one scalar, but it has one per row ({} rows)",
                values.rows[id].each().len()
            )));
        }
        if let Some(shape) = values.shape(id, None).filter(|shape| shape.iter().product::<usize>() != 1) {
            return Err(fail(format!("a metric must be a scalar, but it has shape {shape:?}")));
        }
        if values.gradient_of[id].is_some() {
            return Err(fail("a metric cannot depend on a gradient".into()));
        }
        if values.reads[id].is_empty() {
            return Err(fail("the metric does not depend on any activation".into()));
        }
    }
    Ok(())
}
