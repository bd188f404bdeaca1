//! Selection by expert: the slots of each token that hold a given expert.
//!
//! A token's slots follow its own choices, so the selected columns differ from token to token. A
//! tap with `experts` therefore selects columns of one slot. Its edit applies to every slot whose
//! expert is in the list; its capture has one line per expert of the list.

use super::select::check_indices;
use super::{Columns, Tap};
use crate::point::Point;
use crate::program::{Edge, Layout};
use crate::site::Site;

/// The experts of a tap on the weights or outputs of chosen experts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SelectedExperts {
    experts: Vec<usize>,
    /// Chosen experts per token.
    pub slots: usize,
    /// Columns per slot.
    pub width: usize,
}

impl SelectedExperts {
    /// Resolves `experts` of a tap to columns of an edge: of one slot, or of `router_logits`, which
    /// has one column per expert. Fails if the edge has no experts or lacks one of the list.
    pub(super) fn new(
        site: Site,
        edge: &Edge,
        tap: &Tap,
        experts: &[usize],
    ) -> Result<(Columns, Option<SelectedExperts>), String> {
        if tap.heads.is_some() {
            return Err("a tap selects experts or heads (slots), not both".into());
        }
        if site.point == Point::RouterLogits {
            if tap.units.is_some() {
                return Err("the units of router_logits are its experts: select one of both".into());
            }
            check_indices(experts, edge.width, "expert")?;
            return Ok((Columns::new(edge, None, Some(experts))?, None));
        }
        if edge.integer {
            return Err(
                "`experts` does not select from expert_indices; use `replace`, such as {\"replace\": {\"5\": 2}}"
                    .into(),
            );
        }
        let Some(routed) = edge.routed else {
            return Err(
                "this site has no experts; `experts` selects from router_logits, expert_weights and expert_out".into(),
            );
        };
        check_indices(experts, routed.experts, "expert")?;
        let width = edge.width / routed.slots;
        let columns = match &tap.units {
            Some(units) => Columns::new(&Edge { width, layout: Layout::Flat, ..edge.clone() }, None, Some(units))?,
            None => Columns::of_range(0..width),
        };
        Ok((columns, Some(SelectedExperts { experts: experts.to_vec(), slots: routed.slots, width })))
    }

    /// Returns the slots of a token that hold one of the experts. `choices` are the chosen experts
    /// of all tokens, `[tokens, slots]`.
    pub fn slots_of<'a>(&'a self, choices: &'a [f32], token: usize) -> impl Iterator<Item = usize> + 'a {
        let own = choices.iter().skip(token * self.slots).take(self.slots).enumerate();
        own.filter(|(_, expert)| self.experts.contains(&(**expert as usize))).map(|(slot, _)| slot)
    }

    /// Number of selected experts.
    pub fn len(&self) -> usize {
        self.experts.len()
    }

    /// Appends to `out` the selected columns of each expert of the list, `[experts, columns]`: of
    /// the first slot of the token that holds it, zeros if none does.
    pub fn gather(&self, columns: &Columns, choices: &[f32], index: usize, token: &[f32], out: &mut Vec<f32>) {
        let own = &choices[index * self.slots..][..self.slots];
        for &expert in &self.experts {
            match own.iter().position(|&chosen| chosen as usize == expert) {
                Some(slot) => columns.gather(&token[slot * self.width..][..self.width], out),
                None => out.resize(out.len() + columns.len(), 0.0),
            }
        }
    }

    /// Returns the elements of one slot of a token.
    pub fn slot_mut<'a>(&self, token: &'a mut [f32], slot: usize) -> &'a mut [f32] {
        &mut token[slot * self.width..][..self.width]
    }
}
