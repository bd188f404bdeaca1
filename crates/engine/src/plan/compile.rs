//! Compiles a plan: resolves names, checks shapes and orders dependencies.

use super::check_gradients::{check_differentiable, check_edit_shapes};
use super::compile_value::compile_values;
use super::compiled::{CompiledPlan, CompiledTap, Lengths, SelectedPositions, Source};
use super::sae_uses::{TapsByEdge, sae_uses};
use super::select::check_distinct;
use super::select_experts::SelectedExperts;
use super::when::{Condition, Consequence};
use super::{Action, Columns, CompiledAction, CompiledReduce, Phase, Plan, Positions, Reduce, Tap, ValueId};
use crate::error::{Error, MAX_PROBLEMS, Result};
use crate::ids::IdVec;
use crate::plan::row_groups;
use crate::point::{Point, SaePart};
use crate::program::{Edge, EdgeId, Layout, Program};
use crate::remedy::Remedy;
use crate::site::{self, Site, shorten};

/// Compiles a plan for a program and rows of given lengths. With `logits` all ops run, even if the
/// plan needs fewer.
pub(crate) fn compile(program: &Program, plan: &Plan, lengths: Lengths, logits: bool) -> Result<CompiledPlan> {
    let mut compiler = Compiler { program, lengths, taps: Vec::new(), sources: Vec::new(), passed_over: Vec::new() };
    let problems = plan.taps.iter().enumerate().filter_map(|(index, tap)| compiler.tap(index, tap, plan).err());
    let problems: Vec<Error> = problems.take(MAX_PROBLEMS).collect();
    if !problems.is_empty() {
        return Err(Error::all(problems));
    }
    let Compiler { taps: mut entries, sources, passed_over, .. } = compiler;
    let values = compile_values(program, plan, &entries, lengths)?;
    for (value, entry) in values.bound_by.iter_with_ids().filter_map(|(value, entry)| Some((value, (*entry)?))) {
        entries[entry].binds.push(value);
    }
    check_edit_shapes(program, &entries, &values, lengths)?;
    check_differentiable(program, &entries, &values)?;
    let skipped = row_groups::skipped_layers(program, plan, &entries, &sources, lengths)?;

    let (mut backward_at_edge, mut sources_at) = (program.list_by_edge(Vec::new()), program.list_by_edge(Vec::new()));
    entries.iter().enumerate().for_each(|(i, entry)| backward_at_edge[entry.edge].push(i));
    sources.iter().enumerate().for_each(|(i, source)| sources_at[source.edge].push(i));
    // One edge can be two sites (`layers.4.resid_post` is `layers.5.resid_pre`): the earlier
    // layer's taps apply first.
    backward_at_edge.iter_mut().for_each(|list: &mut Vec<usize>| list.sort_by_key(|&i| (entries[i].site.layer, i)));
    let forward = |list: &Vec<usize>| list.iter().copied().filter(|&i| !entries[i].on_gradient()).collect();
    let at_edge: IdVec<EdgeId, Vec<usize>> = backward_at_edge.iter().map(forward).collect();
    let groups = row_groups::row_groups(
        &row_groups::RowDependencies { program, taps: &entries, at_edge: &at_edge, sources: &sources, values: &values },
        lengths.prompts.len(),
    )?;

    let ops_up_to = |edge: EdgeId| program.edge(edge).producer + 1;
    let bound = |value: ValueId| values.reads[value].iter().filter_map(|&read| values.bound_by[read]);
    let returned = entries
        .iter()
        .filter(|entry| entry.action.must_run())
        .chain(values.save.iter().chain(&values.metrics).flat_map(|&value| bound(value)).map(|entry| &entries[entry]));
    let mut ops = returned.map(|entry| ops_up_to(entry.edge)).max().unwrap_or(0);
    // An edit that runs needs the activation that it writes, which in another row can be a later
    // op.
    while let Some(more) = entries
        .iter()
        .filter(|entry| ops_up_to(entry.edge) <= ops)
        .flat_map(|entry| {
            let source = entry.source().map(|source| sources[source].edge);
            let reads = entry.value().into_iter().flat_map(&bound).map(|entry| entries[entry].edge);
            source.into_iter().chain(reads)
        })
        .map(ops_up_to)
        .find(|&op| op > ops)
    {
        ops = more;
    }
    if logits {
        ops = program.ops().len();
    }
    let by_edge =
        TapsByEdge { taps: &entries, at_edge: &at_edge, backward_at_edge: &backward_at_edge, sources_at: &sources_at };
    let sae_uses = sae_uses(program, &by_edge);
    let prompts = lengths.prompts.to_vec();
    Ok(CompiledPlan {
        taps: entries,
        at_edge,
        backward_at_edge,
        values,
        prompts,
        sources,
        sources_at,
        ops,
        groups,
        skipped,
        sae_uses,
        passed_over,
    })
}

