//! From a plan to what the executor needs: every name found, every shape checked, every dependency ordered.

use super::compile_value::values;
use super::compiled::{Chosen, Compiled, Entry, Lengths, Source};
use super::passable::{check_passable, check_written};
use super::{Action, Columns, CompiledAction, Phase, Plan, Positions, Tap, ValueId};
use crate::error::{Error, Result};
use crate::ids::IdVec;
use crate::plan::order;
use crate::point::Point;
use crate::program::{Edge, EdgeId, Layout, Program};
use crate::site::{self, Site};

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
    for (value, entry) in values.bound_by.iter_with_ids().filter_map(|(value, entry)| Some((value, (*entry)?))) {
        entries[entry].binds.push(value);
    }
    check_written(program, &entries, &values, lengths)?;
    check_passable(program, &entries, &values)?;
    let skipped = order::skipped_layers(program, plan, &entries, &sources, lengths)?;

    let (mut back_at_edge, mut sources_at) = (program.list_by_edge(Vec::new()), program.list_by_edge(Vec::new()));
    entries.iter().enumerate().for_each(|(i, entry)| back_at_edge[entry.edge].push(i));
    sources.iter().enumerate().for_each(|(i, source)| sources_at[source.edge].push(i));
    // One edge may be two sites (`layers.4.resid_post` is `layers.5.resid_pre`): the earlier layer's taps go first.
    back_at_edge.iter_mut().for_each(|list: &mut Vec<usize>| list.sort_by_key(|&i| (entries[i].site.layer, i)));
    let forward = |list: &Vec<usize>| list.iter().copied().filter(|&i| !entries[i].on_gradient()).collect();
    let at_edge: IdVec<EdgeId, Vec<usize>> = back_at_edge.iter().map(forward).collect();
    let groups = order::row_groups(
        &order::Reach { program, entries: &entries, at_edge: &at_edge, sources: &sources, values: &values },
        lengths.prompts.len(),
    )?;

    let made = |edge: EdgeId| program.edge(edge).made_by + 1;
    let bound = |value: ValueId| values.reads[value].iter().filter_map(|&read| values.bound_by[read]);
    let returned = entries
        .iter()
        .filter(|entry| entry.action.must_run())
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

/// A plan being checked: its taps become entries one by one.
pub(super) struct Compiler<'a> {
    pub program: &'a Program,
    lengths: Lengths<'a>,
    entries: Vec<Entry>,
    pub sources: Vec<Source>,
    passed_over: Vec<Site>,
}

/// Where a tap acts: one site, and what is selected there.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub tap: &'a Tap,
    pub site: Site,
    pub edge: &'a Edge,
    pub columns: &'a Columns,
    pub rows: &'a [Option<Chosen>],
}

impl Place<'_> {
    /// Whether the site is one of attention's scores and weights.
    pub fn on_attention(&self) -> bool {
        self.edge.layout == Layout::QueryKey
    }
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

    pub(super) fn choose(
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
        let place = Place { tap, site, edge, columns: &columns, rows: &rows };
        let action = self.action(&tap.action, place)?;
        Ok(Entry { tap: index, site, edge: edge_id, rows, whole, columns, heads, keys, action, binds: Vec::new() })
    }

    pub(super) fn inner(
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

    /// Checks that a site takes an action, and compiles it there.
    pub(super) fn action(&mut self, action: &Action, place: Place) -> std::result::Result<CompiledAction, String> {
        action.check_site(place)?;
        action.compile(self, place)
    }
}

/// The positions that a tap selects in a row.
pub(super) fn selected(tap: &Tap, prompt: usize, limit: usize) -> std::result::Result<Vec<usize>, String> {
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
