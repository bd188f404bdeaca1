//! Plans in generation: steps, phases, edits that persist in the KV cache; and skipped layers.

use crate::test_plans::{add, at, bits, capture, from, generate, logits, plan, run, set, value};
use golden::Case;
use pellucid_engine::{Action, Array, Generation, Operand, Phase, Plan, Tap};

const SITE: &str = "layers.1.resid_post";

fn captured(case: &Case, generation: &Generation, site: &str, row: usize) -> Array {
    let site = case.site(site);
    generation
        .captures
        .iter()
        .find(|capture| capture.site == site && capture.row == row)
        .expect("a capture")
        .array
        .clone()
}

/// The tokens that a generation fed through the model: all but the last new one.
fn processed_tokens(prompt: &[u32], generation: &Generation, row: usize) -> Vec<u32> {
    let new = &generation.rows[row].tokens;
    [prompt, &new[..new.len() - 1]].concat()
}

#[test]
fn an_edit_persists_in_the_kv_cache() {
    for case in golden::all() {
        // Edits each writable site of layer 1, at two prompt positions.
        let read_only = |site: &str| site.ends_with("expert_indices") || site.ends_with("mixer_state");
        let sites = case.token_sites().into_iter().filter(|site| site.starts_with("layers.1.") && !read_only(site));
        for site in sites {
            let edit = add(&site, 1.5).positions(at("2:4"));
            let taps = plan([edit, capture("logits"), capture(SITE)]);
            let generation = generate(&case, &[case.ids[..8].to_vec()], &taps, 4);
            let whole = processed_tokens(&case.ids[..8], &generation, 0);
            if !case.decodes_as_whole(8, whole.len()) {
                continue;
            }
            let found = case.run(&[whole], &taps);
            for name in ["logits", SITE] {
                assert!(
                    bits(&captured(&case, &generation, name, 0)) == bits(&value(&case, &found, name, 0)),
                    "{}: {name} after an edit of {site}",
                    case.name
                );
            }
        }
    }
}

#[test]
fn edits_at_every_step_are_edits_of_the_whole_text() {
    for case in golden::all() {
        let attends = |layer: usize| case.loaded.model.find(&format!("layers.{layer}.attn_probs")).is_ok();
        let edits = [
            (true, add(SITE, 0.5)),
            (attends(0), Tap::new("layers.0.z", Action::Zero).heads([1])),
            (attends(1), set("layers.1.attn_probs", Operand::Number(0.1)).keys(at("3"))),
        ];
        for (_, tap) in edits.into_iter().filter(|(exists, _)| *exists) {
            let taps = plan([tap, capture("logits")]);
            let generation = generate(&case, std::slice::from_ref(&case.ids), &taps, 5);
            let whole = processed_tokens(&case.ids, &generation, 0);
            if !case.decodes_as_whole(case.ids.len(), whole.len()) {
                continue;
            }
            let found = case.run(&[whole], &taps);
            assert!(
                bits(&captured(&case, &generation, "logits", 0)) == bits(&found.captures[0].array),
                "{}: {}",
                case.name,
                taps.taps[0].site
            );
        }
    }
}

#[test]
fn step_zero_is_the_last_prompt_position_and_step_k_is_k_further() {
    let case = golden::case("llama");
    let prompt = [case.ids[..6].to_vec()];
    for (steps, positions) in
        [("0", vec![5]), ("1", vec![6]), ("0,2", vec![5, 7]), ("1:3", vec![6, 7]), ("all", vec![5, 6, 7, 8])]
    {
        let generation = generate(&case, &prompt, &plan([capture(SITE).steps(at(steps))]), 4);
        assert_eq!(generation.captures[0].positions, positions, "steps {steps}");
        // An edit at these steps is an edit at these positions.
        let listed = positions.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let by = |tap: Tap| generate(&case, &prompt, &plan([tap, capture("logits")]), 4);
        let (by_steps, by_positions) = (by(add(SITE, 3.0).steps(at(steps))), by(add(SITE, 3.0).positions(at(&listed))));
        assert_eq!(by_steps.rows[0].tokens, by_positions.rows[0].tokens);
        let (by_steps, by_positions) =
            (captured(&case, &by_steps, "logits", 0), captured(&case, &by_positions, "logits", 0));
        assert!(bits(&by_steps) == bits(&by_positions), "steps {steps}");
        let plain = captured(&case, &by(capture("embed")), "logits", 0);
        assert!(
            plain.row(positions[0]) != by_steps.row(positions[0])
                && plain.values()[..96 * positions[0]] == by_steps.values()[..96 * positions[0]]
        );
    }
}

