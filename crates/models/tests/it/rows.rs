//! A row has the same bits however it is run: alone or in any batch, whole or in chunks, decoded or
//! recomputed, on any number of threads.

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

fn assert_same(name: &str, what: &str, first: &Bits, second: &Bits) {
    assert!(first.keys().eq(second.keys()), "{name}, {what}: other sites");
    for (site, first) in first {
        assert!(first == &second[site], "{name}, {what}: {site} differs in its bits");
    }
}

/// Rows of very different lengths: together more tokens than one matmul block, and one longer than
/// a tile of keys if the context allows.
fn rows(case: &Case) -> Vec<Vec<u32>> {
    let longest = case.loaded.model.program().architecture().context.unwrap_or(150);
    let cycled = |start: usize, len: usize| {
        case.ids.iter().cycle().skip(start).step_by(5).take(len).copied().collect::<Vec<u32>>()
    };
    vec![case.ids.clone(), case.ids[3..].to_vec(), vec![case.ids[1]], cycled(1, longest), cycled(2, longest.min(31))]
}

fn all_sites(case: &Case) -> Plan {
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
        let (rows, plan) = (rows(&case), all_sites(&case));
        let alone = solo(&case, &rows, &plan);
        assert!(
            alone[0].contains_key("logits") && alone[0].len() == case.token_sites().len(),
            "{}: every site is captured",
            case.name
        );
        for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 0, 3, 1]] {
            let batch: Vec<Vec<u32>> = order.iter().map(|&row| rows[row].clone()).collect();
            for (first, row) in run(&case.loaded.model, &batch, &plan, None).iter().zip(order) {
                assert_same(&case.name, &format!("row {row} in batch {order:?}"), first, &alone[row]);
            }
        }
    }
}

#[test]
fn different_rows_have_different_bits() {
    // Control of this file: the comparison can fail.
    let case = golden::case("llama");
    let alone = solo(&case, &[case.ids.clone(), case.ids.iter().rev().copied().collect()], &all_sites(&case));
    let equal = alone[0].iter().filter(|(site, bits)| **bits == alone[1][*site]).count();
    assert_eq!(equal, 0, "every site depends on the text");
}

#[test]
fn capturing_never_changes_a_bit() {
    for case in golden::all() {
        let (rows, plan) = (rows(&case), all_sites(&case));
        let only = solo(&case, &rows, &Plan::capture(["logits"]));
        for (row, (only, all)) in only.iter().zip(solo(&case, &rows, &plan)).enumerate() {
            assert!(only["logits"] == all["logits"], "{}: row {row} changes when every site is captured", case.name);
        }
    }
}

#[test]
fn capturing_attention_changes_rounding_only() {
    // Tapped attention runs unfused, so that its result differs by rounding.
    for case in golden::all().iter().filter(|case| case.attends()) {
        let (plain, tapped) = (Plan::capture(["logits"]), Plan::capture(["logits", "layers.*.attn_probs"]));
        let rows = [case.ids.clone(), case.ids[3..].to_vec()];
        for row in 0..2 {
            let values = |plan: &Plan| case.run(&rows, plan).captures[row].array.values().to_vec();
            // Rounding is relative: a few parts in a million of the largest logit.
            let (fused, unfused) = (values(&plain), values(&tapped));
            let (off, largest) =
                (golden::difference(&fused, &unfused), fused.iter().fold(1f32, |most, x| most.max(x.abs())));
            assert!(off < 4e-6 * largest, "{}: row {row} is off by {off} of {largest}", case.name);
        }
        // Only tapped rows run unfused.
        let mut first = tapped.clone();
        first.taps[1].rows = Some(vec![0]);
        let values = |plan: &Plan| case.run(&rows, plan).captures[1].array.values().to_vec();
        assert_eq!(values(&plain), values(&first), "{}: the other row", case.name);
    }
}

#[test]
fn prefill_in_chunks_equals_whole_prefill() {
    for case in golden::all() {
        let (rows, plan) = (rows(&case), all_sites(&case));
        let whole = solo(&case, &rows, &plan);
        for chunk in [1, 3, 5] {
            for (row, first) in run(&case.loaded.model, &rows, &plan, Some(chunk)).iter().enumerate() {
                assert_same(&case.name, &format!("row {row} in chunks of {chunk}"), first, &whole[row]);
            }
        }
    }
}

