//! Conditions of taps (`when`): edits, captures, marks and stops by token, the same in any batch.

use crate::test_plans::{add, at, bits, capture, direction, generate, plan, value};
use golden::Case;
use pellucid_engine::{
    Action, Batch, Control, Finish, GenerateOptions, Generation, Mark, Operand, Phase, Plan, Reduce, RunOptions, Tap,
    When,
};

const EARLY: &str = "layers.0.resid_post";
const LATE: &str = "layers.1.resid_post";

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A threshold that some prompt positions of the case exceed and others do not.
fn threshold(case: &Case, site: &str) -> f32 {
    let run = case.run(std::slice::from_ref(&case.ids), &plan([capture(site)]));
    let array = value(case, &run, site, 0);
    let mut all: Vec<f32> = (0..case.ids.len()).map(|token| dot(array.row(token), &direction(32))).collect();
    all.sort_by(f32::total_cmp);
    (all[all.len() / 2 - 1] + all[all.len() / 2]) / 2.0
}

fn above(site: &str, threshold: f32) -> When {
    When::above(site, direction(32), threshold)
}

#[test]
fn an_edit_applies_where_its_condition_holds() {
    for name in ["llama", "gpt2", "mixtral", "mamba"] {
        let case = golden::case(name);
        let inputs = [case.ids.clone(), case.ids[1..].to_vec()];
        let limit = threshold(&case, EARLY);
        let conditional = case.run(
            &inputs,
            &plan([capture(EARLY), add(LATE, 3.0).when(above(EARLY, limit)), capture(LATE), capture("logits")]),
        );
        let mut held = 0;
        let mut by_position = Vec::new();
        for (row, tokens) in inputs.iter().enumerate() {
            let early = value(&case, &conditional, EARLY, row);
            let holds = |&token: &usize| dot(early.row(token), &direction(32)) > limit;
            let positions: Vec<i64> = (0..tokens.len()).filter(holds).map(|token| token as i64).collect();
            held += positions.len();
            by_position.push(add(LATE, 3.0).rows([row]).positions(positions));
        }
        assert!(held > 0 && held < inputs[0].len() + inputs[1].len(), "{name}: some positions hold");
        let listed = case.run(&inputs, &plan(by_position.into_iter().chain([capture(LATE), capture("logits")])));
        for site in [LATE, "logits"] {
            for row in 0..2 {
                let (a, b) = (value(&case, &conditional, site, row), value(&case, &listed, site, row));
                assert_eq!(bits(&a), bits(&b), "{name}: {site} of row {row}");
            }
        }
    }
}

#[test]
fn a_condition_reads_the_activation_as_earlier_taps_leave_it() {
    let case = golden::case("llama");
    let never = above(LATE, 1e9);
    let run = |taps: Vec<Tap>| {
        let found = case.run(std::slice::from_ref(&case.ids), &plan(taps.into_iter().chain([capture(LATE)])));
        bits(&value(&case, &found, LATE, 0))
    };
    let plain = run(vec![]);
    assert_eq!(run(vec![Tap::zero(LATE).when(never.clone())]), plain);
    // The addition before the condition makes it hold; after it, it does not.
    let push = || Tap::add(LATE).times(1e8).with(direction(32));
    assert_ne!(run(vec![push(), Tap::zero(LATE).when(never.clone())]), run(vec![push()]));
    assert_eq!(run(vec![Tap::zero(LATE).when(never), push()]), run(vec![push()]));
}

#[test]
fn captures_with_a_condition_have_the_positions_where_it_holds() {
    let case = golden::case("llama");
    let limit = threshold(&case, EARLY);
    let found = case.run(
        std::slice::from_ref(&case.ids),
        &plan([
            Tap::mark("high", above(EARLY, limit)),
            Tap::mark("low", When::below(EARLY, direction(32), limit)),
            capture(LATE).when(above(EARLY, limit)),
            Tap::capture_reduced(EARLY, Reduce::Dot(Operand::Vector(direction(32)))),
            Tap::capture_reduced(EARLY, Reduce::Project(Operand::Rows(vec![direction(32), vec![1.0; 32]]))),
            capture(LATE),
        ]),
    );
    let marked = |name: &str| found.marks.iter().filter(|mark| mark.name == name).collect::<Vec<&Mark>>();
    let positions: Vec<usize> = marked("high").iter().map(|mark| mark.position).collect();
    assert_eq!(found.captures[0].positions, positions);
    assert!(!positions.is_empty() && positions.len() + marked("low").len() == case.ids.len());
    // A mark reports the dot product; `project` has one column for each direction.
    let (dots, projected) = (&found.captures[1].array, &found.captures[2].array);
    assert_eq!(projected.shape(), [case.ids.len(), 2]);
    for mark in &found.marks {
        assert_eq!(mark.value, dots.values()[mark.position]);
        let product = projected.row(mark.position)[0];
        assert!((mark.value - product).abs() <= 1e-5 * mark.value.abs().max(1.0), "{} {product}", mark.value);
        assert_eq!((mark.site.to_string().as_str(), mark.row), (EARLY, 0));
    }
    for (nth, &position) in positions.iter().enumerate() {
        assert_eq!(found.captures[0].array.row(nth), found.captures[3].array.row(position));
    }
}

