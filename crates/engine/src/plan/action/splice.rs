//! `splice`: the model continues with the reconstruction of an attached autoencoder.

use super::{Action, ActionWriter, CompiledAction};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use crate::point::SaePart;
use serde_json::{Value, json};

/// The value that an autoencoder puts in place of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Splice {
    /// The reconstruction.
    Recon,
    /// The reconstruction plus the error of the unedited features: without an edit, the activation
    /// itself.
    ReconAndError,
}

impl Splice {
    fn name(self) -> &'static str {
        match self {
            Splice::Recon => "recon",
            Splice::ReconAndError => "recon+error",
        }
    }
}

pub(super) fn read(value: Value, _: &ValueParser) -> Result<Action, String> {
    let both = [Splice::Recon, Splice::ReconAndError];
    match &value {
        Value::Bool(true) => Some(Action::Splice(Splice::Recon)),
        Value::String(name) => both.into_iter().find(|splice| splice.name() == name).map(Action::Splice),
        _ => None,
    }
    .ok_or_else(|| "`splice` must be \"recon\" (or true) or \"recon+error\"".into())
}

pub(super) fn write(splice: &Splice, _: &ActionWriter) -> Result<Value, String> {
    Ok(json!(splice.name()))
}

pub(super) fn compile(splice: &Splice, _: &mut Compiler, target: TapSite) -> Result<CompiledAction, String> {
    if target.site.sae != Some(SaePart::Out) {
        return Err("`splice` names the site where an SAE is attached, such as layers.5.resid_post".into());
    }
    if target.tap.heads.is_some() || target.tap.units.is_some() {
        return Err("`splice` replaces whole activations; it has no heads or units".into());
    }
    Ok(CompiledAction::Splice(*splice))
}