#[test]
fn decoding_with_the_kv_cache_equals_one_run_over_the_whole_text() {
    let (mut equal, mut rescaled) = (0, 0);
    for case in golden::all() {
        let (prompts, plan) = ([case.ids.clone(), case.ids[..2].to_vec(), case.ids[5..].to_vec()], all_sites(&case));
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
                let first = bits(&generation.captures, row);
                if case.decodes_as_whole(prompt.len(), total) {
                    assert_same(&case.name, &format!("row {row} decoded"), &first, &whole);
                    equal += 1;
                } else {
                    // The RoPE scaling changes while these rows are decoded, so they must differ.
                    assert!(first["logits"] != whole["logits"], "{}: row {row} has another RoPE scaling", case.name);
                    rescaled += 1;
                }
            }
        }
    }
    assert!(equal > rescaled, "{equal} rows are equal, {rescaled} change their RoPE scaling");
}

#[test]
fn attention_captured_over_decode_steps_is_square_and_causal() {
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
            for (query, probs) in capture.array.values().chunks_exact(n).enumerate() {
                assert!(
                    probs[query % n + 1..].iter().all(|&p| p == 0.0),
                    "{}: {} attends to later positions",
                    case.name,
                    capture.site
                );
            }
        }
    }
}

#[test]
fn threads_never_change_a_bit() {
    let (one, three) = (Arc::new(Pool::new(1)), Arc::new(Pool::new(3)));
    for case in golden::all() {
        let (rows, plan) = (rows(&case), all_sites(&case));
        let first = run(&case.loaded.model.clone().with_pool(one.clone()), &rows, &plan, None);
        let second = run(&case.loaded.model.clone().with_pool(three.clone()), &rows, &plan, None);
        for (row, (first, second)) in first.iter().zip(&second).enumerate() {
            assert_same(&case.name, &format!("row {row} on three threads"), first, second);
        }
    }
}

#[test]
fn a_row_generated_in_a_batch_equals_the_row_generated_alone() {
    for case in golden::all() {
        let prompts = [case.ids.clone(), case.ids[4..].to_vec(), vec![case.ids[0]]];
        let plan = all_sites(&case);
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
        let sampling = Sampling {
            temperature: 1.5,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.01,
            repetition_penalty: 1.1,
            seed: 11,
            ..Sampling::default()
        };
        // Ten tokens, or as many as the context allows.
        let free = case.loaded.model.program().architecture().context.map_or(10, |context| context - case.ids.len());
        let options = GenerateOptions { max_new: free.min(10), sampling, ..GenerateOptions::default() };
        let prompts = [case.ids.clone(), case.ids[4..].to_vec(), case.ids.clone()];
        let together = generate(&case.loaded.model, &prompts, &Plan::default(), &options);
        let alone = generate(&case.loaded.model, &prompts[..1], &Plan::default(), &options);
        assert_eq!(alone.rows[0].tokens, together.rows[0].tokens, "{}", case.name);
        assert_ne!(
            together.rows[0].tokens, together.rows[2].tokens,
            "{}: rows with equal prompts have different random streams",
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
        let plan = all_sites(&case);
        let free = generate(
            &case.loaded.model,
            &prompts,
            &plan,
            &GenerateOptions { max_new: 6, ..GenerateOptions::default() },
        );
        // The first row's third token is its end token; the second row goes on unless it generates
        // it.
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
fn the_last_mlp_runs_only_for_needed_tokens_and_with_the_same_bits() {
    let mut reduced = 0;
    for case in golden::one_per_type().iter().map(|name| golden::case(name)) {
        let model = &case.loaded.model;
        let last = model.program().layer_ops(model.program().architecture().layers.len() - 1);
        let ends = Tap::new("logits", Action::Capture(None)).positions(Positions::List(vec![1, -1]));
        let (plan, once) = (Plan::of([ends]), GenerateOptions { max_new: 1, ..GenerateOptions::default() });
        let whole = Tap::new(
            format!("layers.{}.resid_post", model.program().architecture().layers.len() - 1),
            Action::Capture(None),
        );
        // Each row alone, both rows in one pass with different needed tokens, and one of them
        // captured at every position.
        let two = [rows(&case)[0].clone(), rows(&case)[3].clone()];
        let tapped = plan.clone().with(Tap { rows: Some(vec![1]), ..whole });
        for (rows, plan) in [(&two[..1], &plan), (&two[1..], &plan), (&two[..], &plan), (&two[..], &tapped)] {
            let (profiled, profile) = model.profiled();
            let generation = generate(&profiled, rows, plan, &once);
            reduced += profile.times().iter().filter(|t| t.op + 1 == last.end && t.computed == 2 * rows.len()).count();
            let all_tokens = run(model, rows, plan, None);
            for (row, all_tokens) in all_tokens.iter().enumerate() {
                assert_same(&case.name, &format!("row {row}"), &bits(&generation.captures, row), all_tokens);
            }
        }
    }
    assert!(reduced > 300, "the last MLP of most types computes only needed tokens: {reduced}");
}
