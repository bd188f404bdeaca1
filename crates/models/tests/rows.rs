//! Promise 2: a row's numbers are the same bits however it is run. Alone or in any batch, whole or in chunks, decoded or recomputed, on any
//! number of threads.

#[allow(dead_code)] // each test file uses its own part of this module
mod golden;

use golden::Case;
use pellucid_engine::{
    Action, Capture, Control, GenerateOptions, Generation, Model, Plan, Positions, RunOptions, Sampling, Tap,
};
use pellucid_kernels::Pool;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The bits of every captured site of a row.
type Bits = BTreeMap<String, Vec<u32>>;

fn bits(captures: &[Capture], row: usize) -> Bits {
    let of_row = captures.iter().filter(|capture| capture.row == row);
    of_row
        .map(|capture| (capture.site.to_string(), capture.array.values().iter().map(|x| x.to_bits()).collect()))
        .collect()
}

fn assert_same(name: &str, what: &str, ours: &Bits, theirs: &Bits) {
    assert!(ours.keys().eq(theirs.keys()), "{name}, {what}: other sites");
    for (site, ours) in ours {
        assert!(ours == &theirs[site], "{name}, {what}: {site} differs in its bits");
    }
}

/// Rows of very different lengths: together more than one block of a product, and past a tile of keys where the context allows.
fn rows(case: &Case) -> Vec<Vec<u32>> {
    let longest = case.loaded.model.program().architecture().context.unwrap_or(150);
    let cycled = |start: usize, len: usize| {
        case.ids.iter().cycle().skip(start).step_by(5).take(len).copied().collect::<Vec<u32>>()
    };
    vec![case.ids.clone(), case.ids[3..].to_vec(), vec![case.ids[1]], cycled(1, longest), cycled(2, longest.min(31))]
}

fn everything(case: &Case) -> Plan {
    Plan::capture(case.token_sites())
}

/// Every site of each row, run alone.
fn solo(case: &Case, rows: &[Vec<u32>], plan: &Plan) -> Vec<Bits> {
    rows.iter().map(|row| bits(&case.run(std::slice::from_ref(row), plan).captures, 0)).collect()
}

fn run(model: &Model, rows: &[Vec<u32>], plan: &Plan, chunk: Option<usize>) -> Vec<Bits> {
    let run = model.run(rows, plan, &RunOptions { chunk, ..RunOptions::default() }).expect("a run");
    (0..rows.len()).map(|row| bits(&run.captures, row)).collect()
}

fn generate(model: &Model, rows: &[Vec<u32>], plan: &Plan, options: &GenerateOptions) -> Generation {
    model.generate(rows, plan, options, &mut |_, _| Control::Go).expect("a generation")
}

#[test]
fn a_row_is_the_same_alone_and_in_ragged_batches_of_any_order() {
    for case in golden::all() {
        let (rows, plan) = (rows(&case), everything(&case));
        let alone = solo(&case, &rows, &plan);
        assert!(
            alone[0].contains_key("logits") && alone[0].len() == case.token_sites().len(),
            "{}: every site is looked at",
            case.name
        );
        for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 0, 3, 1]] {
            let batch: Vec<Vec<u32>> = order.iter().map(|&row| rows[row].clone()).collect();
            for (ours, row) in run(&case.loaded.model, &batch, &plan, None).iter().zip(order) {
                assert_same(&case.name, &format!("row {row} in batch {order:?}"), ours, &alone[row]);
            }
        }
    }
}

#[test]
fn different_rows_have_different_bits() {
    // The control of this file: the comparison is able to fail.
    let case = golden::case("llama");
    let alone = solo(&case, &[case.ids.clone(), case.ids.iter().rev().copied().collect()], &everything(&case));
    let equal = alone[0].iter().filter(|(site, bits)| **bits == alone[1][*site]).count();
    assert_eq!(equal, 0, "every site depends on the text");
}

#[test]
fn looking_never_changes_a_bit() {
    for case in golden::all() {
        let (rows, plan) = (rows(&case), everything(&case));
        let only = solo(&case, &rows, &Plan::capture(["logits"]));
        for (row, (only, all)) in only.iter().zip(solo(&case, &rows, &plan)).enumerate() {
            assert!(only["logits"] == all["logits"], "{}: row {row} changes when every site is captured", case.name);
        }
    }
}

#[test]
fn looking_into_attention_changes_rounding_only() {
    // Attention that is looked into is computed step by step instead of fused: the same numbers, not the same bits.
    for case in golden::all().iter().filter(|case| case.attends()) {
        let (plain, looked) = (Plan::capture(["logits"]), Plan::capture(["logits", "layers.*.attn_probs"]));
        let rows = [case.ids.clone(), case.ids[3..].to_vec()];
        for row in 0..2 {
            let values = |plan: &Plan| case.run(&rows, plan).captures[row].array.values().to_vec();
            // Rounding is relative: a few parts in a million of the largest logit.
            let (fused, apart) = (values(&plain), values(&looked));
            let (off, largest) =
                (golden::difference(&fused, &apart), fused.iter().fold(1f32, |most, x| most.max(x.abs())));
            assert!(off < 4e-6 * largest, "{}: row {row} is off by {off} of {largest}", case.name);
        }
        // Only the rows that are looked into.
        let mut first = looked.clone();
        first.taps[1].rows = Some(vec![0]);
        let values = |plan: &Plan| case.run(&rows, plan).captures[1].array.values().to_vec();
        assert_eq!(values(&plain), values(&first), "{}: the other row", case.name);
    }
}

