//! Gradients of one golden model of each type agree with those of torch.
#![allow(clippy::print_stdout)] // the errors are worth knowing even if the test passes

use golden::{Case, CaseFile};
use pellucid_engine::plan::{Combine, Expr, Fold, ValueId};
use pellucid_engine::{Action, Array, GradOptions, Plan, Point, RunOptions, Seed, Site, Tap};

/// The cotangent of the logits for the scalar of `tests/golden/gradients.py`, a weighted sum of all
/// logits: its coefficients, from the case's random seed.
fn seed(case: &Case) -> Seed {
    let count = case.reference["logits"].1.len();
    let coefficients = golden::weights::standard(CaseFile::read(&case.name).seed(), "gradient").take(count);
    Seed {
        site: Site::model(Point::Logits),
        row: 0,
        positions: (0..case.ids.len()).collect(),
        values: coefficients.collect(),
    }
}

fn norm(x: impl Iterator<Item = f32>) -> f64 {
    x.map(|x| x as f64 * x as f64).sum::<f64>().sqrt()
}

#[test]
fn gradients_agree_with_torch() {
    let (mut faults, mut worst, mut all) = (Vec::new(), (0.0, String::new()), Vec::new());
    for name in golden::one_per_type() {
        let case = golden::case(&name);
        let truth = CaseFile::read(&name).gradients();
        if truth.is_empty() {
            faults.push(format!("{name} has no gradients"));
            continue;
        }
        let site = |tensor: &str| {
            let (point, layer) = tensor.split_once('.').expect("a layer");
            case.site(&format!("layers.{layer}.{point}"))
        };
        let sites: Vec<Site> = truth.keys().map(|tensor| site(tensor)).collect();
        let ids = std::slice::from_ref(&case.ids);
        let gradients = |recompute| {
            let options = GradOptions { recompute };
            case.loaded.model.vjp(ids, &Plan::default(), &[seed(&case)], &sites, &options).expect("gradients")
        };
        let ours = gradients(false);
        for ((tensor, (_, truth)), capture) in truth.iter().zip(&ours) {
            assert_eq!(capture.array.values().len(), truth.len(), "{name}: {tensor}");
            let off = norm(capture.array.values().iter().zip(truth).map(|(a, b)| a - b)) / norm(truth.iter().copied());
            if off.is_nan() || off >= 1e-3 {
                faults.push(format!("{name}: {tensor} is off by {off:.2e}"));
            }
            if off > worst.0 {
                worst = (off, format!("{name} {tensor}"));
            }
            all.push(off);
        }
        // Gradient checkpointing gives the same bits.
        if gradients(true).iter().zip(&ours).any(|(a, b)| a.array.values() != b.array.values()) {
            faults.push(format!("{name}: gradient checkpointing gives other gradients"));
        }
    }
    all.sort_by(f64::total_cmp);
    println!("{} gradients, median error {:.1e}, largest {:.1e}: {}", all.len(), all[all.len() / 2], worst.0, worst.1);
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
    assert!(all[all.len() / 2] < 1e-5, "typical gradients agree to five digits");
}

/// A plan with the same scalar as its metric that saves its gradients with respect to `weights`.
fn weights_plan(case: &Case, weights: &[&str]) -> Plan {
    let mut plan = Plan::default();
    let logits = plan.read(Tap::new("logits", Action::Read));
    let coefficients = Array::new(case.reference["logits"].0.clone(), seed(case).values);
    let coefficients = plan.value(Expr::Constant(coefficients));
    let product = plan.value(Expr::Combine(Combine::Mul, logits, coefficients));
    let sum = plan.value(Expr::Fold { of: product, how: Fold::Sum, axis: None, keep: false });
    plan.metrics.push(sum);
    for weight in weights {
        let gradient = plan.value(Expr::WeightGrad { metric: 0, weight: weight.to_string() });
        plan.save.push(gradient);
    }
    plan
}

#[test]
fn gradients_of_weights_agree_with_torch() {
    let (mut faults, mut compared) = (Vec::new(), 0);
    for name in golden::one_per_type() {
        let truth = CaseFile::read(&name).weight_gradients();
        if truth.is_empty() {
            continue;
        }
        let case = golden::case(&name);
        let names: Vec<&str> = truth.keys().map(String::as_str).collect();
        let plan = weights_plan(&case, &names);
        for recompute in [false, true] {
            let options = RunOptions { recompute, ..RunOptions::default() };
            let run = case.loaded.model.run(std::slice::from_ref(&case.ids), &plan, &options).expect("a run");
            assert_eq!(run.saved.len(), names.len());
            for ((weight, (_, truth)), saved) in truth.iter().zip(&run.saved) {
                let ours = saved.array.values();
                assert_eq!(ours.len(), truth.len(), "{name}: {weight}");
                let off = norm(ours.iter().zip(truth).map(|(a, b)| a - b)) / norm(truth.iter().copied());
                if off.is_nan() || off >= 1e-4 {
                    faults.push(format!("{name}: {weight} is off by {off:.2e}"));
                }
                compared += 1;
            }
        }
    }
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
    assert!(compared >= 100, "only {compared} gradients were compared");
}

