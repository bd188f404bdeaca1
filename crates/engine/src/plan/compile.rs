//! From a plan to what the executor needs: every name found, every shape checked, every dependency ordered.

use super::compile_value::{Values, selection_shape, values};
use super::{Action, Callback, Columns, FromSite, Operand, Phase, Plan, Positions, Reduce, Tap, ValueId};
use crate::error::{Error, Result};
use crate::plan::order;
use crate::point::Point;
use crate::program::{Domain, Edge, EdgeId, Layout, Program};
use crate::site::{self, Site};
use std::sync::Arc;

/// The rows of a call: how long each prompt is, and how many positions it may come to.
#[derive(Clone, Copy)]
pub(crate) struct Lengths<'a> {
    pub prompts: &'a [usize],
    pub limits: &'a [usize],
}

/// A checked plan for given rows.
pub(crate) struct Compiled {
    pub entries: Vec<Entry>,
    /// For each edge the entries on its value, in the order in which they apply.
    pub at_edge: Vec<Vec<usize>>,
    /// For each edge those on its gradients among them, and all others: the way back goes through them in the opposite order.
    pub back_at_edge: Vec<Vec<usize>>,
    pub values: Values,
    /// How long each prompt is.
    pub prompts: Vec<usize>,
    pub sources: Vec<Source>,
    /// For each edge the sources that read it.
    pub sources_at: Vec<Vec<usize>>,
    /// How many ops have to run.
    pub ops: usize,
    /// Rows that run together, in order.
    pub groups: Vec<Vec<usize>>,
    /// Layers that nobody enters.
    pub skipped: Vec<bool>,
    /// Sites that patterns passed over.
    pub passed_over: Vec<Site>,
}

/// One tap at one site.
pub(crate) struct Entry {
    pub tap: usize,
    pub site: Site,
    pub edge: EdgeId,
    /// For each row of the call its selected positions, if any.
    pub rows: Vec<Option<Chosen>>,
    /// All positions of all rows and all columns: the whole value.
    pub whole: bool,
    pub columns: Columns,
    /// For attention sites: heads, and key positions by row.
    pub heads: Vec<usize>,
    pub keys: Option<Vec<Vec<usize>>>,
    pub action: CompiledAction,
    /// The values that it reads for.
    pub binds: Vec<ValueId>,
}

impl Entry {
    /// What its action writes, if it writes something given.
    fn given(&self) -> Option<&Given> {
        match &self.action {
            CompiledAction::Set(given) | CompiledAction::Add(given, _) => Some(given),
            _ => None,
        }
    }

    /// The source that its action reads, if any.
    pub fn source(&self) -> Option<usize> {
        match self.given() {
            Some(Given::Source(source)) => Some(*source),
            _ => None,
        }
    }

    /// The value that its action writes, if any.
    pub fn value(&self) -> Option<ValueId> {
        match self.given() {
            Some(Given::Computed(value)) => Some(*value),
            _ => None,
        }
    }

    /// Whether it works on a gradient, not on the value.
    pub fn on_gradient(&self) -> bool {
        matches!(self.action, CompiledAction::Grad { .. })
    }
}

pub(crate) enum CompiledAction {
    Capture(CompiledReduce),
    Read,
    Grad { metric: usize, action: Box<CompiledAction> },
    Set(Given),
    Add(Given, f32),
    Scale(f32),
    ProjectOut(Vec<f32>, f32),
    Cap(Vec<f32>, f32, f32),
    Call(Callback),
}

pub(crate) enum CompiledReduce {
    Whole,
    Mean,
    Norm,
    TopK(usize),
    Dot(Vec<f32>),
}

/// What an edit writes.
pub(crate) enum Given {
    Number(f32),
    Vector(Arc<Vec<f32>>),
    Rows(Arc<Vec<Vec<f32>>>),
    Source(usize),
    Computed(ValueId),
}

