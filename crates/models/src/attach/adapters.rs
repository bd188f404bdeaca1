//! Attaches LoRA adapters to a loaded model. Rows name the one that they use; see
//! [`pellucid_engine::adapter`].

use crate::adapter::{Adapter, AdapterRecord, base_of};
use crate::error::{Error, Result};
use crate::model::LoadedModel;
use pellucid_engine::Adapter as EngineAdapter;
use pellucid_kernels::Pool;
use std::path::Path;
use std::sync::Arc;

impl LoadedModel {
    /// Reads a LoRA adapter in PEFT's layout and attaches it under a name, without merging it: the
    /// weights are shared and keep their storage, and each row of a call names its adapter or none
    /// ([`RowAdapters`](pellucid_engine::RowAdapters)).
    ///
    /// # Errors
    /// If the name is taken, if a tensor does not fit this model, and for adapters that only a
    /// merge can apply (DoRA, embeddings, fully trained modules, experts): load the model with
    /// [`LoadOptions::adapters`](crate::LoadOptions::adapters) instead.
    pub fn attach_adapter(&mut self, name: &str, directory: &Path) -> Result<AdapterRecord> {
        let Some(names) = &self.names else {
            return Err(Error::usage(
                format!("{} has no files, so the tensors of an adapter have no meaning for it", self.name),
                "load a model directory or a GGUF file; the engine's `Model::attach_adapter` takes matrices",
            ));
        };
        let adapter = Adapter::open(directory)?;
        let updates = adapter.unmerged(&self.model, names, &Pool::global())?;
        let attached = Arc::new(EngineAdapter::new(name, updates));
        self.model = self.model.attach_adapter(attached.clone())?;
        let record = AdapterRecord {
            name: name.to_owned(),
            path: directory.to_owned(),
            base: base_of(directory)?,
            projections: attached.len(),
            rank: attached.max_rank(),
            bytes: attached.bytes(),
        };
        self.adapter_records.push(record.clone());
        Ok(record)
    }

    /// Detaches an adapter and frees its matrices once no call uses them.
    pub fn detach_adapter(&mut self, name: &str) -> Result<()> {
        self.model = self.model.detach_adapter(name)?;
        self.adapter_records.retain(|record| record.name != name);
        Ok(())
    }

    /// The attached adapters, in the order in which they were attached.
    pub fn adapters(&self) -> &[AdapterRecord] {
        &self.adapter_records
    }
}