#[test]
fn gradients_of_weights_are_written_and_read_as_json() {
    let text = |value: &str| {
        format!(
            r#"{{"taps": [{{"site": "logits", "as": "l"}}], "values": [{{"name": "a", "sum": "l"}}, {{"name": "b", "mean": "l"}},
                {{"name": "g", "weight_grad": {value}}}], "save": ["g"], "metrics": ["a", "b"]}}"#
        )
    };
    let read = |value: &str| Plan::from_json(&text(value));
    let first = read(r#"{"weight": "head", "of": "a"}"#).expect("a plan");
    assert_eq!(read(r#""head""#).expect("a plan"), first);
    let second = read(r#"{"weight": "head", "of": "b"}"#).expect("a plan");
    assert_eq!(second.values[ValueId::new(3)].expr, Expr::WeightGrad { metric: 1, weight: "head".into() });
    assert_eq!(Plan::from_json(&second.to_json().expect("JSON")).expect("a plan"), second);
    for (value, problem) in [
        (r#"{"of": "a"}"#, "name of a `weight`"),
        (r#"{"weight": "head", "of": "l"}"#, "not a metric"),
        (r#"{"weight": "head", "off": "a"}"#, "unknown key `off`"),
        ("3", "`weight`"),
    ] {
        let error = read(value).expect_err("no such form");
        assert!(error.contains(problem), "{value}: {error}");
    }
}

#[test]
fn unavailable_gradients_of_weights_are_refused() {
    let llama = golden::case("llama");
    let refused = |case: &Case, plan: Plan| {
        let outcome = case.loaded.model.run(std::slice::from_ref(&case.ids), &plan, &RunOptions::default());
        outcome.expect_err("it has no such gradient").to_string()
    };
    let unknown = refused(&llama, weights_plan(&llama, &["layers.0.mlp.dwon"]));
    assert!(unknown.contains("did you mean `layers.0.mlp.down`"), "{unknown}");
    let router = golden::case("deepseek_v3");
    let correction = router.loaded.model.program().weights().iter().find(|spec| spec.name.ends_with("correction"));
    let choice = refused(&router, weights_plan(&router, &[&correction.expect("a correction").name]));
    assert!(choice.contains("`route`") && choice.contains("select experts"), "{choice}");
    // The metric uses `head` a second time; the gradient would miss that use.
    let mut again = weights_plan(&llama, &[]);
    let resid = again.read(Tap::new("layers.1.resid_post", Action::Read));
    let lens = again.value(Expr::Unembed(resid));
    let sum = again.value(Expr::Fold { of: lens, how: Fold::Sum, axis: None, keep: false });
    again.metrics = vec![sum];
    let head = again.value(Expr::WeightGrad { metric: 0, weight: "head".into() });
    again.save.push(head);
    let again = refused(&llama, again);
    assert!(again.contains("uses `head` a second time"), "{again}");
    let mut no_metric = weights_plan(&llama, &["head"]);
    no_metric.metrics.clear();
    assert!(refused(&llama, no_metric).contains("there is no metric 0"));
}

#[test]
fn another_scalar_has_other_gradients() {
    // Control of this file: the comparison detects a slightly different seed.
    let case = golden::case("llama");
    let off = |change: &dyn Fn(&mut Seed)| {
        let mut other = seed(&case);
        change(&mut other);
        let ids = std::slice::from_ref(&case.ids);
        let [ours, theirs] = [seed(&case), other].map(|seed| {
            let to = [case.site("layers.0.resid_post")];
            let options = GradOptions::default();
            case.loaded.model.vjp(ids, &Plan::default(), &[seed], &to, &options).expect("gradients").remove(0).array
        });
        norm(ours.values().iter().zip(theirs.values()).map(|(a, b)| a - b)) / norm(ours.values().iter().copied())
    };
    assert_eq!(off(&|_| {}), 0.0);
    assert!(off(&|seed| seed.values[40] += 1.0) > 1e-3);
    assert!(off(&|seed| seed.positions.swap(0, 1)) > 1e-1);
}
