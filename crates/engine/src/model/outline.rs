//! Models without weights: programs whose calls run in another process.
//!
//! Everything that reads the op list works as in the process that has the weights: sites, plans,
//! checks. A call that would compute is refused.

use super::Model;
use super::attach::AttachedSaes;
use crate::backend::cpu::Cpu;
use crate::error::{Error, Result};
use crate::program::{Program, SaeAttachment};
use crate::sae::AttachedSae;
use crate::weights::Weights;
use pellucid_kernels::Pool;
use pellucid_kernels::attention::KvFormat;
use std::sync::Arc;

impl Model {
    /// Returns a model without weights, with autoencoders attached as in the model that has them.
    pub fn without_weights(program: Program, saes: &[SaeAttachment]) -> Result<Model> {
        let attach = |program: Program, (index, at): (usize, &SaeAttachment)| program.attach(at, index);
        let program = saes.iter().enumerate().try_fold(program, attach)?;
        Ok(Model {
            program: Arc::new(program),
            weights: Arc::new(Weights::new(Vec::new())),
            backend: Arc::new(Cpu),
            pool: Pool::global(),
            plans: Arc::default(),
            kv: KvFormat::default(),
            saes: Arc::<AttachedSaes>::default(),
            adapters: Arc::default(),
        })
    }

    /// Whether the model has its weights.
    pub fn has_weights(&self) -> bool {
        !self.weights.is_empty() || self.program.weights().is_empty()
    }

    /// Refuses to compute without weights.
    pub(crate) fn check_weights(&self) -> Result<()> {
        match self.has_weights() {
            true => Ok(()),
            false => Err(Error::input(
                "the weights of this model are not in this process",
                "call the server that has them, or load the model here",
            )),
        }
    }

    /// Where the attached autoencoders are attached, in the order of [`saes`](Self::saes).
    pub fn sae_attachments(&self) -> Vec<SaeAttachment> {
        let of = |(index, attached): (usize, &AttachedSae)| {
            let first = attached.set.as_ref().map_or(index, |set| set.start);
            let earlier = (first..index).map(|layer| (self.saes()[layer].write, layer, index - layer));
            attached.attachment(earlier.collect())
        };
        self.saes().iter().enumerate().map(of).collect()
    }
}