#[test]
fn phases_and_generated_positions_are_distinguished() {
    let case = golden::case("gemma3_text");
    let prompts = [case.ids[..5].to_vec(), case.ids.clone()];
    let positions = |tap: Tap| {
        let generation = generate(&case, &prompts, &plan([tap]), 4);
        generation
            .captures
            .iter()
            .map(|capture| (capture.row, capture.positions[0], capture.positions.len()))
            .collect::<Vec<_>>()
    };
    assert_eq!(positions(capture(SITE).phase(Phase::Prefill)), [(0, 0, 5), (1, 0, 12)]);
    assert_eq!(positions(capture(SITE).phase(Phase::Decode)), [(0, 5, 3), (1, 12, 3)]);
    assert_eq!(positions(capture(SITE).phase(Phase::All)), [(0, 0, 8), (1, 0, 15)]);
    assert_eq!(positions(capture(SITE).positions(at("generated"))), [(0, 5, 3), (1, 12, 3)]);
    assert_eq!(positions(capture(SITE).positions(at("prompt"))), [(0, 0, 5), (1, 0, 12)]);
    assert_eq!(positions(capture(SITE).positions(at("-2:"))), [(0, 3, 5), (1, 10, 5)]);
    assert_eq!(positions(capture("layers.1.attn_probs").phase(Phase::Decode)), [(0, 5, 3), (1, 12, 3)]);
}

#[test]
fn rows_of_a_generation_may_have_their_own_steps() {
    let case = golden::case("llama");
    let prompts = [case.ids.clone(), case.ids[3..].to_vec(), case.ids[5..].to_vec()];
    let taps = [
        add(SITE, 4.0).rows([0]).steps(at("1:")),
        Tap::new(SITE, Action::Zero).rows([1]).steps(at("0")),
        capture("logits"),
    ];
    let together = generate(&case, &prompts, &plan(taps.clone()), 5);
    for row in 0..3 {
        let own = taps.get(row).filter(|_| row < 2).cloned().map(|tap| tap.rows([0]));
        let alone = generate(&case, &prompts[row..=row], &plan(own.into_iter().chain([capture("logits")])), 5);
        assert_eq!(together.rows[row].tokens, alone.rows[0].tokens, "row {row}");
        assert!(
            bits(&captured(&case, &together, "logits", row)) == bits(&captured(&case, &alone, "logits", 0)),
            "row {row}"
        );
    }
}

#[test]
fn one_row_may_steer_another_step_by_step() {
    let case = golden::case("llama");
    let prompts = [case.ids.clone(), case.ids.iter().rev().copied().collect()];
    for source in ["layers.0.resid_post", "layers.2.resid_post"] {
        let taps = plan([set("layers.1.resid_post", from(source, 0)).rows([1]), capture(source), capture(SITE)]);
        let generation = generate(&case, &prompts, &taps, 4);
        let (theirs, ours) = (captured(&case, &generation, source, 0), captured(&case, &generation, SITE, 1));
        assert!(bits(&theirs) == bits(&ours), "at the prompt and at every step, from {source}");
        assert_eq!(theirs.shape(), [15, 32]);
    }
    // Only at some steps.
    let taps = plan([set(SITE, from(SITE, 0)).rows([1]).steps(at("1,2")), capture(SITE)]);
    let generation = generate(&case, &prompts, &taps, 4);
    let (theirs, ours) = (captured(&case, &generation, SITE, 0), captured(&case, &generation, SITE, 1));
    assert!((0..15).all(|position| (theirs.row(position) == ours.row(position)) == [12, 13].contains(&position)));
}