/// A site whose value another tap reads.
pub(crate) struct Source {
    pub site: Site,
    pub edge: EdgeId,
    /// For each row of the call its selected positions, if it is read.
    pub rows: Vec<Option<Chosen>>,
    pub columns: Columns,
    pub heads: Vec<usize>,
    /// For each row of the call the row that it reads from.
    pub read_by: Vec<Option<usize>>,
}

/// Chosen positions of a row: each with its place in the result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chosen {
    /// `(position, place)`, by position.
    by_position: Vec<(usize, usize)>,
}

impl Chosen {
    fn new(positions: Vec<usize>) -> std::result::Result<Chosen, String> {
        let mut by_position: Vec<(usize, usize)> =
            positions.into_iter().enumerate().map(|(place, position)| (position, place)).collect();
        by_position.sort_unstable();
        match by_position.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(format!("position {} is selected twice", pair[0].0)),
            None => Ok(Chosen { by_position }),
        }
    }

    pub fn len(&self) -> usize {
        self.by_position.len()
    }

    /// The place of a position in the result, if it is chosen.
    pub fn place(&self, position: usize) -> Option<usize> {
        let found = self.by_position.binary_search_by_key(&position, |&(p, _)| p).ok()?;
        Some(self.by_position[found].1)
    }

    /// The positions in the order of the result.
    pub fn positions(&self) -> Vec<usize> {
        let mut positions = vec![0; self.len()];
        self.by_position.iter().for_each(|&(position, place)| positions[place] = position);
        positions
    }
}

/// Checks a plan against a program and rows. `logits` asks for the program's end whatever the plan needs.
pub(crate) fn compile(program: &Program, plan: &Plan, lengths: Lengths, logits: bool) -> Result<Compiled> {
    let mut compiler = Compiler { program, lengths, entries: Vec::new(), sources: Vec::new(), passed_over: Vec::new() };
    let problems: Vec<Error> =
        plan.taps.iter().enumerate().filter_map(|(index, tap)| compiler.tap(index, tap, plan).err()).collect();
    if !problems.is_empty() {
        return Err(Error::all(problems));
    }
    let Compiler { mut entries, sources, passed_over, .. } = compiler;
    let values = values(program, plan, &entries, lengths)?;
    for (value, entry) in values.bound_by.iter().enumerate().filter_map(|(value, entry)| Some((value, (*entry)?))) {
        entries[entry].binds.push(value);
    }
    check_written(program, &entries, &values, lengths)?;
    check_passable(program, &entries, &values)?;
    let skipped = order::skipped_layers(program, plan, &entries, &sources, lengths)?;

    let edges = program.edge_count();
    let (mut back_at_edge, mut sources_at) = (vec![Vec::new(); edges], vec![Vec::new(); edges]);
    entries.iter().enumerate().for_each(|(i, entry)| back_at_edge[entry.edge].push(i));
    sources.iter().enumerate().for_each(|(i, source)| sources_at[source.edge].push(i));
    // One edge may be two sites (`layers.4.resid_post` is `layers.5.resid_pre`): the earlier layer's taps go first.
    back_at_edge.iter_mut().for_each(|list: &mut Vec<usize>| list.sort_by_key(|&i| (entries[i].site.layer, i)));
    let forward = |list: &Vec<usize>| list.iter().copied().filter(|&i| !entries[i].on_gradient()).collect();
    let at_edge: Vec<Vec<usize>> = back_at_edge.iter().map(forward).collect();
    let groups = order::row_groups(
        &order::Reach { program, entries: &entries, at_edge: &at_edge, sources: &sources, values: &values },
        lengths.prompts.len(),
    )?;

    let made = |edge: EdgeId| program.edge(edge).made_by + 1;
    let bound = |value: ValueId| values.reads[value].iter().filter_map(|&read| values.bound_by[read]);
    let returned = entries
        .iter()
        .filter(|entry| {
            matches!(entry.action, CompiledAction::Capture(_) | CompiledAction::Call(_) | CompiledAction::Grad { .. })
        })
        .chain(values.save.iter().chain(&values.metrics).flat_map(|&value| bound(value)).map(|entry| &entries[entry]));
    let mut ops = returned.map(|entry| made(entry.edge)).max().unwrap_or(0);
    // An edit that runs needs what it writes, which in another row may lie further on.
    while let Some(more) = entries
        .iter()
        .filter(|entry| made(entry.edge) <= ops)
        .flat_map(|entry| {
            let source = entry.source().map(|source| sources[source].edge);
            let reads = entry.value().into_iter().flat_map(&bound).map(|entry| entries[entry].edge);
            source.into_iter().chain(reads)
        })
        .map(made)
        .find(|&op| op > ops)
    {
        ops = more;
    }
    if logits {
        ops = program.ops().len();
    }
    let prompts = lengths.prompts.to_vec();
    Ok(Compiled {
        entries,
        at_edge,
        back_at_edge,
        values,
        prompts,
        sources,
        sources_at,
        ops,
        groups,
        skipped,
        passed_over,
    })
}