#[test]
fn prefill_in_chunks_is_prefill_whole() {
    for case in golden::all() {
        let (rows, plan) = (rows(&case), everything(&case));
        let whole = solo(&case, &rows, &plan);
        for chunk in [1, 3, 5] {
            for (row, ours) in run(&case.loaded.model, &rows, &plan, Some(chunk)).iter().enumerate() {
                assert_same(&case.name, &format!("row {row} in chunks of {chunk}"), ours, &whole[row]);
            }
        }
    }
}

#[test]
fn decoding_with_the_cache_is_one_run_over_the_whole_text() {
    let (mut equal, mut outgrown) = (0, 0);
    for case in golden::all() {
        let (prompts, plan) = ([case.ids.clone(), case.ids[..2].to_vec(), case.ids[5..].to_vec()], everything(&case));
        let mut options = GenerateOptions { max_new: 7, ..GenerateOptions::default() };
        for chunk in [None, Some(4)] {
            options.chunk = chunk;
            let generation = generate(&case.loaded.model, &prompts, &plan, &options);
            for (row, prompt) in prompts.iter().enumerate() {
                let new = &generation.rows[row].tokens;
                assert_eq!(new.len(), 7);
                let text = [prompt, &new[..6]].concat();
                for capture in generation.captures.iter().filter(|capture| capture.row == row) {
                    assert_eq!(
                        capture.array.shape()[0],
                        prompt.len() + new.len() - 1,
                        "{}: rows of {}",
                        case.name,
                        capture.site
                    );
                    assert_eq!(
                        capture.positions,
                        (0..text.len()).collect::<Vec<_>>(),
                        "{}: positions of {}",
                        case.name,
                        capture.site
                    );
                }
                let (total, whole) = (text.len(), bits(&case.run(&[text], &plan).captures, 0));
                let ours = bits(&generation.captures, row);
                if case.decodes_as_whole(prompt.len(), total) {
                    assert_same(&case.name, &format!("row {row} decoded"), &ours, &whole);
                    equal += 1;
                } else {
                    // Exactly the rows that outgrow their rotations while they are decoded: they must differ.
                    assert!(ours["logits"] != whole["logits"], "{}: row {row} has other rotations", case.name);
                    outgrown += 1;
                }
            }
        }
    }
    assert!(equal > outgrown, "{equal} rows are one run, {outgrown} outgrow their rotations");
}

#[test]
fn attention_captured_over_decode_steps_is_square_with_nothing_above_the_diagonal() {
    for case in golden::all().iter().filter(|case| case.attends()) {
        let plan = Plan::capture(["layers.*.attn_probs", "layers.*.attn_scores", "logits"]);
        let options = GenerateOptions { max_new: 5, ..GenerateOptions::default() };
        let generation = generate(&case.loaded.model, std::slice::from_ref(&case.ids), &plan, &options);
        let text = [&case.ids, &generation.rows[0].tokens[..4]].concat();
        let n = text.len();
        let run = case.run(std::slice::from_ref(&text), &plan);
        if case.decodes_as_whole(case.ids.len(), n) {
            assert_same(&case.name, "attention decoded", &bits(&generation.captures, 0), &bits(&run.captures, 0));
        }
        let probs = generation.captures.iter().filter(|capture| capture.site.to_string().ends_with("attn_probs"));
        for capture in probs {
            let heads = capture.array.shape()[0];
            assert_eq!(capture.array.shape(), [heads, n, n], "{}: {}", case.name, capture.site);
            for (line, probs) in capture.array.values().chunks_exact(n).enumerate() {
                assert!(probs[line % n + 1..].iter().all(|&p| p == 0.0), "{}: {} looks ahead", case.name, capture.site);
            }
        }
    }
}

#[test]
fn threads_never_change_a_bit() {
    let (one, three) = (Arc::new(Pool::new(1)), Arc::new(Pool::new(3)));
    for case in golden::all() {
        let (rows, plan) = (rows(&case), everything(&case));
        let ours = run(&case.loaded.model.clone().with_pool(one.clone()), &rows, &plan, None);
        let theirs = run(&case.loaded.model.clone().with_pool(three.clone()), &rows, &plan, None);
        for (row, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            assert_same(&case.name, &format!("row {row} on three threads"), ours, theirs);
        }
    }
}

