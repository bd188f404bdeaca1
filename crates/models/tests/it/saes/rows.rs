//! Rows with features keep their bits in any company: batches, chunks, decoding, shared passes.

use super::{FEATURES, attached, number, run};
use crate::test_plans::{at, bits, capture, plan};
use pellucid_engine::sae::SaeKind;
use pellucid_engine::{Action, Batch, Control, GenerateOptions, Operand, Plan, RunOptions, Splice, Tap};

fn plans(site: &str) -> Vec<Plan> {
    let acts = format!("{site}/sae.acts");
    let steer = Tap::new(&acts, Action::Add { operand: Operand::Number(1.5), scale: 1.0 }).units([7]);
    vec![
        Plan::default(),
        plan([capture(&acts)]),
        plan([Tap::new(site, Action::Splice(Splice::Recon)), capture(&acts), capture("layers.1.resid_post")]),
        plan([steer, capture(&acts), capture("layers.1.resid_post")]),
        plan([
            Tap::new(&acts, Action::Zero).units([1, 2, 3]).positions(at("1:3")),
            capture("logits").positions(at("-1")),
        ]),
    ]
}

#[test]
fn a_row_has_the_same_bits_alone_in_a_batch_and_in_chunks() {
    for name in golden::one_per_type() {
        let case = golden::case(&name);
        let model = attached(&case, SaeKind::Relu, "layers.0.resid_post");
        let rows = [case.ids[..4].to_vec(), case.ids.clone(), case.ids[2..].to_vec()];
        for plan in plans("layers.0.resid_post") {
            let together = run(&model, &rows, &plan);
            let chunked =
                model.run(&rows, &plan, &RunOptions { chunk: Some(2), ..RunOptions::default() }).expect("chunks");
            for (row, tokens) in rows.iter().enumerate() {
                let alone = run(&model, std::slice::from_ref(tokens), &plan);
                for other in [&together, &chunked] {
                    let own = other.captures.iter().filter(|capture| capture.row == row);
                    assert!(own.clone().count() == alone.captures.len());
                    for (a, b) in own.zip(&alone.captures) {
                        assert!(bits(&a.array) == bits(&b.array), "{name}: {} of row {row} under {plan:?}", a.site);
                    }
                }
            }
        }
    }
}

#[test]
fn decoding_with_features_has_the_bits_of_a_whole_run() {
    for name in ["gpt2", "llama", "mixtral", "mamba2"]
        .into_iter()
        .filter(|name| golden::one_per_type().iter().any(|n| n == name))
    {
        let case = golden::case(name);
        let model = attached(&case, SaeKind::TopK { k: 6, by_decoder_norm: None }, "layers.0.resid_post");
        let acts = "layers.0.resid_post/sae.acts";
        let taps = || [Tap::new("layers.0.resid_post", Action::Splice(Splice::Recon)), capture(acts)];
        let options = GenerateOptions { max_new: 5, ..GenerateOptions::default() };
        let ids = std::slice::from_ref(&case.ids);
        let generation = model.generate(ids, &plan(taps()), &options, &mut |_, _| Control::Go).expect("tokens");
        let mut text = [case.ids.clone(), generation.rows[0].tokens.clone()].concat();
        text.pop();
        let whole = run(&model, &[text], &plan(taps()));
        assert_eq!(generation.captures[0].array.shape(), whole.captures[0].array.shape(), "{name}");
        assert_eq!(bits(&generation.captures[0].array), bits(&whole.captures[0].array), "{name}");
    }
}

#[test]
fn requests_with_and_without_features_share_passes() {
    let case = golden::case("llama");
    let model = attached(&case, SaeKind::Relu, "layers.0.resid_post");
    let options = |seed: usize| GenerateOptions { max_new: 3 + seed % 4, ..GenerateOptions::default() };
    let plans = plans("layers.0.resid_post");
    let requests: Vec<(Vec<u32>, &Plan)> = (0..15)
        .map(|seed| {
            let length = 2 + (number(seed).abs() * (case.ids.len() - 3) as f32) as usize;
            (case.ids[..length].to_vec(), &plans[seed % plans.len()])
        })
        .collect();
    let mut batch = Batch::new(&model);
    let ids: Vec<_> = requests
        .iter()
        .enumerate()
        .map(|(seed, (tokens, plan))| batch.add(std::slice::from_ref(tokens), plan, &options(seed)).expect("a request"))
        .collect();
    while batch.running() > 0 {
        batch.pass(16, &mut |_, _, _| Control::Go).expect("a pass");
    }
    for (seed, ((tokens, plan), id)) in requests.iter().zip(ids).enumerate() {
        let shared = batch.take(id).expect("ended").expect("no error");
        let alone = model
            .generate(std::slice::from_ref(tokens), plan, &options(seed), &mut |_, _| Control::Go)
            .expect("tokens");
        assert_eq!(shared.rows[0].tokens, alone.rows[0].tokens, "request {seed}");
        assert_eq!(shared.captures.len(), alone.captures.len());
        for (a, b) in shared.captures.iter().zip(&alone.captures) {
            assert!(bits(&a.array) == bits(&b.array), "request {seed}: {}", a.site);
        }
    }
}

#[test]
fn a_condition_on_a_feature_steers_where_the_feature_fires() {
    let case = golden::case("llama");
    let model = attached(&case, SaeKind::Relu, "layers.0.resid_post");
    let ids = std::slice::from_ref(&case.ids);
    let acts = run(&model, ids, &plan([capture("layers.0.resid_post/sae.acts")])).captures.remove(0).array;
    let fires = |feature: usize| acts.values().chunks_exact(FEATURES).filter(|line| line[feature] > 0.0).count();
    let feature =
        (0..FEATURES).find(|&f| (1..case.ids.len()).contains(&fires(f))).expect("a feature that fires sometimes");
    let json = format!(
        r#"{{"taps": [{{"site": "layers.1.resid_pre", "zero": true,
            "when": {{"site": "layers.0.resid_post/sae.acts", "feature": {feature}, "above": 0}}}},
            {{"site": "layers.1.resid_pre", "capture": true}}]}}"#
    );
    let stream = run(&model, ids, &Plan::from_json(&json).expect("a plan")).captures.remove(0).array;
    let d = stream.shape()[1];
    for (line, acts) in stream.values().chunks_exact(d).zip(acts.values().chunks_exact(FEATURES)) {
        assert_eq!(line.iter().all(|&x| x == 0.0), acts[feature] > 0.0);
    }
}