/// Refuses gradients that would have to pass through what has none.
fn check_passable(program: &Program, entries: &[Entry], values: &Values) -> Result<()> {
    let made = |entry: &Entry| program.edge(entry.edge).made_by;
    let Some(first) = entries.iter().filter(|entry| entry.on_gradient()).map(made).min() else { return Ok(()) };
    let blocked = values.metrics.iter().find(|&&metric| values.opaque[metric]);
    if let Some(&metric) = blocked {
        return Err(Error::Value {
            value: values.name(metric),
            problem: "as a metric it passes through a function of arrays, which has no gradient".into(),
            remedy: "build the metric from recorded operations, or detach what the function made".into(),
        });
    }
    let blocks = |entry: &&Entry| {
        let by_value = entry.value().is_some_and(|value| values.opaque[value]);
        made(entry) >= first && (by_value || matches!(entry.action, CompiledAction::Cap(..) | CompiledAction::Call(_)))
    };
    match entries.iter().find(blocks) {
        None => Ok(()),
        Some(entry) => Err(Error::Plan {
            tap: entry.tap,
            site: entry.site.to_string(),
            problem: "no gradient passes through `cap`, `call` or a function of arrays".into(),
            remedy: "ask for gradients behind it, or detach what the function made".into(),
        }),
    }
}

/// Refuses edits whose value does not fit what they select.
fn check_written(program: &Program, entries: &[Entry], values: &Values, lengths: Lengths) -> Result<()> {
    for entry in entries {
        let Some(value) = entry.value() else { continue };
        let fail = |problem: String| Error::Plan {
            tap: entry.tap,
            site: entry.site.to_string(),
            problem,
            remedy: "shapes broadcast as in numpy; `pellucid sites` shows each site's shape".into(),
        };
        if value >= values.list.len() {
            return Err(fail(format!("there is no value {value}: the plan has {}", values.list.len())));
        }
        if values.gradient_of[value].is_some() && !entry.on_gradient() {
            return Err(fail(format!(
                "{} depends on a gradient, which is known only after the run",
                values.name(value)
            )));
        }
        for row in (0..lengths.prompts.len()).filter(|&row| entry.rows[row].is_some()) {
            let has = values.rows[value].each();
            if has.len() > 1 && !has.contains(&Some(row)) {
                return Err(fail(format!("{} has no array for row {row}", values.name(value))));
            }
            let shapes = values.shape(value, Some(row)).zip(selection_shape(program, entry, lengths, row));
            if let Some((shape, selection)) = shapes {
                crate::value::shape::fits(shape, &selection)
                    .map_err(|problem| fail(format!("row {row}: {problem}")))?;
            }
        }
    }
    Ok(())
}

struct Compiler<'a> {
    program: &'a Program,
    lengths: Lengths<'a>,
    entries: Vec<Entry>,
    sources: Vec<Source>,
    passed_over: Vec<Site>,
}

