//! Attaches adapters to a model, detaches them, and finds the adapter of each row.

use super::Model;
use crate::adapter::{Adapter, LowRank, RowAdapters, projection};
use crate::error::{Error, Result};
use crate::plan::CompiledPlan;
use crate::program::OpKind;
use crate::remedy::Remedy;
use std::sync::Arc;

/// The adapters of a model.
#[derive(Clone, Default)]
pub(super) struct AttachedAdapters {
    list: Vec<Arc<Adapter>>,
    /// Index of the adapter of rows that name none.
    default: Option<usize>,
}

impl Model {
    /// Returns this model with an adapter that rows can use by its name
    /// ([`RunOptions::adapters`](crate::RunOptions::adapters),
    /// [`GenerateOptions::adapters`](crate::GenerateOptions::adapters)). The weights are shared,
    /// and rows that do not use it give the same bits as before.
    pub fn attach_adapter(&self, adapter: Arc<Adapter>) -> Result<Model> {
        let name = adapter.name();
        if self.adapters().iter().any(|other| other.name() == name) {
            return Err(Error::input(
                format!("an adapter named `{name}` is already attached"),
                "detach it first, or attach this one under another name",
            ));
        }
        adapter.check(self.program())?;
        let mut adapters = AttachedAdapters::clone(&self.adapters);
        adapters.list.push(adapter);
        Ok(Model { adapters: Arc::new(adapters), ..self.clone() })
    }

    /// Returns this model without an adapter. If rows used it by default, they use none.
    pub fn detach_adapter(&self, name: &str) -> Result<Model> {
        let index = self.adapter_index(name)?;
        let default = match self.adapters.default {
            Some(default) if default == index => None,
            default => default.map(|default| default - usize::from(default > index)),
        };
        let mut list = self.adapters.list.clone();
        list.remove(index);
        Ok(Model { adapters: Arc::new(AttachedAdapters { list, default }), ..self.clone() })
    }

    /// Returns this model with an adapter that every row uses unless its call names another
    /// ([`RowAdapters`]); `None` for no adapter. Branches, gradients, prefixes and `unembed` use
    /// it, too.
    pub fn with_adapter(&self, name: Option<&str>) -> Result<Model> {
        let default = name.map(|name| self.adapter_index(name)).transpose()?;
        let list = self.adapters.list.clone();
        Ok(Model { adapters: Arc::new(AttachedAdapters { list, default }), ..self.clone() })
    }

    /// The attached adapters, in the order in which they were attached.
    pub fn adapters(&self) -> &[Arc<Adapter>] {
        &self.adapters.list
    }

    /// Index of the adapter of rows that name none.
    pub(crate) fn default_adapter(&self) -> Option<usize> {
        self.adapters.default
    }

    /// The low-rank update of op `index` by the default adapter.
    pub(crate) fn default_update(&self, index: usize) -> Option<&LowRank> {
        let adapter = &self.adapters()[self.default_adapter()?];
        adapter.update(projection(&self.program().ops()[index].kind)?)?.low_rank.as_ref()
    }

    fn adapter_index(&self, name: &str) -> Result<usize> {
        self.adapters().iter().position(|adapter| adapter.name() == name).ok_or_else(|| {
            let names: Vec<String> = self.adapters().iter().map(|adapter| format!("`{}`", adapter.name())).collect();
            let remedy = match names.is_empty() {
                true => Remedy::AttachAdapter,
                false => format!("attached are {}", names.join(", ")).into(),
            };
            Error::input(format!("no adapter named `{name}` is attached"), remedy)
        })
    }

    /// Finds the adapter of each row of a call; empty if no row has one.
    pub(crate) fn row_adapters(&self, adapters: &RowAdapters, rows: usize) -> Result<Vec<Option<usize>>> {
        let index = |name: &Option<String>| name.as_deref().map(|name| self.adapter_index(name)).transpose();
        let each = match adapters {
            RowAdapters::ModelDefault if self.default_adapter().is_none() => Vec::new(),
            RowAdapters::ModelDefault => vec![self.default_adapter(); rows],
            RowAdapters::All(name) => vec![index(name)?; rows],
            RowAdapters::Each(names) if names.len() == rows => names.iter().map(index).collect::<Result<_>>()?,
            RowAdapters::Each(names) => {
                return Err(Error::input(
                    format!("there are {} adapters for {rows} rows", names.len()),
                    "give one adapter for each row, none included, or one for all rows",
                ));
            }
        };
        Ok(if each.iter().all(Option::is_none) { Vec::new() } else { each })
    }

    /// Rejects values of a plan that run ops of the model (`through`, `unembed`), if a row's
    /// adapter changes these ops and is not the default one, which they use.
    pub(crate) fn check_op_ranges(&self, compiled: &CompiledPlan, adapters: &[Option<usize>]) -> Result<()> {
        let default = self.default_adapter();
        let ranges = compiled.values.op_ranges.iter().flatten();
        let ops: Vec<&OpKind> = ranges.flat_map(|range| &range.ops).map(|&op| &self.program().ops()[op].kind).collect();
        let changes = |adapter: Option<usize>, op: &OpKind| adapter.is_some_and(|at| self.adapters()[at].changes(op));
        let rows = 0..compiled.prompts.len();
        let mut others = rows.map(|row| adapters.get(row).copied().flatten()).filter(|adapter| *adapter != default);
        if others.any(|other| ops.iter().any(|op| changes(other, op) || changes(default, op))) {
            return Err(Error::input(
                "the plan runs ops on values (`through`, `unembed`), and a row's adapter changes these ops",
                "make it the model's default adapter (`with_adapter`), or compute these values in a second call",
            ));
        }
        Ok(())
    }
}