/// A plan under compilation.
pub(super) struct Compiler<'a> {
    pub program: &'a Program,
    lengths: Lengths<'a>,
    taps: Vec<CompiledTap>,
    pub sources: Vec<Source>,
    passed_over: Vec<Site>,
}

/// One site that a tap matches, and the tap's selection there.
#[derive(Clone, Copy)]
pub(super) struct TapSite<'a> {
    pub tap: &'a Tap,
    pub site: Site,
    pub edge: &'a Edge,
    pub columns: &'a Columns,
    pub rows: &'a [Option<SelectedPositions>],
}

impl TapSite<'_> {
    /// Whether the site is `attn_scores` or `attn_probs`.
    pub fn on_attention(&self) -> bool {
        self.edge.layout == Layout::QueryKey
    }
}

impl Compiler<'_> {
    fn tap(&mut self, index: usize, tap: &Tap, plan: &Plan) -> Result<()> {
        let refuse =
            |problem: String, remedy: Remedy| Error::Plan { tap: index, site: shorten(&tap.site), problem, remedy };
        let fail = |problem: String, remedy: &str| refuse(problem, remedy.into());
        // `skip` takes a layer, `layers.5`, which stands for its output `layers.5.resid_post`.
        let skips = matches!(tap.action, Action::Skip(_));
        let is_site = skips && site::find(self.program, &tap.site).is_ok();
        let text = if skips && !is_site { format!("{}.{}", tap.site, Point::ResidPost) } else { tap.site.clone() };
        if skips && is_site && !tap.site.ends_with(Point::ResidPost.name()) {
            return Err(fail("only whole layers can be skipped".into(), "name the layer, such as layers.5"));
        }
        // `splice` takes the site of an autoencoder, which stands for its output.
        let splices = matches!(tap.action, Action::Splice(_));
        let text = if splices && !text.contains("sae") { format!("{text}/sae.{}", SaePart::Out.name()) } else { text };
        let matches = site::find(self.program, &text)
            .map_err(|error| refuse(error.to_string(), error.remedy().cloned().unwrap_or(Remedy::ListSites)))?;
        self.passed_over.extend(matches.passed_over);
        if let Action::Grad { metric, .. } = &tap.action
            && *metric >= plan.metrics.len()
        {
            let problem = format!("there is no metric {metric}: the plan has {} metrics", plan.metrics.len());
            return Err(fail(problem, "add a metric: a scalar value to differentiate"));
        }
        let rows = self
            .rows(tap)
            .map_err(|problem| fail(problem, "rows count the inputs of the call from 0; positions count tokens"))?;
        for site in matches.sites {
            let condition = self.compile_condition(index, tap, site, &rows);
            let entry = condition.and_then(|condition| {
                // The condition comes directly before its tap.
                let condition = condition.map(|condition| {
                    self.taps.push(condition);
                    self.taps.len() - 1
                });
                Ok(CompiledTap { condition, ..self.compile_tap(index, tap, site, rows.clone())? })
            });
            let entry = entry.map_err(|problem| {
                let here = site.to_string();
                let problem = if here == tap.site { problem } else { format!("{here}: {problem}") };
                refuse(problem, Remedy::SiteShapes("docs/plans.md describes each action"))
            })?;
            self.taps.push(entry);
        }
        Ok(())
    }

    /// Compiles the condition of a tap at one of its sites, for the positions of the tap. `stop`
    /// and `mark` are conditions themselves, so they need none.
    fn compile_condition(
        &self,
        index: usize,
        tap: &Tap,
        site: Site,
        rows: &[Option<SelectedPositions>],
    ) -> std::result::Result<Option<CompiledTap>, String> {
        let Some(when) = &tap.when else { return Ok(None) };
        match &tap.action {
            Action::Stop | Action::Mark(_) => return Ok(None),
            Action::Read => return Err("`as` reads every position, so it takes no `when`".into()),
            Action::Grad { .. } => return Err("a gradient takes no `when`".into()),
            Action::Skip(_) => return Err("`skip` takes no `when`; set the layer's resid_post instead".into()),
            Action::Call(_) => return Err("a closure takes no `when`; test the condition in the closure".into()),
            Action::Capture(Some(Reduce::Mean)) => return Err("a mean takes no `when`".into()),
            _ => {}
        }
        let found = site::find(self.program, &when.site).map_err(|error| format!("`when`: {error}"))?.sites;
        let tested = match found[..] {
            [only] => only,
            // A pattern as site of the tap and of the condition pairs the sites by layer.
            _ => *found
                .iter()
                .find(|tested| tested.layer == site.layer)
                .ok_or("the pattern in `when` matches no site of this layer")?,
        };
        let on_attention = |site: Site| {
            let edge = self.program.edge_of(site).map(|edge| self.program.edge(edge));
            edge.is_some_and(|edge| edge.layout == Layout::QueryKey)
        };
        if on_attention(site) || on_attention(tested) {
            return Err("attention sites take no `when`".into());
        }
        let edge = self.program.edge_of(tested).ok_or("the site in `when` has no edge")?;
        if self.program.edge(edge).integer {
            return Err("`when` cannot test expert indices; test router_logits instead".into());
        }
        let condition = Condition::new(when, self.program.edge(edge).width, Consequence::Apply)?;
        Ok(Some(CompiledTap {
            tap: index,
            site: tested,
            edge,
            rows: rows.to_vec(),
            whole: false,
            columns: condition.columns(),
            experts: None,
            heads: Vec::new(),
            keys: None,
            action: CompiledAction::Condition(condition),
            condition: None,
            binds: Vec::new(),
        }))
    }

    /// Returns the selected positions of each row.
    fn rows(&self, tap: &Tap) -> std::result::Result<Vec<Option<SelectedPositions>>, String> {
        check_distinct(tap.rows.as_deref().unwrap_or_default(), "row")?;
        self.select(tap.rows.as_deref(), |prompt, limit| selected_positions(tap, prompt, limit))
    }

    /// Returns for each row its selected positions, if `rows` contains it; `positions` takes the
    /// prompt length and the limit of a row.
    pub(super) fn select(
        &self,
        rows: Option<&[usize]>,
        positions: impl Fn(usize, usize) -> std::result::Result<Vec<usize>, String>,
    ) -> std::result::Result<Vec<Option<SelectedPositions>>, String> {
        let count = self.lengths.prompts.len();
        if let Some(row) = rows.and_then(|rows| rows.iter().find(|&&row| row >= count)) {
            return Err(format!("there is no row {row}: this call has {count} inputs"));
        }
        let mut selected = vec![None; count];
        for (row, slot) in selected.iter_mut().enumerate() {
            if rows.is_none_or(|rows| rows.contains(&row)) {
                let positions = positions(self.lengths.prompts[row], self.lengths.limits[row])
                    .map_err(|problem| format!("row {row}: {problem}"))?;
                *slot = Some(SelectedPositions::new(positions)?).filter(|positions| positions.len() > 0);
            }
        }
        Ok(selected)
    }

    fn compile_tap(
        &mut self,
        index: usize,
        tap: &Tap,
        site: Site,
        rows: Vec<Option<SelectedPositions>>,
    ) -> std::result::Result<CompiledTap, String> {
        let edge_id = self.program.edge_of(site).ok_or("the site has no edge")?;
        let edge = self.program.edge(edge_id);
        let (columns, heads, experts) = match &tap.experts {
            Some(experts) => {
                let (columns, experts) = SelectedExperts::new(site, edge, tap, experts)?;
                (columns, Vec::new(), experts)
            }
            None => {
                let (columns, heads) = self.columns_and_heads(edge, tap.heads.as_deref(), tap.units.as_deref())?;
                (columns, heads, None)
            }
        };
        let keys = match &tap.keys {
            Some(_) if edge.layout != Layout::QueryKey => {
                return Err("`keys` selects key positions of attn_scores and attn_probs only".into());
            }
            Some(keys) => Some(self.keys(keys)?),
            None => None,
        };
        let everywhere = rows.iter().zip(self.lengths.limits).all(|(row, &limit)| {
            row.as_ref().is_some_and(|chosen| chosen.len() == limit && chosen.index_of(0) == Some(0))
        });
        let whole = everywhere
            && tap.when.is_none()
            && tap.positions == Positions::All
            && matches!(columns, Columns::All(_))
            && edge.layout != Layout::QueryKey;
        let target = TapSite { tap, site, edge, columns: &columns, rows: &rows };
        let action = self.action(&tap.action, target)?;
        let selects_experts = match &action {
            CompiledAction::Edit(_) | CompiledAction::Capture(CompiledReduce::Whole) => true,
            CompiledAction::Capture(_) if experts.is_some() => {
                return Err("`experts` with `reduce`: capture the experts whole, and reduce the result".into());
            }
            _ => false,
        };
        if experts.is_some() && !selects_experts {
            return Err("`experts` selects slots to edit or capture; for other actions, read the whole site with expert_indices and pick its slots from the result".into());
        }
        Ok(CompiledTap {
            tap: index,
            site,
            edge: edge_id,
            rows,
            whole,
            columns,
            experts,
            heads,
            keys,
            action,
            condition: None,
            binds: Vec::new(),
        })
    }

    /// Resolves a selection of heads or units: columns, and heads for attention sites.
    pub(super) fn columns_and_heads(
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
        // The width of an attention edge is its number of heads.
        let as_units = Columns::new(edge, None, heads).map_err(|problem| problem.replace("unit", "head"))?;
        Ok((as_units, heads.map_or_else(|| (0..edge.width).collect(), <[usize]>::to_vec)))
    }

    fn keys(&self, keys: &Positions) -> std::result::Result<Vec<Vec<usize>>, String> {
        self.lengths
            .prompts
            .iter()
            .zip(self.lengths.limits)
            .map(|(&prompt, &limit)| {
                let selected = keys.resolve(prompt, limit)?;
                check_distinct(&selected, "key")?;
                Ok(selected)
            })
            .collect()
    }

    /// Checks that an action is allowed at a site, then compiles it.
    pub(super) fn action(&mut self, action: &Action, target: TapSite) -> std::result::Result<CompiledAction, String> {
        action.check_site(target)?;
        action.compile(self, target)
    }
}

/// Returns the positions that a tap selects in a row.
pub(super) fn selected_positions(tap: &Tap, prompt: usize, limit: usize) -> std::result::Result<Vec<usize>, String> {
    let mut positions = tap.positions.resolve(prompt, limit)?;
    match tap.phase {
        Phase::All => {}
        Phase::Prefill => positions.retain(|&p| p < prompt),
        Phase::Decode => positions.retain(|&p| p >= prompt),
    }
    if let Some(steps) = &tap.steps {
        // Step k is position `prompt - 1 + k`. Negative steps count from the last step.
        let steps =
            steps.resolve(limit + 1 - prompt, limit + 1 - prompt).map_err(|problem| format!("steps: {problem}"))?;
        check_distinct(&steps, "step")?;
        positions.retain(|&p| p + 1 >= prompt && steps.contains(&(p + 1 - prompt)));
    }
    Ok(positions)
}