impl Compiler<'_> {
    fn tap(&mut self, index: usize, tap: &Tap, plan: &Plan) -> Result<()> {
        let fail = |problem: String, remedy: &str| Error::Plan {
            tap: index,
            site: tap.site.clone(),
            problem,
            remedy: remedy.into(),
        };
        // `skip` takes a layer, `layers.5`, which is short for what leaves it.
        let skips = matches!(tap.action, Action::Skip(_));
        let is_site = site::find(self.program, &tap.site).is_ok();
        let text = if skips && !is_site { format!("{}.{}", tap.site, Point::ResidPost) } else { tap.site.clone() };
        if skips && is_site && !tap.site.ends_with(Point::ResidPost.name()) {
            return Err(fail("only whole layers can be skipped".into(), "write the layer, such as layers.5"));
        }
        let matches = site::find(self.program, &text)
            .map_err(|error| fail(error.to_string(), error.remedy().unwrap_or_default()))?;
        self.passed_over.extend(matches.passed_over);
        if let Action::Grad { metric, .. } = &tap.action
            && *metric >= plan.metrics.len()
        {
            let problem = format!("there is no metric {metric}: the plan has {}", plan.metrics.len());
            return Err(fail(problem, "say what the gradient is of: a metric is a value with a single number"));
        }
        let rows = self
            .rows(tap)
            .map_err(|problem| fail(problem, "rows count the inputs of the call from 0; positions count tokens"))?;
        for site in matches.sites {
            let entry = self.entry(index, tap, site, rows.clone());
            let entry = entry.map_err(|problem| {
                let here = site.to_string();
                let problem = if here == tap.site { problem } else { format!("{here}: {problem}") };
                fail(problem, "docs/plans.md says what each action takes; `pellucid sites` shows each site's shape")
            })?;
            self.entries.push(entry);
        }
        Ok(())
    }

    /// The chosen positions of each row.
    fn rows(&self, tap: &Tap) -> std::result::Result<Vec<Option<Chosen>>, String> {
        self.choose(tap.rows.as_deref(), |prompt, limit| selected(tap, prompt, limit))
    }

    fn choose(
        &self,
        rows: Option<&[usize]>,
        positions: impl Fn(usize, usize) -> std::result::Result<Vec<usize>, String>,
    ) -> std::result::Result<Vec<Option<Chosen>>, String> {
        let count = self.lengths.prompts.len();
        if let Some(row) = rows.and_then(|rows| rows.iter().find(|&&row| row >= count)) {
            return Err(format!("there is no row {row}: this call has {count} inputs"));
        }
        let mut chosen = vec![None; count];
        for (row, slot) in chosen.iter_mut().enumerate() {
            if rows.is_none_or(|rows| rows.contains(&row)) {
                let positions = positions(self.lengths.prompts[row], self.lengths.limits[row])
                    .map_err(|problem| format!("row {row}: {problem}"))?;
                *slot = Some(Chosen::new(positions)?).filter(|chosen| chosen.len() > 0);
            }
        }
        Ok(chosen)
    }

    fn entry(
        &mut self,
        index: usize,
        tap: &Tap,
        site: Site,
        rows: Vec<Option<Chosen>>,
    ) -> std::result::Result<Entry, String> {
        let edge_id = self.program.edge_of(site).ok_or("the site is gone")?;
        let edge = self.program.edge(edge_id);
        let (columns, heads) = self.inner(edge, tap.heads.as_deref(), tap.units.as_deref())?;
        let keys = match &tap.keys {
            Some(_) if edge.layout != Layout::QueryKey => {
                return Err("`keys` selects key positions of attn_scores and attn_probs only".into());
            }
            Some(keys) => Some(self.keys(keys)?),
            None => None,
        };
        let everywhere = rows.iter().zip(self.lengths.limits).all(|(row, &limit)| {
            row.as_ref().is_some_and(|chosen| chosen.len() == limit && chosen.place(0) == Some(0))
        });
        let whole = everywhere
            && tap.positions == Positions::All
            && matches!(columns, Columns::All(_))
            && edge.layout != Layout::QueryKey;
        let action = match &tap.action {
            Action::Grad { metric, action } => {
                let action = self.gradient_action(tap, action, site, edge, &columns, &rows)?;
                CompiledAction::Grad { metric: *metric, action: Box::new(action) }
            }
            action => self.action(tap, action, site, edge, &columns, &rows)?,
        };
        Ok(Entry { tap: index, site, edge: edge_id, rows, whole, columns, heads, keys, action, binds: Vec::new() })
    }

    fn inner(
        &self,
        edge: &Edge,
        heads: Option<&[usize]>,
        units: Option<&[usize]>,
    ) -> std::result::Result<(Columns, Vec<usize>), String> {
        if edge.layout != Layout::QueryKey {
            return Ok((Columns::new(edge, heads, units)?, Vec::new()));
        }
        if units.is_some() {
            return Err("attention sites have heads and keys, not units".into());
        }
        // For attention the edge's width is its number of heads.
        let as_units = Columns::new(edge, None, heads).map_err(|problem| problem.replace("unit", "head"))?;
        Ok((as_units, heads.map_or_else(|| (0..edge.width).collect(), <[usize]>::to_vec)))
    }

    fn keys(&self, keys: &Positions) -> std::result::Result<Vec<Vec<usize>>, String> {
        self.lengths
            .prompts
            .iter()
            .zip(self.lengths.limits)
            .map(|(&prompt, &limit)| keys.resolve(prompt, limit))
            .collect()
    }

    /// What is done to a gradient: what could be done to the value, as far as it makes sense.
    fn gradient_action(
        &mut self,
        tap: &Tap,
        action: &Action,
        site: Site,
        edge: &Edge,
        columns: &Columns,
        rows: &[Option<Chosen>],
    ) -> std::result::Result<CompiledAction, String> {
        if edge.integer || edge.aside {
            return Err(
                "there is no gradient: no gradient flows through a choice of experts or into a recurrent state".into(),
            );
        }
        match action {
            Action::Set(Operand::From(_)) | Action::Add { operand: Operand::From(_), .. } => {
                Err("a gradient takes numbers, lists and values, not `from`".into())
            }
            Action::Capture(None)
            | Action::Read
            | Action::Set(_)
            | Action::Add { .. }
            | Action::Scale(_)
            | Action::Zero => self.action(tap, action, site, edge, columns, rows),
            _ => Err("a gradient can be captured, read, set, added to, scaled and zeroed".into()),
        }
    }

    fn action(
        &mut self,
        tap: &Tap,
        action: &Action,
        site: Site,
        edge: &Edge,
        columns: &Columns,
        rows: &[Option<Chosen>],
    ) -> std::result::Result<CompiledAction, String> {
        if edge.layout == Layout::QueryKey {
            return self.attention_action(tap, action, site, rows);
        }
        if edge.integer && !matches!(action, Action::Capture(None) | Action::Read) {
            return Err("a choice of experts can be captured whole, not edited; edit router_logits instead".into());
        }
        if edge.aside && !matches!(action, Action::Capture(_) | Action::Read) {
            return Err("a recurrent state can be captured, not edited: it flows from token to token inside one op; edit mixer_in or conv_out, which feed it".into());
        }
        match action {
            Action::Read => Ok(CompiledAction::Read),
            Action::Grad { .. } => Err("a gradient of a gradient is not offered".into()),
            Action::Capture(None) => Ok(CompiledAction::Capture(CompiledReduce::Whole)),
            Action::Capture(Some(reduce)) => Ok(CompiledAction::Capture(match reduce {
                Reduce::Mean => CompiledReduce::Mean,
                Reduce::Norm => CompiledReduce::Norm,
                Reduce::TopK(k) if *k >= 1 && *k <= columns.len() => CompiledReduce::TopK(*k),
                Reduce::TopK(k) => return Err(format!("topk of {k} among {} units", columns.len())),
                Reduce::Dot(vector) => CompiledReduce::Dot(plain_vector(vector, columns.len())?),
            })),
            Action::Set(operand) | Action::MeanAblate(operand) => {
                Ok(CompiledAction::Set(self.value(operand, tap, site, edge, columns, rows)?))
            }
            Action::Add { operand, scale } => {
                Ok(CompiledAction::Add(self.value(operand, tap, site, edge, columns, rows)?, *scale))
            }
            Action::Scale(by) => Ok(CompiledAction::Scale(*by)),
            Action::Zero => Ok(CompiledAction::Set(Given::Number(0.0))),
            Action::ProjectOut { vector, scale } => {
                Ok(CompiledAction::ProjectOut(unit_vector(vector, edge, columns)?, *scale))
            }
            Action::Cap { vector, min, max } => {
                let (min, max) = (min.unwrap_or(f32::NEG_INFINITY), max.unwrap_or(f32::INFINITY));
                if min > max || min.is_nan() || max.is_nan() {
                    return Err(format!("cap with min {min} above max {max}"));
                }
                Ok(CompiledAction::Cap(unit_vector(vector, edge, columns)?, min, max))
            }
            Action::Skip(Some(operand)) => {
                Ok(CompiledAction::Set(self.value(operand, tap, site, edge, columns, rows)?))
            }
            Action::Skip(None) => {
                let before = FromSite {
                    site: Some(Site { point: Point::ResidPre, ..site }.to_string()),
                    rows: None,
                    positions: None,
                };
                Ok(CompiledAction::Set(self.value(&Operand::From(before), tap, site, edge, columns, rows)?))
            }
            Action::Call(callback) => Ok(CompiledAction::Call(callback.clone())),
        }
    }

    fn attention_action(
        &mut self,
        tap: &Tap,
        action: &Action,
        site: Site,
        rows: &[Option<Chosen>],
    ) -> std::result::Result<CompiledAction, String> {
        let number = |operand: &Operand| match operand {
            Operand::Number(x) => Ok(*x),
            _ => Err("attention sites take a number here".to_string()),
        };
        match action {
            Action::Read => Ok(CompiledAction::Read),
            Action::Set(Operand::Value(value)) => Ok(CompiledAction::Set(Given::Computed(*value))),
            Action::Add { operand: Operand::Value(value), scale } => {
                Ok(CompiledAction::Add(Given::Computed(*value), *scale))
            }
            Action::Capture(None) => Ok(CompiledAction::Capture(CompiledReduce::Whole)),
            Action::Set(Operand::From(from)) => {
                if tap.keys.is_some() {
                    return Err("`set` from another site takes all keys".into());
                }
                Ok(CompiledAction::Set(Given::Source(self.source(from, tap, site, rows)?)))
            }
            Action::Set(operand) => Ok(CompiledAction::Set(Given::Number(number(operand)?))),
            Action::Add { operand, scale } => Ok(CompiledAction::Add(Given::Number(number(operand)?), *scale)),
            Action::Scale(by) => Ok(CompiledAction::Scale(*by)),
            Action::Zero => Ok(CompiledAction::Set(Given::Number(0.0))),
            Action::Call(callback) => Ok(CompiledAction::Call(callback.clone())),
            _ => Err("attention sites take capture, read, set, add, scale, zero and call".into()),
        }
    }

    fn value(
        &mut self,
        operand: &Operand,
        tap: &Tap,
        site: Site,
        edge: &Edge,
        columns: &Columns,
        rows: &[Option<Chosen>],
    ) -> std::result::Result<Given, String> {
        match operand {
            Operand::Value(value) => Ok(Given::Computed(*value)),
            Operand::Number(x) => Ok(Given::Number(*x)),
            Operand::Vector(_) | Operand::File(_) => Ok(Given::Vector(Arc::new(repeated(operand, edge, columns)?))),
            Operand::Rows(list) => {
                if let Some(bad) = list.iter().find(|row| row.len() != columns.len()) {
                    return Err(format!("a row of {} numbers for {} selected units", bad.len(), columns.len()));
                }
                if let Some(bad) = rows.iter().flatten().find(|chosen| chosen.len() != list.len()) {
                    return Err(format!("{} rows of numbers for {} selected positions", list.len(), bad.len()));
                }
                Ok(Given::Rows(Arc::new(list.clone())))
            }
            Operand::From(from) => {
                let source = self.source(from, tap, site, rows)?;
                let width = self.sources[source].columns.len();
                if width != columns.len() {
                    return Err(format!("the source is {width} wide, this selection {}", columns.len()));
                }
                Ok(Given::Source(source))
            }
        }
    }

    /// Registers the site that `from` names and says which row reads which.
    fn source(
        &mut self,
        from: &FromSite,
        tap: &Tap,
        site: Site,
        rows: &[Option<Chosen>],
    ) -> std::result::Result<usize, String> {
        let name = from.site.clone().unwrap_or_else(|| site.to_string());
        let found = site::find(self.program, &name).map_err(|error| error.to_string())?.sites;
        let origin = match found[..] {
            [one] => one,
            // A pattern in both places pairs layer with layer.
            _ => *found
                .iter()
                .find(|origin| origin.layer == site.layer)
                .ok_or("the source pattern has no site of this layer")?,
        };
        let edge_id = self.program.edge_of(origin).ok_or("the source is gone")?;
        let edge = self.program.edge(edge_id);
        if (edge.layout == Layout::QueryKey)
            != (self.program.edge_of(site).is_some_and(|e| self.program.edge(e).layout == Layout::QueryKey))
        {
            return Err("attention sites and others cannot feed each other".into());
        }
        let readers: Vec<usize> = (0..rows.len()).filter(|&row| rows[row].is_some()).collect();
        let mut read_by = vec![None; rows.len()];
        for (nth, &reader) in readers.iter().enumerate() {
            read_by[reader] = Some(match from.rows.as_deref() {
                None => reader,
                Some([one]) => *one,
                Some(several) if several.len() == readers.len() => several[nth],
                Some(several) => return Err(format!("{} source rows for {} rows", several.len(), readers.len())),
            });
        }
        let origins: Vec<usize> = read_by.iter().flatten().copied().collect();
        let chosen = self.choose(Some(&origins), |prompt, limit| match &from.positions {
            Some(positions) => positions.resolve(prompt, limit),
            None => selected(tap, prompt, limit),
        })?;
        for &reader in &readers {
            let (mine, theirs) = (
                rows[reader].as_ref().map_or(0, Chosen::len),
                read_by[reader].and_then(|row| chosen[row].as_ref()).map_or(0, Chosen::len),
            );
            if theirs != mine && theirs != 1 {
                return Err(format!(
                    "the source selects {theirs} positions for the {mine} of row {reader}; select as many, or one for all"
                ));
            }
        }
        let (columns, heads) =
            self.inner(edge, tap.heads.as_deref().filter(|_| edge.layout != Layout::Flat), tap.units.as_deref())?;
        self.sources.push(Source { site: origin, edge: edge_id, rows: chosen, columns, heads, read_by });
        Ok(self.sources.len() - 1)
    }
}

