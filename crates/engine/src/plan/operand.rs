//! What edits write: numbers, vectors, other sites, computed values.

use super::compile::{Compiler, Place, selected};
use super::compiled::{Chosen, Given, Source};
use super::{Columns, FromSite, Operand};
use crate::program::{Edge, Layout};
use crate::site;
use std::sync::Arc;

impl Compiler<'_> {
    pub(super) fn value(&mut self, operand: &Operand, place: Place) -> std::result::Result<Given, String> {
        let Place { edge, columns, rows, .. } = place;
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
                let source = self.source(from, place)?;
                let width = self.sources[source].columns.len();
                if width != columns.len() {
                    return Err(format!("the source is {width} wide, this selection {}", columns.len()));
                }
                Ok(Given::Source(source))
            }
        }
    }

    /// Registers the site that `from` names and says which row reads which.
    pub(super) fn source(&mut self, from: &FromSite, place: Place) -> std::result::Result<usize, String> {
        let Place { tap, site, rows, .. } = place;
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
        if (edge.layout == Layout::QueryKey) != (place.edge.layout == Layout::QueryKey) {
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

/// A vector of exactly this length.
pub(super) fn plain_vector(operand: &Operand, len: usize) -> std::result::Result<Vec<f32>, String> {
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
pub(super) fn unit_vector(operand: &Operand, edge: &Edge, columns: &Columns) -> std::result::Result<Vec<f32>, String> {
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
