//! Single experts: their outputs against transformers, and plans that ablate, exclude, replace and
//! swap experts against models with other weights.

use crate::batch::everything;
use crate::test_plans::{at, bits, capture, generate, logits, plan, run, set};
use golden::{Case, temp_models};
use pellucid_engine::architecture::{ExpertWeights, Experts, Mlp};
use pellucid_engine::deferred::Deferred;
use pellucid_engine::plan::{Combine, Expr, FromSite};
use pellucid_engine::{Array, Batch, Control, Error, GenerateOptions, Operand, Plan, RunOptions, Tap, When};
use pellucid_models::{LoadOptions, LoadedModel};

/// Golden cases of models with experts, one per type.
fn cases_with_experts() -> Vec<Case> {
    let names = golden::one_per_type();
    let cases = names.iter().map(|name| golden::case(name));
    cases.filter(|case| case.loaded.model.find("layers.*.expert_out").is_ok()).collect()
}

/// The first layer with experts.
fn first_experts(case: &Case) -> (usize, &Experts) {
    let layers = case.loaded.model.program().architecture().layers.iter().enumerate();
    let mut sparse = layers.filter_map(|(index, layer)| match &layer.mlp {
        Some(Mlp::Experts(experts)) => Some((index, experts)),
        _ => None,
    });
    sparse.next().expect("a layer with experts")
}

#[test]
fn outputs_and_weights_of_experts_equal_those_of_transformers() {
    let reference = golden::experts();
    let names: Vec<&str> = reference.keys().filter_map(|key| key.strip_suffix("/expert_out")).collect();
    assert!(names.len() >= 35, "{names:?}");
    for name in names {
        let case = golden::case(name);
        let of = |key: &str| &reference[&format!("{name}/{key}")];
        let (layer, spec) = first_experts(&case);
        assert_eq!(layer, of("layer").1[0] as usize, "{name}");
        let scale = spec.routing.scale;
        let site = |point: &str| format!("layers.{layer}.{point}");
        let found = case.capture(&[&site("expert_indices"), &site("expert_weights"), &site("expert_out")]);
        let [indices, weights, outputs] = &found[..] else { panic!("three captures") };
        let (shape, expected) = of("expert_out");
        let (slots, width) = (shape[1], shape[2]);
        let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
        let mut other = 0f32;
        for (slot, expert) in of("expert_indices").1.iter().enumerate() {
            // transformers may order a token's experts differently.
            let token = slot / slots;
            let own = (0..slots).find(|rank| indices[token * slots + rank] == *expert);
            let own = own.unwrap_or_else(|| panic!("{name}: token {token} does not choose expert {expert}"));
            // Some modules scale the sum of the experts instead of the weights.
            let (ours, theirs) = (weights[token * slots + own], of("expert_weights").1[slot]);
            let off = [1.0, scale].map(|scale| (ours - scale * theirs).abs());
            assert!(off[0].min(off[1]) < 1e-5, "{name}: weight {ours} of expert {expert} instead of {theirs}");
            let line = |values: &[f32], slot: usize| values[slot * width..][..width].to_vec();
            let (ours, theirs) = (line(outputs, token * slots + own), line(expected, slot));
            let off = golden::difference(&ours, &theirs);
            assert!(off < 1e-4 * largest, "{name}: expert {expert} at token {token} is off by {off}");
            other = other.max(golden::difference(&line(outputs, (token * slots + own + 1) % indices.len()), &theirs));
        }
        assert!(other > 0.1 * largest, "{name}: another slot has other values");
    }
}

/// Opens a copy of a case with other tensors of the experts of layer 1: `change` receives the name
/// of each tensor after `experts.`, such as `2.down_proj.weight`.
fn with_experts(name: &str, change: impl Fn(&str) -> Change) -> Case {
    let part = |name: &str| {
        let (before, after) = name.split_once(".experts.")?;
        before.contains("layers.1.").then(|| (format!("{before}.experts."), after.to_owned()))
    };
    let directory = temp_models::changed(
        name,
        |_| {},
        |tensors| {
            let before = tensors.clone();
            for (name, (_, _, bytes)) in tensors.iter_mut() {
                let Some((prefix, own)) = part(name) else { continue };
                match change(&own) {
                    Change::Keep => {}
                    Change::Zero => bytes.fill(0),
                    Change::From(other) => bytes.clone_from(&before[&format!("{prefix}{other}")].2),
                }
            }
        },
    );
    let loaded = LoadedModel::open(directory.path(), &LoadOptions::default(), &mut |_| {}).expect("a model");
    Case { loaded, ..golden::case(name) }
}