/// The positions that a tap selects in a row.
fn selected(tap: &Tap, prompt: usize, limit: usize) -> std::result::Result<Vec<usize>, String> {
    let mut positions = tap.positions.resolve(prompt, limit)?;
    match tap.phase {
        Phase::All => {}
        Phase::Prefill => positions.retain(|&p| p < prompt),
        Phase::Decode => positions.retain(|&p| p >= prompt),
    }
    if let Some(steps) = &tap.steps {
        // Step k is position prompt - 1 + k; steps have no prompt to count back from.
        let steps =
            steps.resolve(limit + 1 - prompt, limit + 1 - prompt).map_err(|problem| format!("steps: {problem}"))?;
        positions.retain(|&p| p + 1 >= prompt && steps.contains(&(p + 1 - prompt)));
    }
    Ok(positions)
}

/// A vector of exactly this length.
fn plain_vector(operand: &Operand, len: usize) -> std::result::Result<Vec<f32>, String> {
    match operand {
        Operand::Vector(vector) if vector.len() == len => Ok(vector.clone()),
        Operand::Vector(vector) => Err(format!("a vector of {} numbers for {len} selected units", vector.len())),
        Operand::File(file) => {
            Err(format!("the file {file:?} was not read; files are resolved before a plan is compiled"))
        }
        _ => Err("a direction is a list of numbers or a tensor in a file".into()),
    }
}

