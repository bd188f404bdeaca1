//! A fingerprint of a model, to notice that vectors were extracted from another one.

use pellucid_engine::{Model, WeightKind};
use sha2::{Digest, Sha256};

/// Returns 16 hexadecimal digits that depend on the model's dimensions and on its vector weights
/// (norm gains and biases).
///
/// Vector weights are f32 in memory whatever the dtype of the matrices, so the same model has the
/// same fingerprint under every `dtype`. Matrices are not hashed: a merged adapter that changes
/// only matrices keeps the fingerprint.
pub fn fingerprint(model: &Model) -> String {
    let program = model.program();
    let architecture = program.architecture();
    let mut hash = Sha256::new();
    hash.update(format!(
        "{} {} {} {}",
        architecture.family,
        architecture.layers.len(),
        architecture.width,
        architecture.vocab
    ));
    for id in program.weight_ids().filter(|&id| program.weight(id).kind == WeightKind::Vector) {
        hash.update(&program.weight(id).name);
        for value in model.weights().vector(id) {
            hash.update(value.to_le_bytes());
        }
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