/// A mark: tap, row, position and the bits of its value.
type MarkBits = (usize, usize, usize, u32);

/// Tokens and marks of a generation.
fn outcome(generation: &Generation) -> (Vec<(Vec<u32>, Finish)>, Vec<MarkBits>) {
    let rows = generation.rows.iter().map(|row| (row.tokens.clone(), row.finish)).collect();
    let mark = |mark: &Mark| (mark.tap, mark.row, mark.position, mark.value.to_bits());
    (rows, generation.marks.iter().map(mark).collect())
}

#[test]
fn stop_ends_the_row_with_the_token_of_that_pass() {
    let case = golden::case("llama");
    let prompts = std::slice::from_ref(&case.ids);
    let free = generate(&case, prompts, &plan([capture(EARLY)]), 12);
    let prompt = case.ids.len();
    let along = |position: usize| dot(free.captures[0].array.row(position), &direction(32));
    // The first generated position, from the third on, that exceeds all earlier generated ones.
    let stop = (prompt + 2..prompt + 11).find(|&at| (prompt..at).all(|earlier| along(earlier) < along(at)));
    let stop = stop.expect("the dot products vary");
    let limit = (prompt..stop).map(along).fold(f32::NEG_INFINITY, f32::max);
    let tap = || Tap::stop(above(EARLY, limit)).phase(Phase::Decode);
    let stopped = generate(&case, prompts, &plan([tap(), capture(EARLY)]), 12);
    assert_eq!(stopped.rows[0].finish, Finish::Condition);
    assert_eq!(stopped.rows[0].tokens, free.rows[0].tokens[..stop + 2 - prompt]);
    assert_eq!(stopped.captures[0].positions.len(), stop + 1, "prompt + generated - 1 positions");
    // A condition that holds in the prompt leaves one new token, in chunks too.
    let in_prompt = plan([Tap::stop(above(EARLY, -1e9)).positions(at("0"))]);
    for chunk in [None, Some(3)] {
        let options = GenerateOptions { max_new: 12, chunk, ..GenerateOptions::default() };
        let found = case.loaded.model.generate(prompts, &in_prompt, &options, &mut |_, _| Control::Go).unwrap();
        assert_eq!(outcome(&found).0, [(free.rows[0].tokens[..1].to_vec(), Finish::Condition)]);
    }
    // The control: a threshold that nothing exceeds.
    let never = generate(&case, prompts, &plan([Tap::stop(above(EARLY, 1e9))]), 12);
    assert_eq!(outcome(&never).0, [(free.rows[0].tokens.clone(), Finish::Length)]);
}

#[test]
fn conditions_have_the_same_outcome_in_any_batch() {
    for name in ["llama", "mixtral", "mamba", "gemma3_text"] {
        let case = golden::case(name);
        let (early, late) = (threshold(&case, EARLY), threshold(&case, LATE));
        let plans: Vec<Plan> = vec![
            plan([capture(LATE)]),
            plan([Tap::zero(LATE).when(above(EARLY, early)), Tap::mark("m", above(LATE, late)), capture(LATE)]),
            plan([Tap::mark("m", above(EARLY, early)), capture(LATE).when(When::below(EARLY, direction(32), early))]),
            plan([
                Tap::add_scaled("layers.*.resid_post", direction(32), 0.4).when(above("layers.*.resid_mid", 0.0)),
                Tap::stop(above(LATE, late)).phase(Phase::Decode),
                capture(LATE),
            ]),
        ];
        let plans = if case.attends() { plans } else { plans[..3].to_vec() };
        let options = GenerateOptions { max_new: 7, ..GenerateOptions::default() };
        let inputs = [case.ids.clone(), case.ids[2..].to_vec()];
        let mut batch = Batch::new(&case.loaded.model);
        let ids: Vec<_> = plans.iter().map(|plan| batch.add(&inputs, plan, &options).expect("a valid plan")).collect();
        while batch.running() > 0 {
            batch.pass(7, &mut |_, _, _| Control::Go).expect("a pass");
        }
        let mut marks = 0;
        for (plan, id) in plans.iter().zip(ids) {
            let together = batch.take(id).expect("it has ended").expect("a generation");
            let alone = generate(&case, &inputs, plan, 7);
            assert_eq!(outcome(&together), outcome(&alone), "{name}");
            marks += alone.marks.len();
            for (a, b) in together.captures.iter().zip(&alone.captures) {
                assert!(a.positions == b.positions && bits(&a.array) == bits(&b.array), "{name}");
            }
        }
        assert!(marks > 0, "{name}: a mark held");
    }
}

