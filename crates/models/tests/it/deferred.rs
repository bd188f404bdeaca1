//! A backend that defers all work and has its own memory, as a GPU would, gives the bits of the CPU
//! backend. So the backend interface suffices for a device.

use crate::test_plans::{add, at, bits, call, capture, direction, from, plan, set};
use golden::Case;
use pellucid_engine::deferred::Deferred;
use pellucid_engine::plan::{Combine, Expr, Injection};
use pellucid_engine::program::OpKind;
use pellucid_engine::{
    Action, Control, GenerateOptions, Generation, Model, Operand, Plan, Reduce, Run, RunOptions, Tap, When,
};

fn run(model: &Model, inputs: &[Vec<u32>], plan: &Plan, name: &str) -> Run {
    model.run(inputs, plan, &RunOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// One capture: its tap, row, positions and bits.
type CaptureBits = (usize, usize, Vec<usize>, Vec<u32>);

/// The bits of all captures and saved values of a run.
fn result_bits(run: &Run) -> (Vec<CaptureBits>, Vec<Vec<u32>>) {
    let captures = run.captures.iter();
    let captures = captures.map(|capture| (capture.tap, capture.row, capture.positions.clone(), bits(&capture.array)));
    (captures.collect(), run.saved.iter().map(|saved| bits(&saved.array)).collect())
}

/// Plans of every kind on sites that all families have.
fn plans(case: &Case) -> Vec<Plan> {
    let width = case.loaded.model.program().architecture().width;
    let last = format!("layers.{}.resid_post", case.layers() - 1);
    let site = "layers.1.resid_post";
    let reduced = |reduce: Reduce| Tap::new(site, Action::Capture(Some(reduce)));
    let mut computed = plan([Tap::new(site, Action::Read).positions(at("1:"))]);
    let read = computed.value(Expr::Read(0));
    let squared = computed.value(Expr::Combine(Combine::Mul, read, read));
    computed.save = vec![squared];
    let unit = Operand::Vector(direction(width));
    let edits = [
        Action::Scale(0.5),
        Action::Zero,
        Action::Set(Operand::Number(0.25)),
        Action::Set(Operand::Vector(direction(width))),
        Action::Add { operand: Operand::Vector(direction(width)), scale: 0.5 },
        Action::ProjectOut { vector: unit.clone(), scale: 0.0 },
        Action::Cap { vector: unit.clone(), min: Some(-0.1), max: Some(0.1) },
        Action::AddScaled { vector: unit.clone(), scale: 0.3 },
        Action::NormMatch { vector: unit.clone(), scale: 0.3 },
        Action::Orthogonal { vector: unit.clone(), scale: 0.3 },
        Action::Swap { first: unit.clone(), second: Operand::Vector(vec![1.0; width]) },
        Action::Inject { operand: unit.clone(), how: Injection { add: true, norm_match: true, scale: 0.5 } },
        call(|row| row.values.iter_mut().for_each(|x| *x = -*x)),
    ];
    let mut plans: Vec<Plan> = edits
        .into_iter()
        .map(|action| plan([Tap::new(site, action).positions(at("1:3")), capture(site), capture(&last)]))
        .collect();
    plans.push(plan([
        reduced(Reduce::Norm),
        reduced(Reduce::Mean),
        reduced(Reduce::TopK(3)),
        reduced(Reduce::Dot(unit.clone())),
    ]));
    plans.push(plan([Tap::new(site, Action::Skip(None)), capture(&last)]));
    plans.push(plan([capture("embed").positions(at("-2:")), add("embed", 0.5).positions(at("0")), capture(&last)]));
    plans.push(plan([set(&last, from("layers.0.resid_post", 0)).rows([1]).positions(at("0")), capture("logits")]));
    let high = When::above("layers.0.resid_post", unit.clone(), 0.0);
    plans.push(plan([
        Tap::zero(site).units([0, 3]).when(high.clone()),
        capture(&last).when(high),
        Tap::capture_reduced(site, Reduce::Project(Operand::Rows(vec![direction(width); 3]))),
    ]));
    let injected = Tap::inject(&last, from("layers.0.resid_post", 0), Injection::default());
    plans.push(plan([injected.rows([1]).positions(at("0,2")), capture("logits")]));
    plans.push(computed.with(set(site, Operand::Value(squared)).positions(at("1:"))).with(capture(&last)));
    plans
}

#[test]
fn every_site_of_every_family_has_the_bits_of_the_cpu() {
    for name in golden::one_per_type() {
        let case = golden::case(&name);
        let deferred = Deferred::on(&case.loaded.model);
        let inputs = [case.ids.clone(), case.ids[1..].to_vec()];
        // Whole-site captures are transferred at the end of the run, with one wait.
        let residual = Plan::capture(["layers.*.resid_post", "logits"]);
        let (on_cpu, on_device) =
            (run(&case.loaded.model, &inputs, &residual, &name), run(&deferred, &inputs, &residual, &name));
        assert!(result_bits(&on_cpu) == result_bits(&on_device), "{name}");
        let (moved, bytes) =
            (on_device.moved, 4 * on_device.captures.iter().map(|c| c.array.values().len()).sum::<usize>());
        assert_eq!((moved.fallbacks, moved.to_host, moved.waits), (0, bytes, 1), "{name}: {moved:?}");
        // Sites inside ops as well: those ops fall back to the CPU.
        let all = Plan::capture(case.token_sites());
        let (on_cpu, on_device) = (run(&case.loaded.model, &inputs, &all, &name), run(&deferred, &inputs, &all, &name));
        for (a, b) in on_cpu.captures.iter().zip(&on_device.captures) {
            assert!(bits(&a.array) == bits(&b.array), "{name}: {} of row {}", a.site, a.row);
        }
        assert!(result_bits(&on_cpu) == result_bits(&on_device), "{name}");
        if case.attends() {
            let attention = Plan::capture(["layers.*.attn_probs", "logits"]);
            let (on_cpu, on_device) =
                (run(&case.loaded.model, &inputs, &attention, &name), run(&deferred, &inputs, &attention, &name));
            assert!(result_bits(&on_cpu) == result_bits(&on_device), "{name}: attention");
            assert!(on_device.moved.fallbacks > 0 && on_cpu.moved.fallbacks == 0, "{name}: {:?}", on_device.moved);
        }
    }
}

/// A call waits once for all of its captures; a generation also waits for the logits of each pass.
#[test]
fn a_call_waits_once_for_its_captures() {
    for name in ["llama", "gpt2", "mixtral", "mamba"] {
        let case = golden::case(name);
        let inputs = [case.ids.clone(), case.ids[1..].to_vec()];
        let many = Plan::capture(["embed", "layers.*.resid_pre", "layers.*.resid_post", "final_norm", "logits"])
            .with(capture("layers.0.resid_post").positions(at("-1")))
            .with(Tap::new("layers.1.resid_post", Action::Capture(Some(Reduce::Norm))))
            .with(add("layers.0.resid_post", 0.5).positions(at("1:")));
        let (deferred, waits) = Deferred::counting(&case.loaded.model);
        let found = run(&deferred, &inputs, &many, name);
        assert!(found.captures.len() > 10, "{name}: {} captures", found.captures.len());
        assert_eq!((waits(), found.moved.waits), (1, 1), "{name}: {:?}", found.moved);
        assert!(found.moved.to_host > 0, "{name}: {:?}", found.moved);

        let (deferred, waits) = Deferred::counting(&case.loaded.model);
        let options = GenerateOptions { max_new: 5, ..GenerateOptions::default() };
        let found =
            deferred.generate(&inputs, &Plan::capture(["layers.*.resid_post"]), &options, &mut |_, _| Control::Go);
        let moved = found.unwrap_or_else(|e| panic!("{name}: {e}")).moved;
        assert_eq!((waits(), moved.waits), (options.max_new + 1, options.max_new + 1), "{name}: {moved:?}");
    }
}

#[test]
fn plans_have_the_bits_of_the_cpu() {
    for name in ["llama", "gpt2", "gemma2", "mixtral", "mamba", "recurrent_gemma"] {
        let case = golden::case(name);
        let deferred = Deferred::on(&case.loaded.model);
        let inputs = [case.ids.clone(), case.ids[..case.ids.len() - 1].to_vec()];
        for plan in plans(&case) {
            let (on_cpu, on_device) =
                (run(&case.loaded.model, &inputs, &plan, name), run(&deferred, &inputs, &plan, name));
            assert!(result_bits(&on_cpu) == result_bits(&on_device), "{name}: {plan:?}");
        }
    }
}

#[test]
fn rows_chunks_and_prefixes_have_the_bits_of_the_cpu() {
    for name in ["llama", "mistral-sliding", "mixtral", "mamba2"] {
        let case = golden::case(name);
        let deferred = Deferred::on(&case.loaded.model);
        let plan = Plan::capture(["layers.*.resid_post", "logits"]);
        let inputs = [case.ids.clone(), case.ids[2..].to_vec(), case.ids[..3].to_vec()];
        let whole = result_bits(&run(&case.loaded.model, &inputs, &plan, name));
        let chunked = RunOptions { chunk: Some(2), ..RunOptions::default() };
        assert!(result_bits(&deferred.run(&inputs, &plan, &chunked).expect("a run")) == whole, "{name}: chunks");
        let last_logits = Plan::of([capture("logits").positions(at("-1"))]);
        let cache = deferred.prefix(&case.ids[..4]).expect("a prefix");
        let prefixed = RunOptions { prefixes: Some(cache), ..RunOptions::default() };
        let found = deferred.run(&inputs[..1], &last_logits, &prefixed).expect("a run");
        assert_eq!(found.reused, [4], "{name}");
        assert!(
            result_bits(&found) == result_bits(&run(&case.loaded.model, &inputs[..1], &last_logits, name)),
            "{name}: prefix"
        );
    }
}

#[test]
fn generations_have_the_bits_of_the_cpu() {
    for name in ["llama", "gpt2", "mixtral", "mamba", "recurrent_gemma", "gemma2"] {
        let case = golden::case(name);
        let deferred = Deferred::on(&case.loaded.model);
        let inputs = [case.ids.clone(), case.ids[..4].to_vec()];
        for plan in plans(&case).into_iter().chain([Plan::capture(["layers.*.resid_post"]), Plan::default()]) {
            let options = GenerateOptions { max_new: 5, lookup: 2, ..GenerateOptions::default() };
            let generate = |model: &Model| -> Generation {
                model
                    .generate(&inputs, &plan, &options, &mut |_, _| Control::Go)
                    .unwrap_or_else(|e| panic!("{name}: {e}"))
            };
            let (on_cpu, on_device) = (generate(&case.loaded.model), generate(&deferred));
            let tokens =
                |generation: &Generation| generation.rows.iter().map(|row| row.tokens.clone()).collect::<Vec<_>>();
            assert_eq!(tokens(&on_cpu), tokens(&on_device), "{name}: {plan:?}");
            for (a, b) in on_cpu.captures.iter().zip(&on_device.captures) {
                assert!(
                    a.positions == b.positions && bits(&a.array) == bits(&b.array),
                    "{name}: {} of {plan:?}",
                    a.site
                );
            }
        }
    }
}

#[test]
fn branches_and_gradients_have_the_bits_of_the_cpu() {
    for name in ["llama", "gpt2", "mixtral", "mamba"] {
        let case = golden::case(name);
        let deferred = Deferred::on(&case.loaded.model);
        let branches = |model: &Model| {
            let base = model.base(&case.ids, &Plan::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
            let plans: Vec<Plan> = (0..case.layers())
                .map(|layer| {
                    let edit = Tap::new(format!("layers.{layer}.resid_post"), Action::Scale(-1.0)).positions(at("3"));
                    plan([edit, capture("logits"), capture("layers.*.resid_post")])
                })
                .collect();
            base.branches(&plans).unwrap_or_else(|e| panic!("{name}: {e}")).iter().map(result_bits).collect::<Vec<_>>()
        };
        assert!(branches(&case.loaded.model) == branches(&deferred), "{name}: branches");
        let mut metric = plan([Tap::new("logits", Action::Read).positions(at("-1"))]);
        let read = metric.value(Expr::Read(0));
        let sum = metric.value(Expr::Fold { of: read, how: pellucid_engine::plan::Fold::Sum, axis: None, keep: false });
        metric.metrics = vec![sum];
        let metric = metric
            .with(Tap::new("layers.*.resid_post", Action::Grad { metric: 0, action: Box::new(Action::Capture(None)) }));
        for recompute in [false, true] {
            let options = RunOptions { recompute, ..RunOptions::default() };
            let gradients = |model: &Model| {
                let run = model.run(std::slice::from_ref(&case.ids), &metric, &options);
                result_bits(&run.unwrap_or_else(|e| panic!("{name}: {e}")))
            };
            assert!(gradients(&case.loaded.model) == gradients(&deferred), "{name}: gradients");
        }
    }
}

#[test]
fn an_op_without_backend_support_runs_on_the_cpu_and_is_reported() {
    let case = golden::case("llama");
    let model = Deferred::lacking(&case.loaded.model, |op| matches!(op, OpKind::Attention { .. }));
    let plan = Plan::capture(["layers.*.resid_post", "logits"]);
    let inputs = [case.ids.clone()];
    let (on_cpu, on_device) = (run(&case.loaded.model, &inputs, &plan, "llama"), run(&model, &inputs, &plan, "llama"));
    assert!(result_bits(&on_cpu) == result_bits(&on_device));
    assert_eq!(on_device.moved.fallbacks, case.layers());
    assert!(on_device.moved.to_host > 0 && on_device.moved.to_device > 0 && on_device.moved.waits >= case.layers());
    let explained = plan.explain(&model, &[case.ids.len()]).expect("an explanation");
    assert_eq!(explained.fallbacks.len(), case.layers());
    assert!(explained.fallbacks[0].contains("layer 0"), "{:?}", explained.fallbacks);
    assert!(explained.to_string().contains("ops without backend support"));
    assert!(plan.explain(&case.loaded.model, &[case.ids.len()]).expect("an explanation").fallbacks.is_empty());
    let generated = |model: &Model| {
        let options = GenerateOptions { max_new: 6, ..GenerateOptions::default() };
        let generation = model.generate(&inputs, &plan, &options, &mut |_, _| Control::Go).expect("a generation");
        (generation.rows[0].tokens.clone(), generation.moved.fallbacks)
    };
    assert_eq!(generated(&case.loaded.model), (generated(&model).0, 0));
}
