//! Ops and their schemas.

use super::batch::{AnalysisBatch, OpContext};
use crate::table::DataType;
use pellucid_models::Result;
use serde::Serialize;
use std::borrow::Cow;

/// Where a field of a batch is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Column of the table `examples`: one row per example.
    Example,
    /// Column of the table `latents`: one row per example and active latent.
    Latent,
    /// Only in memory, for later ops of the chain.
    Memory,
}

/// A field that an op reads or writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Field {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Where it is kept.
    pub place: Place,
    /// Type of its values; `None` for fields in memory.
    pub dtype: Option<DataType>,
    /// For inputs: whether the op runs without it.
    pub optional: bool,
}

impl Field {
    /// A field of each example.
    pub const fn example(name: &'static str, dtype: DataType) -> Field {
        Field { name: Cow::Borrowed(name), place: Place::Example, dtype: Some(dtype), optional: false }
    }

    /// A field of each active latent.
    pub const fn latent(name: &'static str, dtype: DataType) -> Field {
        Field { name: Cow::Borrowed(name), place: Place::Latent, dtype: Some(dtype), optional: false }
    }

    /// A field in memory.
    pub const fn memory(name: &'static str) -> Field {
        Field { name: Cow::Borrowed(name), place: Place::Memory, dtype: None, optional: false }
    }
}

/// Requirements of an op in addition to its inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Needs {
    /// At least one attached autoencoder.
    pub saes: bool,
    /// A backward pass.
    pub gradients: bool,
}

/// Description of an op: its name, schema and needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpSpec {
    /// The name.
    pub name: Cow<'static, str>,
    /// Other accepted names.
    pub aliases: &'static [&'static str],
    /// Part of the content key: a change of the op's results changes it.
    pub version: Cow<'static, str>,
    /// One sentence about the result.
    pub about: Cow<'static, str>,
    /// Fields that it reads.
    pub inputs: Cow<'static, [Field]>,
    /// Fields that it writes.
    pub outputs: Cow<'static, [Field]>,
    /// Its other requirements.
    pub needs: Needs,
}

/// A step of an analysis: reads fields of a batch and adds others.
pub trait Op: Send + Sync {
    /// Its description.
    fn spec(&self) -> &OpSpec;

    /// Runs it on a batch.
    fn run(&self, context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()>;

    /// Whether it may read the session's autoencoders. If no op does, they are not loaded.
    fn reads_saes(&self) -> bool {
        true
    }
}

/// An op of the table in `ops/mod.rs`.
pub(super) struct BuiltinOp {
    pub spec: OpSpec,
    pub run: fn(&OpContext<'_>, &mut AnalysisBatch) -> Result<()>,
}

impl Op for &'static BuiltinOp {
    fn spec(&self) -> &OpSpec {
        &self.spec
    }

    fn run(&self, context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
        (self.run)(context, batch)
    }

    fn reads_saes(&self) -> bool {
        // A cache holds latents, if there are any.
        self.spec.needs.saes || self.spec.outputs.iter().any(|field| field.name == "cache")
    }
}