/// New values of an expert's tensor.
enum Change {
    Keep,
    Zero,
    /// Those of this tensor.
    From(String),
}

/// The tensor of expert `to`, for a tensor of expert `from`.
fn copied(name: &str, from: usize, to: usize) -> Option<Change> {
    Some(Change::From(format!("{to}.{}", name.strip_prefix(&format!("{from}."))?)))
}

/// The bits of the logits, with the sign of zeros removed.
fn logits_of(case: &Case, taps: impl IntoIterator<Item = Tap>) -> Vec<f32> {
    let run = run(case, taps);
    run.captures.last().expect("logits").array.values().iter().map(|x| x + 0.0).collect()
}

/// Types that store each expert's weights as tensors of its own: a plain one, one with a shared
/// expert and group-limited routing, one without a gate.
const SEPARATE: [&str; 4] = ["mixtral", "qwen3_moe", "deepseek_v3", "nemotron_h"];

#[test]
fn ablating_an_expert_is_zeroing_its_down_projection() {
    for name in SEPARATE {
        let case = golden::case(name);
        for expert in 0..4 {
            let down = |own: &str| own == format!("{expert}.w2.weight") || own == format!("{expert}.down_proj.weight");
            let zeroed = with_experts(name, |own| if down(own) { Change::Zero } else { Change::Keep });
            let expected = logits_of(&zeroed, []);
            for site in ["layers.1.expert_out", "layers.1.expert_weights"] {
                let found = logits_of(&case, [Tap::zero(site).experts([expert])]);
                assert_eq!(found, expected, "{name}: {site}, expert {expert}");
            }
            let indices = run(&case, [capture("layers.1.expert_indices")]).captures[0].array.clone();
            let is_chosen = indices.values().contains(&(expert as f32));
            assert_eq!(is_chosen, expected != logits_of(&case, []), "{name}: expert {expert} has an effect if chosen");
        }
        // By slot: the slots that hold the expert.
        let (by_slot, at_slot) =
            (Tap::zero("layers.1.expert_out").heads([0]), Tap::zero("layers.1.expert_weights").units([0]));
        assert_eq!(logits_of(&case, [by_slot]), logits_of(&case, [at_slot]), "{name}");
    }
}

#[test]
fn replacing_an_expert_is_copying_its_weights() {
    for name in SEPARATE {
        let case = golden::case(name);
        let replace = |pairs: &[(usize, usize)]| Tap::replace("layers.1.expert_indices", pairs.iter().copied());
        for (from, to) in [(0, 1), (3, 2), (1, 3)] {
            let copy = with_experts(name, |own| copied(own, from, to).unwrap_or(Change::Keep));
            assert_eq!(logits_of(&case, [replace(&[(from, to)])]), logits_of(&copy, []), "{name}: {to} for {from}");
            let change = |own: &str| copied(own, from, to).or_else(|| copied(own, to, from)).unwrap_or(Change::Keep);
            let swapped = with_experts(name, change);
            let both = replace(&[(from, to), (to, from)]);
            assert_eq!(logits_of(&case, [both.clone()]), logits_of(&swapped, []), "{name}: {from} and {to} swapped");
            // Two swaps cancel each other.
            assert_eq!(logits_of(&case, [both.clone(), both]), logits_of(&case, []), "{name}");
        }
        assert_ne!(logits_of(&case, [replace(&[(0, 1), (1, 2), (2, 3), (3, 0)])]), logits_of(&case, []), "{name}");
    }
}

