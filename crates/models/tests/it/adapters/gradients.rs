//! Gradients flow through the low-rank updates.

use super::{adapter_for, llama_with_two, open};
use crate::test_plans::bits;
use pellucid_engine::{
    Action, Capture, GradOptions, Model, Operand, Plan, Point, RowAdapters, Run, RunOptions, Seed, Site, Tap,
};

const IDS: [u32; 5] = [1, 5, 9, 2, 6];

/// The gradient of a weighted sum of the last position's logits.
fn gradients(model: &Model, to: &[Site], recompute: bool) -> Vec<Capture> {
    let vocab = model.program().architecture().vocab;
    let values = golden::weights::standard(8, "cotangent").take(vocab).collect();
    let seed = Seed { site: Site::model(Point::Logits), row: 0, positions: vec![IDS.len() - 1], values };
    model.vjp(&[IDS.to_vec()], &Plan::default(), &[seed], to, &GradOptions { recompute }).expect("gradients")
}

fn sites(model: &Model) -> Vec<Site> {
    let texts =
        ["embed", "layers.0.resid_post", "layers.1.z", "layers.0.mlp_act", "layers.1.head_out", "layers.1.attn_probs"];
    texts.iter().map(|text| model.find(text).expect("a site").sites[0]).collect()
}

#[test]
fn gradients_equal_those_of_the_merged_model() {
    let path = golden::path("llama");
    let adapter = adapter_for(&path, 1, |_| true);
    let (mut loaded, merged) = (open(&path, &[]).expect("a model"), open(&path, &[adapter.path()]).expect("a model"));
    let plain = loaded.model.clone();
    loaded.attach_adapter("one", adapter.path()).expect("an adapter");
    let model = loaded.model.with_adapter(Some("one")).expect("a model");
    let to = sites(&model);
    let (ours, truth) = (gradients(&model, &to, false), gradients(&merged.model, &to, false));
    for (ours, truth) in ours.iter().zip(&truth) {
        let off = super::relative(ours.array.values(), truth.array.values());
        assert!(off < 1e-4, "{}: off by {off}", ours.site);
    }
    let without = gradients(&plain, &to, false);
    let off = super::relative(without[0].array.values(), truth[0].array.values());
    assert!(off > 0.01, "the adapter changes no gradient: {off}");
    // Gradient checkpointing gives the same bits.
    for (ours, again) in ours.iter().zip(gradients(&model, &to, true)) {
        assert!(bits(&ours.array) == bits(&again.array), "{}", ours.site);
    }
}

#[test]
fn gradients_are_the_slope_of_finite_differences() {
    let loaded = llama_with_two();
    let model = loaded.model.with_adapter(Some("b")).expect("a model");
    let vocab = model.program().architecture().vocab;
    let cotangent: Vec<f32> = golden::weights::standard(8, "cotangent").take(vocab).collect();
    for text in ["layers.0.resid_pre", "layers.1.attn_in", "layers.1.mlp_in"] {
        let Ok(found) = model.find(text) else { panic!("no {text}") };
        let gradient = gradients(&model, &found.sites, false).remove(0).array;
        let width = gradient.shape()[1];
        let direction: Vec<f32> = golden::weights::standard(6, text).take(width).collect();
        let expected: f64 = gradient
            .values()
            .chunks_exact(width)
            .flat_map(|line| line.iter().zip(&direction))
            .map(|(g, d)| f64::from(g * d))
            .sum();
        // The sum of logits, weighted by the cotangent, with a step in the direction at all
        // positions.
        let metric = |step: f32| -> f64 {
            let operand = Operand::Vector(direction.clone());
            let plan = Plan::of([Tap::new(text, Action::Add { operand, scale: step }), golden::last_logits()]);
            let run: Run = model.run(&[IDS.to_vec()], &plan, &RunOptions::default()).expect("a run");
            let logits = run.captures[0].array.values();
            logits.iter().zip(&cotangent).map(|(x, c)| f64::from(x * c)).sum()
        };
        let step = 1e-3;
        let slope = (metric(step) - metric(-step)) / f64::from(2.0 * step);
        let off = (slope - expected).abs() / expected.abs().max(1.0);
        assert!(off < 0.02, "{text}: the slope is {slope}, the gradient gives {expected}");
    }
}

/// Gradients of a mixed batch: each row has those of its own adapter.
#[test]
fn gradients_of_a_mixed_batch_are_those_of_each_row_alone() {
    let loaded = llama_with_two();
    let plan = Plan::from_json(
        r#"{"taps": [{"site": "logits", "positions": "last", "as": "l"},
                     {"site": "layers.0.resid_post", "grad": true}],
            "values": [{"name": "one", "index": {"of": "l", "picks": [0, 7]}},
                       {"name": "m", "across": {"of": "one", "how": "sum"}}],
            "metric": "m"}"#,
    )
    .expect("a plan");
    let rows = [IDS.to_vec(), vec![4, 4, 2], IDS.to_vec()];
    let names = [Some("a".to_owned()), None, Some("b".to_owned())];
    let go = |rows: &[Vec<u32>], names: &[Option<String>]| {
        let options = RunOptions { adapters: RowAdapters::Each(names.to_vec()), ..RunOptions::default() };
        loaded.model.run(rows, &plan, &options).expect("a run").captures
    };
    let together = go(&rows, &names);
    assert_eq!(together.len(), 3);
    for row in 0..3 {
        let alone = go(&rows[row..=row], &names[row..=row]);
        assert!(bits(&together[row].array) == bits(&alone[0].array), "row {row}");
    }
    assert!(bits(&together[0].array) != bits(&together[2].array));
}
