//! Sparse captures: the nonzero elements of the dense ones, in every way of running.

use super::{FEATURES, attached, kinds, run};
use crate::test_plans::{at, bits, capture, plan};
use pellucid_engine::sae::SaeKind;
use pellucid_engine::{
    Action, Array, Capture, Control, GenerateOptions, Operand, Plan, Reduce, RunOptions, Splice, Tap,
};

const SITE: &str = "layers.0.resid_post";
const ACTS: &str = "layers.0.resid_post/sae.acts";

fn sparse(site: &str) -> Tap {
    Tap::new(site, Action::Capture(Some(Reduce::Sparse)))
}

fn all_kinds() -> Vec<SaeKind> {
    let more = [
        SaeKind::TopK { k: 6, by_decoder_norm: Some((0..FEATURES).map(|i| 0.5 + i as f32 / 20.0).collect()) },
        SaeKind::AbsTopK { k: 7 },
        SaeKind::GroupMax { k: 8 },
    ];
    kinds().into_iter().chain(more).collect()
}

/// The dense array of a sparse capture.
fn dense(capture: &Capture) -> Array {
    let rows = capture.sparse.as_ref().expect("a sparse capture");
    assert_eq!(rows.shape()[0], capture.positions.len());
    assert_eq!(rows.indices.len(), capture.array.len());
    assert!(capture.array.values().iter().all(|&x| x != 0.0), "only nonzero elements");
    for row in 0..rows.rows() {
        assert!(rows.indices[rows.row(row)].is_sorted_by(|a, b| a < b), "ascending units");
    }
    rows.to_dense(capture.array.values())
}

/// Compares pairs of a sparse and a dense capture.
fn agree(captures: &[Capture], context: &str) {
    assert!(!captures.is_empty() && captures.len().is_multiple_of(2));
    let (sparse, whole): (Vec<&Capture>, Vec<&Capture>) = captures.iter().partition(|c| c.sparse.is_some());
    assert_eq!(sparse.len(), whole.len());
    for (sparse, whole) in sparse.iter().zip(&whole) {
        assert_eq!((sparse.row, &sparse.positions), (whole.row, &whole.positions), "{context}");
        let same = dense(sparse).values() == whole.array.values();
        assert!(same, "{context}: row {} of {}", sparse.row, sparse.site);
    }
}

/// The sparse captures of a plan that no dense capture accompanies: their path is another one.
fn alone(model: &pellucid_engine::Model, rows: &[Vec<u32>], taps: &[Tap], context: &str) {
    let with = |last: Tap| run(model, rows, &plan(taps.iter().cloned().chain([last])));
    let (only, whole) = (with(sparse(ACTS)), with(capture(ACTS)));
    for (a, b) in only.captures.iter().zip(&whole.captures).filter(|(a, _)| a.sparse.is_some()) {
        assert!(dense(a).values() == b.array.values(), "{context}: row {}", a.row);
    }
    assert_eq!(only.captures.len(), whole.captures.len());
}

#[test]
fn a_sparse_capture_has_the_nonzero_elements_of_the_dense_one() {
    let case = golden::case("llama");
    let rows = [case.ids.clone(), case.ids[..3].to_vec(), case.ids[2..].to_vec()];
    for kind in all_kinds() {
        let model = attached(&case, kind.clone(), SITE);
        let name = format!("{kind:?}");
        alone(&model, &rows, &[], &name);
        alone(&model, &rows, &[Tap::new(SITE, Action::Splice(Splice::Recon)), capture("logits")], &name);
        let edit = Tap::new(ACTS, Action::Set(Operand::Number(0.25))).units([3, 8]).positions(at("1:3"));
        alone(&model, &rows, std::slice::from_ref(&edit), &name);
        for taps in [
            [sparse(ACTS), capture(ACTS)],
            [sparse(ACTS).positions(at("2,0")), capture(ACTS).positions(at("2,0"))],
            [sparse(ACTS).units([9, 2, 17, 30]), capture(ACTS).units([9, 2, 17, 30])],
        ] {
            agree(&run(&model, &rows, &plan(taps)).captures, &name);
        }
    }
}

#[test]
fn other_sites_can_be_captured_sparsely() {
    let case = golden::case("opt");
    let site = "layers.0.mlp_act";
    let captures =
        run(&case.loaded.model, std::slice::from_ref(&case.ids), &plan([sparse(site), capture(site)])).captures;
    assert!(captures[0].array.len() < captures[1].array.len(), "a ReLU has zeros");
    agree(&captures, site);
    // Heads are flattened: a sparse matrix has two axes.
    let z =
        run(&case.loaded.model, std::slice::from_ref(&case.ids), &plan([sparse("layers.0.z"), capture("layers.0.z")]))
            .captures;
    agree(&z, "z");
}

