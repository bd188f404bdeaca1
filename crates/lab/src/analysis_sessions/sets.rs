//! The sessions that the lab measures: the examples, the published workloads, or files.

use crate::{Error, Result, gpt2_shaped, rte};
use serde_json::json;
use std::path::{Path, PathBuf};

/// The example sessions and their data.
const EXAMPLES: [(&str, &str); 5] = [
    ("base.toml", include_str!("../../../../examples/sessions/base.toml")),
    ("sae.toml", include_str!("../../../../examples/sessions/sae.toml")),
    ("attr_grad.toml", include_str!("../../../../examples/sessions/attr_grad.toml")),
    ("attr_ablation.toml", include_str!("../../../../examples/sessions/attr_ablation.toml")),
    ("pronouns.jsonl", include_str!("../../../../examples/sessions/pronouns.jsonl")),
];

/// The published workloads, with their ops.
pub const WORKLOADS: [(&str, &str); 4] = [
    ("base", "logit_diffs_base"),
    ("sae", "logit_diffs_sae"),
    ("attr_grad", "logit_diffs_attr_grad"),
    ("attr_ablation", "logit_diffs_attr_ablation"),
];

/// A session to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredSession {
    /// Its name in the report.
    pub name: String,
    /// Its file.
    pub file: PathBuf,
    /// Whether it is a published workload, which the peer can run too.
    pub is_workload: bool,
}

/// Writes the example sessions into a directory.
pub fn examples(directory: &Path) -> Result<Vec<MeasuredSession>> {
    for (name, text) in EXAMPLES {
        write(&directory.join(name), text)?;
    }
    let sessions = EXAMPLES.iter().filter(|(name, _)| name.ends_with(".toml"));
    Ok(sessions.map(|(name, _)| from_file(&directory.join(name))).collect())
}

/// Writes the published workloads into a directory. `model` is the directory of `gpt2-shaped`.
/// All four attach both SAEs, as the source does.
pub fn workloads(directory: &Path, model: &Path, bos: bool) -> Result<Vec<MeasuredSession>> {
    write(&directory.join("rte.jsonl"), rte::EXAMPLES)?;
    // Paths of a session file are relative to it.
    let model = &std::path::absolute(model).unwrap_or_else(|_| model.to_path_buf());
    let saes = gpt2_shaped::SAE_LAYERS.map(|layer| {
        // Random weights do not reconstruct anything, so there is nothing to test.
        json!({"path": gpt2_shaped::sae_directory(model, layer), "unchecked": true})
    });
    let mut sessions = Vec::new();
    for (name, ops) in WORKLOADS {
        let session = json!({
            "name": name, "ops": ops, "model": {"path": model}, "saes": saes,
            "dataset": {"path": "rte.jsonl", "prompt": rte::PROMPT, "labels": rte::LABELS, "bos": bos, "batch_size": 2},
            "output": {"path": directory.join("runs").join(name)},
        });
        let text = toml::to_string_pretty(&session)
            .map_err(|error| Error::Suite { suite: super::NAME.into(), problem: error.to_string() })?;
        let file = directory.join(format!("{name}.toml"));
        write(&file, &text)?;
        sessions.push(MeasuredSession { is_workload: true, ..from_file(&file) });
    }
    Ok(sessions)
}

/// A session of a file, named for it.
pub fn from_file(file: &Path) -> MeasuredSession {
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    MeasuredSession { name, file: file.to_path_buf(), is_workload: false }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)
        .map_err(|error| Error::File { path: path.display().to_string(), problem: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pellucid_sessions::config::{ConfigSource, read_config};

    #[test]
    fn the_sessions_of_the_lab_are_valid_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let examples = examples(directory.path()).expect("examples");
        assert_eq!(examples.len(), 4);
        let workloads = workloads(directory.path(), Path::new("model"), true).expect("workloads");
        for session in examples.iter().chain(&workloads) {
            let config = read_config(&[ConfigSource::File(session.file.clone())]).expect("a session").config;
            assert_eq!(config.name.as_deref(), Some(session.name.as_str()));
            assert!(config.dataset.path.is_some_and(|path| path.is_file()), "{}", session.name);
        }
        let config = read_config(&[ConfigSource::File(workloads[0].file.clone())]).expect("a session").config;
        assert_eq!((config.saes.len(), config.dataset.bos), (2, Some(true)));
    }
}