/// A vector for the selected units; one of a head's width is meant for each head.
fn repeated(operand: &Operand, edge: &Edge, columns: &Columns) -> std::result::Result<Vec<f32>, String> {
    if let (Operand::Vector(vector), Layout::Heads(heads)) = (operand, edge.layout) {
        let dim = edge.width / heads;
        if vector.len() == dim && columns.len().is_multiple_of(dim) {
            return Ok(vector.repeat(columns.len() / dim));
        }
    }
    plain_vector(operand, columns.len())
}

/// A direction of unit length for the selected units, or for each head.
fn unit_vector(operand: &Operand, edge: &Edge, columns: &Columns) -> std::result::Result<Vec<f32>, String> {
    let vector = match (operand, edge.layout) {
        (Operand::Vector(vector), Layout::Heads(heads))
            if vector.len() == edge.width / heads && columns.len().is_multiple_of(vector.len()) =>
        {
            vector.clone()
        }
        _ => plain_vector(operand, columns.len())?,
    };
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    if !(length.is_finite() && length > 0.0) {
        return Err(format!("a direction of length {length}"));
    }
    Ok(vector.iter().map(|x| x / length).collect())
}

impl Compiled {
    /// No taps, no rows.
    pub fn empty(program: &Program) -> Compiled {
        let edges = program.edge_count();
        Compiled {
            entries: Vec::new(),
            at_edge: vec![Vec::new(); edges],
            back_at_edge: vec![Vec::new(); edges],
            values: Values::default(),
            prompts: Vec::new(),
            sources: Vec::new(),
            sources_at: vec![Vec::new(); edges],
            ops: program.ops().len(),
            groups: Vec::new(),
            skipped: vec![false; program.architecture().layers.len()],
            passed_over: Vec::new(),
        }
    }

