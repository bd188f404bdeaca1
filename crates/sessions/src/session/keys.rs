//! Content keys of parts: a hash of everything that their results depend on.

use super::Session;
use crate::dataset::Example;
use crate::hash::Hasher;
use pellucid_models::Result;

/// Number of parts up to which parts are small; larger sessions have larger parts.
const MAX_PARTS: usize = 512;
/// Largest number of examples of a part: it bounds the memory of a run.
const MAX_PART_ROWS: usize = 4096;

impl Session {
    /// Number of examples of a part: a multiple of the batch size.
    pub(super) fn part_rows(&self) -> usize {
        let config = &self.config.config;
        let batch = config.dataset.batch_size.unwrap_or(2).max(1);
        let mut rows = config.output.part_rows.unwrap_or(32).max(1);
        while config.output.part_rows.is_none()
            && rows < MAX_PART_ROWS
            && self.examples.len().div_ceil(rows) > MAX_PARTS
        {
            rows *= 2;
        }
        rows.div_ceil(batch) * batch
    }

    /// The examples of each part.
    pub(super) fn part_examples(&self) -> impl Iterator<Item = &[Example]> {
        self.examples.chunks(self.part_rows())
    }

    /// The content key of each part: model, autoencoders, ops with versions, tokens and labels.
    pub(super) fn part_keys(&self) -> Result<Vec<String>> {
        let config = &self.config.config;
        let mut common = Hasher::default();
        let fingerprints = self.parts.fingerprints()?;
        common.add(env!("CARGO_PKG_VERSION")).add(&fingerprints.model);
        common.add(format!("{:?} {:?} {:?}", config.model.dtype, config.model.kv_dtype, config.model.assume));
        for sae in &fingerprints.saes {
            common.add(&sae.site).add(&sae.fingerprint).add([u8::from(sae.error_term)]);
        }
        for op in self.chain.ops() {
            common.add(op.spec().name.as_ref()).add(op.spec().version.as_ref());
        }
        common.add(format!("{:?} {}", config.dataset.answer.unwrap_or_default(), self.stores_prompts()));
        let options = (&config.concept, &config.intervention, &config.graph, &config.features);
        if options != (&None, &None, &None, &None) {
            common.add(serde_json::to_string(&options).unwrap_or_default());
        }
        if let Some(concept) = &self.concept {
            common.add(&concept.fingerprint);
        }
        let common = common.finish();
        let key = |examples: &[Example]| {
            let mut hasher = Hasher::default();
            hasher.add(&common);
            examples.iter().for_each(|example| self.add_example(&mut hasher, example));
            hasher.finish()
        };
        Ok(self.part_examples().map(key).collect())
    }

    /// Hash of the tokens and labels of all examples.
    pub(super) fn dataset_fingerprint(&self) -> String {
        let mut hasher = Hasher::default();
        self.examples.iter().for_each(|example| self.add_example(&mut hasher, example));
        hasher.finish()
    }

    fn add_example(&self, hasher: &mut Hasher, example: &Example) {
        let bytes = |tokens: &[u32]| tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>();
        hasher.add(example.index.to_le_bytes()).add(example.batch.to_le_bytes()).add(bytes(&example.tokens));
        if example.pads > 0 {
            hasher.add(format!("{} pads", example.pads));
        }
        if self.stores_prompts() {
            hasher.add(&example.prompt);
        }
        for label in &example.labels {
            hasher.add(bytes(label));
        }
        hasher.add(format!("{:?}", example.label));
    }
}