#[test]
fn a_generated_batch_is_each_row_generated_alone() {
    for case in golden::all() {
        let prompts = [case.ids.clone(), case.ids[4..].to_vec(), vec![case.ids[0]]];
        let plan = everything(&case);
        let options = GenerateOptions { max_new: 6, ..GenerateOptions::default() };
        let together = generate(&case.loaded.model, &prompts, &plan, &options);
        for (row, prompt) in prompts.iter().enumerate() {
            let alone = generate(&case.loaded.model, std::slice::from_ref(prompt), &plan, &options);
            assert_eq!(alone.rows[0].tokens, together.rows[row].tokens, "{}: row {row}", case.name);
            assert_same(
                &case.name,
                &format!("row {row} generated"),
                &bits(&together.captures, row),
                &bits(&alone.captures, 0),
            );
        }
    }
}

#[test]
fn sampling_with_a_seed_does_not_depend_on_the_batch() {
    for case in golden::all() {
        let sampling =
            Sampling { temperature: 1.5, top_k: 40, top_p: 0.95, min_p: 0.01, repetition_penalty: 1.1, seed: 11 };
        // Ten tokens, or as many as fit behind the prompt.
        let room = case.loaded.model.program().architecture().context.map_or(10, |context| context - case.ids.len());
        let options = GenerateOptions { max_new: room.min(10), sampling, ..GenerateOptions::default() };
        let prompts = [case.ids.clone(), case.ids[4..].to_vec(), case.ids.clone()];
        let together = generate(&case.loaded.model, &prompts, &Plan::default(), &options);
        let alone = generate(&case.loaded.model, &prompts[..1], &Plan::default(), &options);
        assert_eq!(alone.rows[0].tokens, together.rows[0].tokens, "{}", case.name);
        assert_ne!(
            together.rows[0].tokens, together.rows[2].tokens,
            "{}: equal prompts draw from different streams",
            case.name
        );
        let other = GenerateOptions { sampling: Sampling { seed: 12, ..options.sampling.clone() }, ..options.clone() };
        assert_ne!(
            generate(&case.loaded.model, &prompts[..1], &Plan::default(), &other).rows[0].tokens,
            alone.rows[0].tokens,
            "{}: the seed matters",
            case.name
        );
    }
}

#[test]
fn rows_of_a_batch_may_end_at_different_steps() {
    for case in golden::all() {
        let prompts = [case.ids.clone(), case.ids[2..7].to_vec()];
        let plan = everything(&case);
        let free = generate(
            &case.loaded.model,
            &prompts,
            &plan,
            &GenerateOptions { max_new: 6, ..GenerateOptions::default() },
        );
        // The first row's third token ends it; the second goes on unless it says the same.
        let eos = vec![free.rows[0].tokens[2]];
        let ended = generate(
            &case.loaded.model,
            &prompts,
            &plan,
            &GenerateOptions { max_new: 6, eos: eos.clone(), ..GenerateOptions::default() },
        );
        for (row, prompt) in prompts.iter().enumerate() {
            let expected = free.rows[row].tokens.iter().position(|token| *token == eos[0]).map_or(6, |at| at + 1);
            assert_eq!(ended.rows[row].tokens, free.rows[row].tokens[..expected], "{}: row {row}", case.name);
            for capture in ended.captures.iter().filter(|capture| capture.row == row) {
                assert_eq!(
                    capture.array.shape()[0],
                    prompt.len() + expected - 1,
                    "{}: {} of row {row}",
                    case.name,
                    capture.site
                );
                let whole = free
                    .captures
                    .iter()
                    .find(|other| other.row == row && other.site == capture.site)
                    .expect("the same site");
                assert_eq!(
                    capture.array.values(),
                    &whole.array.values()[..capture.array.values().len()],
                    "{}: {}",
                    case.name,
                    capture.site
                );
            }
        }
    }
}

#[test]
fn the_last_mlp_is_computed_where_somebody_reads_on_and_with_the_same_bits() {
    let mut spared = 0;
    for case in golden::one_per_type().iter().map(|name| golden::case(name)) {
        let model = &case.loaded.model;
        let last = model.program().layer_ops(model.program().architecture().layers.len() - 1);
        let ends = Tap::new("logits", Action::Capture(None)).positions(Positions::List(vec![1, -1]));
        let (plan, once) = (Plan::of([ends]), GenerateOptions { max_new: 1, ..GenerateOptions::default() });
        let whole = Tap::new(
            format!("layers.{}.resid_post", model.program().architecture().layers.len() - 1),
            Action::Capture(None),
        );
        // Alone, two rows that read on at other places in one pass, and one of them looked at everywhere.
        let two = [rows(&case)[0].clone(), rows(&case)[3].clone()];
        let looked = plan.clone().with(Tap { rows: Some(vec![1]), ..whole });
        for (rows, plan) in [(&two[..1], &plan), (&two[1..], &plan), (&two[..], &plan), (&two[..], &looked)] {
            let (profiled, profile) = model.profiled();
            let made = generate(&profiled, rows, plan, &once);
            spared += profile.times().iter().filter(|t| t.op + 1 == last.end && t.computed == 2 * rows.len()).count();
            let everywhere = run(model, rows, plan, None);
            for (row, everywhere) in everywhere.iter().enumerate() {
                assert_same(&case.name, &format!("row {row}"), &bits(&made.captures, row), everywhere);
            }
        }
    }
    assert!(spared > 300, "most types have a last MLP that can be spared: {spared}");
}