#[test]
fn chunks_and_generation_give_the_same_sparse_rows() {
    let case = golden::case("llama");
    for kind in all_kinds() {
        let model = attached(&case, kind, SITE);
        let rows = [case.ids.clone(), case.ids[..4].to_vec()];
        let taps = plan([sparse(ACTS)]);
        let whole = run(&model, &rows, &taps);
        let chunked = model.run(&rows, &taps, &RunOptions { chunk: Some(2), ..RunOptions::default() }).expect("chunks");
        for (a, b) in whole.captures.iter().zip(&chunked.captures) {
            assert!(a.sparse == b.sparse && bits(&a.array) == bits(&b.array));
        }
        let options = GenerateOptions { max_new: 5, ..GenerateOptions::default() };
        let generated = model.generate(&rows, &taps, &options, &mut |_, _| Control::Go).expect("tokens");
        for (row, capture) in generated.captures.iter().enumerate() {
            let mut text = [rows[row].clone(), generated.rows[row].tokens.clone()].concat();
            text.pop();
            let again = run(&model, &[text], &taps);
            assert!(capture.sparse == again.captures[0].sparse);
            assert_eq!(bits(&capture.array), bits(&again.captures[0].array));
        }
    }
}

#[test]
fn a_condition_selects_sparse_rows() {
    let case = golden::case("llama");
    let model = attached(&case, SaeKind::Relu, SITE);
    let json = |reduce: &str| {
        format!(
            r#"{{"taps": [{{"site": "{ACTS}", "capture": {reduce},
                "when": {{"site": "layers.0.resid_pre", "unit": 0, "above": 0}}}}]}}"#
        )
    };
    let run = |reduce: &str| {
        let plan = Plan::from_json(&json(reduce)).unwrap_or_else(|e| panic!("{e}"));
        run(&model, std::slice::from_ref(&case.ids), &plan).captures.remove(0)
    };
    let (sparse, whole) = (run(r#"{"reduce": "sparse"}"#), run("true"));
    assert!(!whole.positions.is_empty() && whole.positions.len() < case.ids.len(), "{:?}", whole.positions);
    assert_eq!(sparse.positions, whole.positions);
    assert!(dense(&sparse).values() == whole.array.values());
}

#[test]
fn branches_capture_sparsely() {
    let case = golden::case("llama");
    let model = attached(&case, SaeKind::Relu, SITE);
    let base = model.base(&case.ids, &Plan::default()).expect("a base");
    let edit = Tap::new("layers.0.mlp_out", Action::Zero).positions(at("2"));
    let plan = plan([edit, sparse(ACTS)]);
    let (branch, whole) = (base.branch(&plan).expect("a branch"), run(&model, std::slice::from_ref(&case.ids), &plan));
    assert_eq!(branch.captures[0].sparse, whole.captures[0].sparse);
    assert_eq!(bits(&branch.captures[0].array), bits(&whole.captures[0].array));
}

#[test]
fn sparse_is_written_and_read_as_json() {
    let text = format!(r#"{{"taps": [{{"site": "{ACTS}", "capture": {{"reduce": "sparse"}}}}]}}"#);
    let plan = Plan::from_json(&text).expect("a plan");
    assert_eq!(plan.taps[0].action, Action::Capture(Some(Reduce::Sparse)));
    assert_eq!(Plan::from_json(&plan.to_json().expect("JSON")).expect("a plan"), plan);
}

#[test]
fn explain_states_the_size_of_sparse_captures() {
    let case = golden::case("llama");
    let n = case.ids.len();
    let explained =
        |kind: SaeKind, tap: Tap| plan([tap]).explain(&attached(&case, kind, SITE), &[n]).expect("an explanation");
    let top = explained(SaeKind::TopK { k: 5, by_decoder_norm: None }, sparse(ACTS));
    assert_eq!(top.capture_bytes, n * (8 * 5 + 8));
    assert!(top.taps[0].nonzero_is_bound && top.to_string().contains("sparse: at most 5 elements"), "{top}");
    let relu = explained(SaeKind::Relu, sparse(ACTS));
    assert_eq!((relu.taps[0].nonzero, relu.taps[0].nonzero_is_bound), (Some(1), false), "40 features, 1 in 64");
    assert!(relu.to_string().contains("if 1 feature in 64 is active"), "{relu}");
    // The dense activations of all tokens never exist.
    assert!(relu.feature_bytes <= 4 * 64 * FEATURES);
    // The real size is within the bound.
    let model = attached(&case, SaeKind::TopK { k: 5, by_decoder_norm: None }, SITE);
    let capture = run(&model, std::slice::from_ref(&case.ids), &plan([sparse(ACTS)])).captures.remove(0);
    assert!(8 * capture.array.len() + 8 * n <= top.capture_bytes);
}

#[test]
fn sparse_captures_are_refused_where_they_make_no_sense() {
    let case = golden::case("llama");
    let model = attached(&case, SaeKind::Relu, SITE);
    let fails = |tap: Tap| {
        let run = model.run(std::slice::from_ref(&case.ids), &plan([tap]), &RunOptions::default());
        run.expect_err("refused").to_string()
    };
    assert!(fails(sparse("layers.0.attn_probs")).contains("attention site"));
    let mut of_gradient = plan([sparse(ACTS).of_gradient(0)]);
    let logits = of_gradient.read(Tap::new("logits", Action::Read).positions(at("last")));
    let one = of_gradient.value(pellucid_engine::plan::Expr::Index {
        of: logits,
        picks: vec![pellucid_engine::plan::Pick::At(0), pellucid_engine::plan::Pick::At(7)],
    });
    of_gradient.metrics.push(one);
    let error = model
        .run(std::slice::from_ref(&case.ids), &of_gradient, &RunOptions::default())
        .expect_err("refused")
        .to_string();
    assert!(error.contains("capture takes no reduction"), "{error}");
}