#[test]
fn choices_can_be_set_from_other_rows_and_values() {
    let case = golden::case("mixtral");
    let site = "layers.1.expert_indices";
    // The same expert in both slots gives the output that it has alone.
    let mut both = plan([Tap::set(site).with(2.0), capture("layers.1.expert_out"), capture(site)]);
    let captured = case.run(std::slice::from_ref(&case.ids), &both).captures;
    assert!(captured[0].array.values().chunks_exact(64).all(|token| token[..32] == token[32..]));
    assert!(captured[1].array.values().iter().all(|&expert| expert == 2.0) && captured[1].array.is_integer());
    // A row can take the choices of another one.
    let other: Vec<u32> = case.ids.iter().rev().copied().collect();
    both = plan([Tap::set(site).from(FromSite::default().row(0)).rows([1]), capture(site)]);
    let rows = case.run(&[case.ids.clone(), other], &both);
    assert_eq!(bits(&rows.captures[0].array), bits(&rows.captures[1].array));
    // A value: 3 − index.
    let mut reversed = Plan::default();
    let read = reversed.read(Tap::read(site));
    let last = reversed.value(Expr::Constant(Array::new(vec![], vec![3.0])));
    let value = reversed.value(Expr::Combine(Combine::Sub, last, read));
    let reversed = reversed.with(Tap::set(site).with(Operand::Value(value))).with(capture("logits"));
    let found = case.run(std::slice::from_ref(&case.ids), &reversed);
    let replaced = run(&case, [Tap::replace(site, [(0, 3), (1, 2), (2, 1), (3, 0)])]);
    assert_eq!(logits(&found), logits(&replaced));
}

#[test]
fn an_expert_with_a_logit_of_minus_infinity_is_never_chosen() {
    for case in cases_with_experts() {
        let (layer, spec) = first_experts(&case);
        let site = |point: &str| format!("layers.{layer}.{point}");
        for expert in 0..spec.count {
            let excluded = set(&site("router_logits"), Operand::Number(f32::NEG_INFINITY)).experts([expert]);
            let found = run(&case, [excluded, capture(&site("expert_indices")), capture(&site("expert_weights"))]);
            let [indices, weights] = [0, 1].map(|at| found.captures[at].array.clone());
            assert!(!indices.values().contains(&(expert as f32)), "{}: expert {expert}", case.name);
            assert!(weights.values().iter().all(|weight| weight.is_finite()), "{}", case.name);
            if matches!(spec.routing.weights, ExpertWeights::SumNormalized { .. } | ExpertWeights::Softmax) {
                for token in weights.values().chunks_exact(spec.top_k) {
                    let sum = token.iter().sum::<f32>() / spec.routing.scale;
                    assert!((sum - 1.0).abs() < 1e-5, "{}: the weights of the others sum to {sum}", case.name);
                }
            }
        }
    }
}

/// A plan with every way to edit experts of a layer.
fn expert_edits(layer: usize, width: usize) -> Vec<Tap> {
    let site = |point: &str| format!("layers.{layer}.{point}");
    let high = When::above(site("mlp_in"), vec![1.0; width], 0.0);
    vec![
        Tap::scale(site("expert_out"), -0.5).experts([0]),
        Tap::add(site("expert_out")).with(0.25).experts([1, 2]).when(high),
        Tap::scale(site("expert_weights"), 1.5).experts([3]).positions(at("1:")),
        Tap::replace(site("expert_indices"), [(0, 2), (2, 0)]),
        Tap::add(site("router_logits")).with(0.5).experts([1]),
    ]
}

#[test]
fn rows_chunks_and_steps_do_not_change_a_bit() {
    for case in cases_with_experts() {
        let (layer, width) = (first_experts(&case).0, case.loaded.model.program().architecture().width);
        let out = format!("layers.{layer}.expert_out");
        let plan = plan(expert_edits(layer, width).into_iter().chain([capture(&out), capture("logits")]));
        let rows = [case.ids.clone(), case.ids[2..].to_vec(), case.ids[..5].to_vec()];
        let together = case.run(&rows, &plan);
        for (row, ids) in rows.iter().enumerate() {
            let alone = case.run(std::slice::from_ref(ids), &plan);
            for capture in &alone.captures {
                let same = together.get(capture.site, row).expect("a capture");
                assert!(bits(&same.array) == bits(&capture.array), "{}: {} of row {row}", case.name, capture.site);
            }
        }
        let n = case.ids.len();
        if !case.decodes_as_whole(n - 3, n) {
            continue;
        }
        for chunk in [None, Some(2)] {
            let options = GenerateOptions { max_new: 4, chunk, ..GenerateOptions::default() };
            let prompt = [case.ids[..n - 3].to_vec()];
            let model = &case.loaded.model;
            let generated = model.generate(&prompt, &plan, &options, &mut |_, _| Control::Go);
            let generated = generated.unwrap_or_else(|e| panic!("{}: {e}", case.name));
            let tokens = [&prompt[0][..], &generated.rows[0].tokens[..]].concat();
            if !case.decodes_as_whole(prompt[0].len(), tokens.len()) {
                continue;
            }
            let whole = case.run(&[tokens[..tokens.len() - 1].to_vec()], &plan);
            let decoded = generated.captures.iter().find(|capture| capture.site == case.site(&out)).expect("outputs");
            let recomputed = whole.get(case.site(&out), 0).expect("outputs");
            assert!(bits(&decoded.array) == bits(&recomputed.array), "{}: chunk {chunk:?}", case.name);
        }
    }
}

