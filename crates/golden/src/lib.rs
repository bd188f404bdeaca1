//! The golden cases: tiny models with what `transformers` computed from them (see tests/golden/README.md at the root).
//!
//! The test crates depend on this one under the name `golden`. It is never published.

mod case_file;
pub mod models_page;
pub mod temp_models;
pub mod weights;

pub use case_file::{CaseFile, Tensors};
use pellucid_engine::architecture::Rope;
use pellucid_engine::{Plan, Positions, Run, RunOptions, Site, Tap};
use pellucid_models::{LoadOptions, LoadedModel};
use std::collections::HashMap;
use std::path::PathBuf;

/// A case: the model and its reference tensors.
pub struct Case {
    /// Its name, usually the model type and a switch of it.
    pub name: String,
    /// The model.
    pub loaded: LoadedModel,
    /// The reference tensors by name: shape and values. tests/golden/generate.py lists them.
    pub reference: Tensors,
    /// The text that the reference was computed from.
    pub ids: Vec<u32>,
}

/// The committed golden data.
fn committed_data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

/// The directory of cases and models: the committed one, or another of the same form that `PELLUCID_GOLDEN` names
/// (tests/golden/generate.py makes them).
fn root() -> PathBuf {
    std::env::var_os("PELLUCID_GOLDEN").map_or_else(committed_data, PathBuf::from)
}

/// A quantized checkpoint or adapter: a directory as it would be published.
pub fn quantized(name: &str) -> PathBuf {
    committed_data().join("quantised").join(name)
}

/// The model of a case: a directory as it would be published. Most are made from the case's file when they are first asked for, since
/// weights are not committed but follow from their names.
pub fn path(name: &str) -> PathBuf {
    committed(name).unwrap_or_else(|| weights::made(name))
}

/// The directory of a case that is committed as one, too, for the examples in the documentation.
pub fn committed(name: &str) -> Option<PathBuf> {
    Some(root().join("models").join(name)).filter(|directory| directory.is_dir())
}

/// The names of every case there is; at least one for each native family.
pub fn names() -> Vec<String> {
    let files =
        std::fs::read_dir(case_file::directory()).expect("golden cases").map(|entry| entry.expect("an entry").path());
    let mut names: Vec<String> =
        files.filter_map(|file| Some(file.file_stem()?.to_string_lossy().into_owned())).collect();
    names.sort();
    assert!(!names.is_empty(), "the golden cases are missing");
    names
}

/// The names of one case of each model type, the plainest there is: for tests that take long.
pub fn one_per_type() -> Vec<String> {
    let model_type = |name: &String| CaseFile::read(name).config["model_type"].as_str().expect("a type").to_owned();
    let mut names = names();
    names.sort_by_key(|name| (name.len(), name.clone()));
    let mut plainest: HashMap<String, String> = HashMap::new();
    for name in names {
        plainest.entry(model_type(&name)).or_insert(name);
    }
    let mut names: Vec<String> = plainest.into_values().collect();
    names.sort();
    names
}

/// Every case there is.
pub fn all() -> Vec<Case> {
    names().iter().map(|name| case(name)).collect()
}

/// A case by its name.
pub fn case(name: &str) -> Case {
    open(name).unwrap_or_else(|e| panic!("{e}"))
}

/// A case, or why its model does not load.
pub fn open(name: &str) -> Result<Case, String> {
    let loaded = LoadedModel::open(&path(name), &LoadOptions::default(), &mut |_| {})
        .map_err(|error| format!("{name}: {error}"))?;
    let reference = CaseFile::read(name).reference();
    let ids = reference["ids"].1.iter().map(|&x| x as u32).collect();
    Ok(Case { name: name.into(), loaded, reference, ids })
}

impl Case {
    /// How many layers the model has.
    pub fn layers(&self) -> usize {
        self.loaded.model.program().architecture().layers.len()
    }

    /// The first site that a name or pattern means.
    pub fn site(&self, text: &str) -> Site {
        self.loaded.model.find(text).unwrap_or_else(|e| panic!("{}: {e}", self.name)).sites[0]
    }

    /// Runs rows under a plan.
    pub fn run(&self, inputs: &[Vec<u32>], plan: &Plan) -> Run {
        self.loaded.model.run(inputs, plan, &RunOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    /// The values of sites for the case's own text.
    pub fn capture(&self, sites: &[&str]) -> Vec<Vec<f32>> {
        let run = self.run(std::slice::from_ref(&self.ids), &Plan::capture(sites.iter().copied()));
        run.captures.iter().map(|capture| capture.array.values().to_vec()).collect()
    }

    /// Whether any layer has softmax attention, and so weights to look into.
    pub fn attends(&self) -> bool {
        self.loaded.model.find("layers.*.attn_probs").is_ok()
    }

    /// Whether a row decoded from `prompt` tokens to `total` is turned as a run over the whole text turns it. Rotations for
    /// long rows depend on the length that a row has when a token is computed: by definition (and in the reference) keys
    /// in the cache keep the angles of a shorter row than a run over the whole text has.
    pub fn decodes_as_whole(&self, prompt: usize, total: usize) -> bool {
        let ropes = &self.loaded.model.program().architecture().ropes;
        let turns = |rope: &Rope, length: usize| (rope.at_length(length).to_vec(), rope.amplitude_at(length));
        ropes.iter().all(|rope| (prompt..=total).all(|length| turns(rope, length) == turns(rope, total)))
    }

    /// Every site of the model except attention matrices, for plans that look at everything.
    pub fn token_sites(&self) -> Vec<String> {
        let sites = self.loaded.model.program().sites().map(|site| site.to_string());
        sites.filter(|site| !site.contains("attn_scores") && !site.contains("attn_probs")).collect()
    }
}

/// The largest difference, infinities being equal to themselves.
pub fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "different lengths");
    a.iter()
        .zip(b)
        .map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() })
        .fold(0.0, |most, d| if d.is_nan() { f32::INFINITY } else { most.max(d) })
}

/// A tap that captures the logits at the last position of each row.
pub fn last_logits() -> Tap {
    Tap::new("logits", pellucid_engine::Action::Capture(None)).positions(Positions::Last)
}