    /// For each edge whether its gradient is needed, if any is.
    pub fn gradient_edges(&self, program: &Program) -> Option<Vec<bool>> {
        if !self.entries.iter().any(Entry::on_gradient) {
            return None;
        }
        let mut wanted = vec![false; program.edge_count()];
        self.entries.iter().filter(|entry| entry.on_gradient()).for_each(|entry| wanted[entry.edge] = true);
        // Gradients also pass from what an edit wrote to where that was read.
        for entry in &self.entries {
            let reads = entry.value().into_iter().flat_map(|value| &self.values.reads[value]);
            let reads = reads.filter_map(|&read| self.values.bound_by[read]).map(|entry| self.entries[entry].edge);
            let source = entry.source().map(|source| self.sources[source].edge);
            for edge in reads.chain(source) {
                (wanted[edge], wanted[entry.edge]) = (true, true);
            }
        }
        Some(wanted)
    }

    /// The positions of a row at which somebody reads the end of the model.
    pub fn reads(&self, program: &Program, row: usize, position: usize) -> bool {
        let at_end = |edge: EdgeId| program.edge(edge).domain == Domain::Read;
        let chosen =
            |rows: &[Option<Chosen>]| rows[row].as_ref().is_some_and(|chosen| chosen.place(position).is_some());
        self.entries.iter().any(|entry| at_end(entry.edge) && chosen(&entry.rows))
            || self.sources.iter().any(|source| at_end(source.edge) && chosen(&source.rows))
    }
}