#[test]
fn conditions_that_cannot_work_are_refused() {
    let case = golden::case("llama");
    let inputs = std::slice::from_ref(&case.ids);
    let refused = |tap: Tap, words: &[&str]| {
        let error = case.loaded.model.run(inputs, &plan([tap, capture("logits")]), &RunOptions::default());
        let error = error.expect_err(words[0]).to_string();
        words.iter().for_each(|word| assert!(error.contains(word), "{error:?} does not contain {word:?}"));
    };
    let when = || above(EARLY, 0.0);
    refused(Tap::zero(EARLY).when(above(LATE, 0.0)), &["too late", LATE, EARLY]);
    refused(Tap::zero("layers.0.resid_post").when(above("layers.1.resid_pre", 0.0)), &["too late"]);
    refused(Tap::zero(LATE).when(When::above(EARLY, vec![1.0; 31], 0.0)), &["31", "32"]);
    refused(Tap::zero(LATE).when(When::above(EARLY, vec![0.0; 32], 0.0)), &["not zero"]);
    refused(Tap::zero(LATE).when(When::above(EARLY, vec![f32::NAN; 32], 0.0)), &["finite"]);
    refused(Tap::zero(LATE).when(When { above: None, ..when() }), &["`above`, `below` or both"]);
    refused(Tap::zero(LATE).when(When { below: Some(-1.0), ..when() }), &["nothing is above"]);
    refused(Tap::zero(LATE).when(When::above("layers.9.resid_post", vec![1.0; 32], 0.0)), &["when", "layers.9"]);
    refused(Tap::zero(LATE).when(When::above("layers.0.attn_probs", vec![1.0; 4], 0.0)), &["attention"]);
    refused(Tap::read(LATE).when(when()), &["`as`"]);
    refused(Tap::skip("layers.1").when(when()), &["skip"]);
    refused(Tap::call(LATE, |_| {}).when(when()), &["closure"]);
    refused(Tap::capture_reduced(LATE, Reduce::Mean).when(when()), &["mean"]);
    refused(Tap::new(EARLY, Action::Mark("m".into())), &["`mark` needs a condition"]);
    refused(Tap::new(LATE, Action::Stop).when(when()), &["leave out `site`"]);
    refused(Tap::stop(when()), &["`stop` ends a generation"]);
    // Gradients and branches do not evaluate conditions.
    let base = case.loaded.model.base(&case.ids, &Plan::default()).expect("a base");
    let error = base.branch(&plan([Tap::zero(LATE).when(when())])).expect_err("a condition in a branch").to_string();
    assert!(error.contains("a branch does not evaluate `when`"), "{error}");
    for (json, word) in [
        (r#"{"site": "embed", "zero": true, "when": {"direction": [1], "above": 1, "over": 2}}"#, "over"),
        (r#"{"zero": true, "when": {"direction": [1], "above": 1}}"#, "site"),
        (r#"{"site": "embed", "zero": true, "when": {"direction": [1]}}"#, "`above`, `below` or both"),
        (r#"{"when": {"site": "embed", "direction": [1], "above": 1}, "stop": false}"#, "`stop` must be true"),
        (r#"{"when": {"site": "embed", "direction": [1], "above": 1}, "mark": 3}"#, "`mark` must be a name"),
    ] {
        let error = Plan::from_json(&format!(r#"{{"taps": [{json}]}}"#)).expect_err(json);
        assert!(error.contains(word), "{json}: {error}");
    }
}