#[test]
fn a_capture_of_experts_changes_no_logits_and_edits_of_nothing_change_nothing() {
    for case in cases_with_experts() {
        let (layer, _) = first_experts(&case);
        let out = format!("layers.{layer}.expert_out");
        let plain = logits(&run(&case, []));
        assert_eq!(logits(&run(&case, [capture("layers.*.expert_out")])), plain, "{}", case.name);
        assert_eq!(logits(&run(&case, [Tap::scale(&out, 1.0).experts([0, 1])])), plain, "{}", case.name);
        let same = Tap::replace(format!("layers.{layer}.expert_indices"), [(0, 0)]);
        assert_eq!(logits(&run(&case, [same])), plain, "{}", case.name);
    }
}

#[test]
fn branches_and_devices_have_the_bits_of_a_run() {
    for name in ["mixtral", "deepseek_v3", "llama4_text"] {
        let case = golden::case(name);
        let (layer, width) = (first_experts(&case).0, case.loaded.model.program().architecture().width);
        let out = format!("layers.{layer}.expert_out");
        let captures = || [capture(&out), capture("layers.*.mlp_out"), capture("logits")];
        let device = Deferred::on(&case.loaded.model);
        let whole = plan(expert_edits(layer, width).into_iter().chain(captures()));
        let on_device = device.run(std::slice::from_ref(&case.ids), &whole, &RunOptions::default()).expect("a run");
        let on_cpu = case.run(std::slice::from_ref(&case.ids), &whole);
        for (a, b) in on_cpu.captures.iter().zip(&on_device.captures) {
            assert!(bits(&a.array) == bits(&b.array), "{name}: {} on a device", a.site);
        }
        let base = case.loaded.model.base(&case.ids, &Plan::default()).expect("a base");
        for edit in expert_edits(layer, width).into_iter().filter(|tap| tap.when.is_none()) {
            let plan = plan([edit.positions(at("4:"))].into_iter().chain(captures()));
            let (branch, whole) =
                (base.branch(&plan).expect("a branch"), case.run(std::slice::from_ref(&case.ids), &plan));
            for (a, b) in branch.captures.iter().zip(&whole.captures) {
                assert!(bits(&a.array) == bits(&b.array), "{name}: {} after {:?}", a.site, plan.taps[0]);
            }
        }
    }
}

#[test]
fn an_invalid_choice_ends_its_own_request_only() {
    let case = golden::case("mixtral");
    let site = "layers.1.expert_indices";
    let mut wrong = Plan::default();
    let read = wrong.read(Tap::read(site));
    let half = wrong.value(Expr::Constant(Array::new(vec![], vec![0.5])));
    let value = wrong.value(Expr::Combine(Combine::Add, read, half));
    let wrong = wrong.with(Tap::set(site).with(Operand::Value(value))).with(capture("logits"));
    let error = case.loaded.model.run(std::slice::from_ref(&case.ids), &wrong, &RunOptions::default());
    let error = error.expect_err("half an expert").to_string();
    assert!(error.contains(".5") && error.contains("has 4") && error.contains(site), "{error}");

    let options = GenerateOptions { max_new: 3, ..GenerateOptions::default() };
    let mut batch = Batch::new(&case.loaded.model);
    let valid = plan([capture("layers.*.expert_out")]);
    let ids = [&wrong, &valid].map(|plan| batch.add(std::slice::from_ref(&case.ids), plan, &options).expect("a job"));
    while batch.running() > 0 {
        batch.pass(64, &mut |_, _, _| Control::Go).expect("a pass");
    }
    assert!(matches!(batch.take(ids[0]), Some(Err(Error::Plan { .. }))));
    let together = batch.take(ids[1]).expect("an ended job").expect("a generation");
    assert!(everything(&together) == everything(&generate(&case, std::slice::from_ref(&case.ids), &valid, 3)));
}