#[test]
fn a_skipped_layer_passes_its_input_on() {
    for case in golden::all() {
        for layer in 0..case.layers() {
            let (pre, post) = (format!("layers.{layer}.resid_pre"), format!("layers.{layer}.resid_post"));
            let skipped =
                run(&case, [Tap::new(format!("layers.{layer}"), Action::Skip(None)), capture(&pre), capture(&post)]);
            assert!(
                bits(&value(&case, &skipped, &pre, 0)) == bits(&value(&case, &skipped, &post, 0)),
                "{}: layer {layer}",
                case.name
            );
            let through = value(&case, &skipped, &pre, 0);
            let rows = (0..case.ids.len()).map(|token| through.row(token).to_vec()).collect();
            assert!(
                logits(&skipped) == logits(&run(&case, [set(&post, Operand::Rows(rows))])),
                "{}: layer {layer}",
                case.name
            );
            assert!(logits(&skipped) != logits(&run(&case, [])), "{}: layer {layer} does nothing anyway", case.name);
        }
        let last = format!("layers.{}.resid_post", case.layers() - 1);
        let none =
            run(&case, [Tap::new("layers.*", Action::Skip(None)), capture("layers.0.resid_pre"), capture(&last)]);
        assert!(bits(&none.captures[0].array) == bits(&none.captures[1].array), "{}: every layer skipped", case.name);
    }
}

#[test]
fn sites_inside_a_skipped_layer_are_refused() {
    let case = golden::case("llama");
    for site in ["layers.1.z", "layers.1.attn_probs", "layers.1.mlp_act", "layers.1.resid_mid"] {
        let taps = plan([capture(site), Tap::new("layers.1", Action::Skip(None))]);
        let error = case
            .loaded
            .model
            .run(std::slice::from_ref(&case.ids), &taps, &Default::default())
            .expect_err("it is never computed");
        assert_eq!(
            error.to_string(),
            format!("tap 0 on `{site}`: `{site}` is never computed for row 0, because tap 1 skips layer 1")
        );
    }
    // As the source of another site, too.
    let taps = plan([
        set("layers.2.mlp_out", from("layers.1.mlp_out", 0)),
        Tap::new("layers.1", Action::Skip(None)),
        capture("logits"),
    ]);
    let error = case
        .loaded
        .model
        .run(std::slice::from_ref(&case.ids), &taps, &Default::default())
        .expect_err("it is never computed");
    assert!(
        error.to_string().contains("`layers.1.mlp_out` is never computed for row 0, because tap 1 skips layer 1"),
        "{error}"
    );
    let other_row = plan([Tap::new("layers.1", Action::Skip(None)).rows([0]), capture("layers.1.z").rows([1])]);
    assert_eq!(case.run(&[case.ids.clone(), case.ids.clone()], &other_row).captures.len(), 1, "row 1 does compute it");
}

#[test]
fn rows_skip_layers_independently() {
    let case = golden::case("gemma2");
    let inputs = [case.ids.clone(), case.ids[2..].to_vec()];
    let together = case.run(&inputs, &plan([Tap::new("layers.1", Action::Skip(None)).rows([1]), capture("logits")]));
    let plain = case.run(&inputs[..1], &Plan::capture(["logits"]));
    let skipped = case.run(&inputs[1..], &plan([Tap::new("layers.1", Action::Skip(None)), capture("logits")]));
    assert!(bits(&together.captures[0].array) == bits(&plain.captures[0].array));
    assert!(bits(&together.captures[1].array) == bits(&skipped.captures[0].array));
}

#[test]
fn a_layer_may_be_skipped_at_some_positions_steps_or_phases() {
    let case = golden::case("llama");
    let prompt = [case.ids[..6].to_vec()];
    let skip = || Tap::new("layers.1", Action::Skip(None));
    for (tap, skipped) in [
        (skip().positions(at("2")), vec![2]),
        (skip().steps(at("1")), vec![6]),
        (skip().steps(at("0,2")), vec![5, 7]),
        (skip().phase(Phase::Decode), vec![6, 7]),
        (skip().phase(Phase::Prefill), (0..6).collect()),
        (skip(), (0..8).collect()),
    ] {
        let generation =
            generate(&case, &prompt, &plan([tap.clone(), capture("layers.1.resid_pre"), capture(SITE)]), 3);
        let (pre, post) =
            (captured(&case, &generation, "layers.1.resid_pre", 0), captured(&case, &generation, SITE, 0));
        for position in 0..8 {
            assert_eq!(
                pre.row(position) == post.row(position),
                skipped.contains(&position),
                "position {position} under {tap:?}"
            );
        }
    }
}
