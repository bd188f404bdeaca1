//! Branches: a run that resumes in the middle of another has the bits of a whole run.

use crate::test_plans::{at, bits, capture, direction, set};
use golden::Case;
use pellucid_engine::plan::{Combine, Expr};
use pellucid_engine::{Action, Operand, Plan, Run, RunOptions, Tap};

/// Edits of several layers and positions, at the sites that this model has.
fn edits(case: &Case, length: usize) -> Vec<Tap> {
    let width = case.loaded.model.program().architecture().width;
    let depth = case.loaded.model.program().architecture().layers.len();
    let mut taps = Vec::new();
    for layer in [0, 1, depth - 1] {
        let site = |point: &str| format!("layers.{layer}.{point}");
        for position in [0, length / 2, length - 1] {
            let here = at(&position.to_string());
            taps.push(Tap::new(site("resid_post"), Action::Scale(-1.5)).positions(here.clone()));
            taps.push(set(&site("resid_pre"), Operand::Vector(direction(width))).positions(here.clone()));
            taps.push(Tap::new(site("mlp_out_post"), Action::Zero).positions(here.clone()));
            taps.push(Tap::new(site("z"), Action::Scale(2.0)).heads([0]).positions(here.clone()));
            taps.push(Tap::new(site("attn_probs"), Action::Scale(0.5)).positions(here.clone()));
        }
    }
    taps.push(Tap::new("embed", Action::Scale(3.0)).positions(at("1")));
    taps.push(Tap::new("final_norm", Action::Scale(3.0)).positions(at("last")));
    taps.push(Tap::new(format!("layers.{}.resid_post", depth - 1), Action::Zero).positions(at("-2:")));
    taps.retain(|tap| case.loaded.model.find(&tap.site).is_ok());
    taps
}

/// Captures of several sites, where this model has them.
fn captures(case: &Case) -> Vec<Tap> {
    let sites = ["embed", "layers.*.resid_post", "layers.1.attn_probs", "layers.*.mlp_out", "logits"];
    sites.into_iter().filter(|site| case.loaded.model.find(site).is_ok()).map(capture).collect()
}

fn assert_same(case: &Case, branch: &Run, whole: &Run, edit: &dyn std::fmt::Debug) {
    assert_eq!(branch.captures.len(), whole.captures.len(), "{}: {edit:?}", case.name);
    for (a, b) in branch.captures.iter().zip(&whole.captures) {
        assert_eq!((a.site, a.tap, &a.positions, a.array.shape()), (b.site, b.tap, &b.positions, b.array.shape()));
        assert!(bits(&a.array) == bits(&b.array), "{}: {} after {edit:?}", case.name, a.site);
    }
}

#[test]
fn a_branch_has_the_bits_of_a_whole_run_in_every_family() {
    for name in golden::one_per_type() {
        let case = golden::case(&name);
        let tokens = &case.ids;
        let base = case.loaded.model.base(tokens, &Plan::default()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let plans: Vec<Plan> = edits(&case, tokens.len())
            .into_iter()
            .map(|edit| Plan::of(std::iter::once(edit).chain(captures(&case))))
            .collect();
        let branches = base.branches(&plans).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for (plan, branch) in plans.iter().zip(&branches) {
            let whole = case.run(std::slice::from_ref(tokens), plan);
            assert_same(&case, branch, &whole, &plan.taps[0]);
        }
    }
}

#[test]
fn a_branch_keeps_the_edits_of_its_base() {
    let case = golden::case("llama");
    let steered = Tap::new("layers.0.resid_post", Action::Scale(1.3)).positions(at("3:"));
    let later = Tap::new("layers.2.mlp_out", Action::Zero).positions(at("-1"));
    let base = Plan::of([steered.clone(), capture("logits"), later.clone()]);
    let base = case.loaded.model.base(&case.ids, &base).unwrap();
    let edit = Tap::new("layers.1.z", Action::Zero).heads([1]).positions(at("5"));
    let branch = base.branch(&Plan::of([edit.clone(), capture("logits"), capture("layers.1.resid_post")])).unwrap();
    let whole = case.run(
        std::slice::from_ref(&case.ids),
        &Plan::of([steered, later, edit, capture("logits"), capture("layers.1.resid_post")]),
    );
    for (a, b) in branch.captures.iter().zip(&whole.captures) {
        assert!(bits(&a.array) == bits(&b.array), "{}", a.site);
    }
    assert_eq!(branch.captures.iter().map(|capture| capture.tap).collect::<Vec<_>>(), [1, 2]);
    // A branch without edits.
    let nothing = base.branch(&Plan::of([capture("logits")])).unwrap();
    assert_eq!(nothing.captures.len(), 1);
}

#[test]
fn a_branch_may_skip_layers() {
    for name in golden::one_per_type() {
        let case = golden::case(&name);
        let base = case.loaded.model.base(&case.ids, &Plan::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let depth = case.loaded.model.program().architecture().layers.len();
        let skip = |layer: usize| Tap::new(format!("layers.{layer}"), Action::Skip(None));
        let plans: Vec<Plan> =
            (0..depth).map(|layer| Plan::of([skip(layer), capture("layers.*.resid_post")])).collect();
        for (plan, branch) in plans.iter().zip(base.branches(&plans).unwrap_or_else(|e| panic!("{name}: {e}"))) {
            assert_same(&case, &branch, &case.run(std::slice::from_ref(&case.ids), plan), &plan.taps[0]);
        }
    }
}

#[test]
fn values_work_in_branches() {
    let case = golden::case("gpt2");
    let base = case.loaded.model.base(&case.ids, &Plan::default()).unwrap();
    let plan = |by: f32| {
        let mut plan = Plan::default();
        let h = plan.read(Tap::new("layers.0.resid_post", Action::Read));
        let factor = plan.value(Expr::Constant(pellucid_engine::Array::new(vec![], vec![by])));
        let scaled = plan.value(Expr::Combine(Combine::Mul, h, factor));
        plan.save = vec![scaled];
        plan.with(Tap::new("layers.1.resid_post", Action::Add { operand: Operand::Value(scaled), scale: 1.0 }))
            .with(capture("logits"))
    };
    let plans: Vec<Plan> = [0.5, -1.0, 2.0].into_iter().map(plan).collect();
    for (plan, branch) in plans.iter().zip(base.branches(&plans).unwrap()) {
        let whole = case.loaded.model.run(std::slice::from_ref(&case.ids), plan, &RunOptions::default()).unwrap();
        assert_same(&case, &branch, &whole, &"a value");
        assert_eq!(branch.value(plan.save[0], 0), whole.value(plan.save[0], 0));
    }
}

#[test]
fn bad_branches_are_refused() {
    let case = golden::case("llama");
    let base = case.loaded.model.base(&case.ids, &Plan::default()).unwrap();
    let refused = |plan: Plan, word: &str| {
        let problem = base.branch(&plan).expect_err("an invalid branch").to_string();
        assert!(problem.contains(word), "{problem}");
    };
    refused(Plan::of([capture("logits").rows([1])]), "one row");
    refused(Plan::of([capture("layers.7.resid_post")]), "layers.7");
    refused(Plan::of([capture("logits").positions(at("40"))]), "position 40");
    assert!(case.loaded.model.base(&[], &Plan::default()).is_err());
}