#[test]
fn branches_capture_by_expert() {
    let case = golden::case("mixtral");
    let base = case.loaded.model.base(&case.ids, &Plan::default()).expect("a base");
    let edit = Tap::zero("layers.1.z").positions(at("3"));
    let plan =
        plan([edit, capture("layers.1.expert_out").experts([2, 1]), capture("layers.0.expert_weights").experts([0])]);
    let (branch, whole) = (base.branch(&plan).expect("a branch"), case.run(std::slice::from_ref(&case.ids), &plan));
    for (a, b) in branch.captures.iter().zip(&whole.captures) {
        assert!(a.array.shape() == b.array.shape() && bits(&a.array) == bits(&b.array), "{}", a.site);
    }
}

#[test]
fn a_device_captures_by_expert() {
    let case = golden::case("mixtral");
    let plan = plan([capture("layers.1.expert_out").experts([2, 1]), capture("layers.0.expert_weights").experts([0])]);
    let device = Deferred::on(&case.loaded.model);
    let rows = [case.ids.clone()];
    let (ours, theirs) = (device.run(&rows, &plan, &RunOptions::default()).expect("a run"), case.run(&rows, &plan));
    for (a, b) in ours.captures.iter().zip(&theirs.captures) {
        assert!(bits(&a.array) == bits(&b.array), "{}", a.site);
    }
}

/// Captures by expert against the whole sites and `expert_indices`.
#[test]
fn a_capture_by_expert_is_zero_where_the_expert_is_not_chosen() {
    for case in cases_with_experts() {
        let (layer, spec) = first_experts(&case);
        let site = |point: &str| format!("layers.{layer}.{point}");
        let sites = [site("expert_indices"), site("expert_weights"), site("expert_out")];
        let experts: Vec<usize> = (0..spec.count).rev().collect();
        let taps = sites.iter().map(|site| capture(site));
        let by_expert = sites[1..].iter().map(|site| capture(site).experts(experts.iter().copied()));
        let some = capture(&sites[2]).experts([1]).units([2, 0]).positions(at("2,1"));
        let rows = [case.ids.clone(), case.ids[..4].to_vec()];
        let plan = plan(taps.chain(by_expert).chain([some]));
        let whole = case.run(&rows, &plan);
        let chunked = case
            .loaded
            .model
            .run(&rows, &plan, &RunOptions { chunk: Some(2), ..RunOptions::default() })
            .expect("chunks");
        for run in [&whole, &chunked] {
            for row in 0..rows.len() {
                let own: Vec<&Array> = run.captures.iter().filter(|c| c.row == row).map(|c| &c.array).collect();
                let [indices, weights, out, weights_of, out_of, some] = own[..] else { panic!("six captures") };
                let (tokens, slots) = (indices.shape()[0], indices.shape()[1]);
                let width = out.shape()[2];
                assert_eq!(weights_of.shape(), [tokens, experts.len()], "{}", case.name);
                assert_eq!(out_of.shape(), [tokens, experts.len(), width], "{}", case.name);
                assert_eq!(some.shape(), [2, 1, 2]);
                let mut chosen = 0;
                for (token, (nth, &expert)) in (0..tokens).flat_map(|t| experts.iter().enumerate().map(move |e| (t, e)))
                {
                    let slot = (0..slots).find(|slot| indices.values()[token * slots + slot] as usize == expert);
                    chosen += usize::from(slot.is_some());
                    let expected = slot.map_or(0.0, |slot| weights.values()[token * slots + slot]);
                    assert_eq!(weights_of.values()[token * experts.len() + nth], expected, "{}", case.name);
                    let line = &out_of.values()[(token * experts.len() + nth) * width..][..width];
                    match slot {
                        Some(slot) => assert_eq!(line, &out.values()[(token * slots + slot) * width..][..width]),
                        None => assert!(line.iter().all(|&x| x == 0.0)),
                    }
                    if let Some(at) = [2, 1].iter().position(|&position| position == token).filter(|_| expert == 1) {
                        assert_eq!(some.values()[2 * at..][..2], [line[2], line[0]], "{}", case.name);
                    }
                }
                assert_eq!(chosen, tokens * slots, "{}: every slot is found", case.name);
            }
        }
    }
}
