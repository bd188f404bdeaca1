//! Speculative decoding by prompt lookup, and the prefix cache: both save work without changing
//! results.

use golden::Case;
use pellucid_engine::{
    Action, Control, GenerateOptions, Generation, Model, Operand, Plan, Positions, PrefixCache, Run, RunOptions,
    Sampling, Tap,
};
use pellucid_kernels::attention::KvFormat;
use pellucid_models::{LoadOptions, LoadedModel};

fn generate(model: &Model, rows: &[Vec<u32>], plan: &Plan, options: &GenerateOptions) -> Generation {
    model.generate(rows, plan, options, &mut |_, _| Control::Go).expect("a generation")
}

/// How many tokens to generate after a prompt of `prompt` tokens: 24, or as many as the context
/// allows.
fn max_new_tokens(case: &Case, prompt: usize) -> usize {
    let context = case.loaded.model.program().architecture().context.unwrap_or(usize::MAX);
    context.saturating_add(1).saturating_sub(prompt).min(24)
}

/// The case's tokens twice, cut to leave 12 tokens of context.
fn repeated(case: &Case) -> Vec<u32> {
    let context = case.loaded.model.program().architecture().context.unwrap_or(usize::MAX);
    case.ids.iter().chain(&case.ids).copied().take(context.saturating_sub(12)).collect()
}

#[test]
fn prompt_lookup_changes_no_token() {
    let samplings = [
        Sampling::default(),
        Sampling { temperature: 0.7, seed: 3, ..Sampling::default() },
        Sampling { temperature: 1.3, top_k: 9, repetition_penalty: 1.1, seed: 4, ..Sampling::default() },
    ];
    let (mut drafted, mut accepted) = (0, 0);
    for name in golden::one_per_type() {
        let case = golden::case(&name);
        let rows = [repeated(&case), case.ids[1..].to_vec()];
        let max_new = max_new_tokens(&case, rows[0].len());
        for sampling in &samplings {
            let without = GenerateOptions { max_new, sampling: sampling.clone(), ..GenerateOptions::default() };
            let with = GenerateOptions { lookup: 5, ..without.clone() };
            let [ours, theirs] =
                [with, without].map(|options| generate(&case.loaded.model, &rows, &Plan::default(), &options));
            for (ours, theirs) in ours.rows.iter().zip(&theirs.rows) {
                assert_eq!(ours.tokens, theirs.tokens, "{name}, {sampling:?}");
                assert_eq!(ours.finish, theirs.finish, "{name}");
                assert_eq!(theirs.lookup, Default::default());
                let passes = ours.lookup.passes;
                let recurrent = case.loaded.model.program().is_recurrent();
                assert_eq!(passes, if recurrent { 0 } else { ours.tokens.len() - 1 - ours.lookup.accepted }, "{name}");
                (drafted, accepted) = (drafted + ours.lookup.drafted, accepted + ours.lookup.accepted);
            }
        }
    }
    assert!(
        accepted > 100 && drafted > accepted,
        "some drafts are accepted and some rejected: {accepted} of {drafted}"
    );
}

#[test]
fn prompt_lookup_takes_fewer_passes_over_repetitive_text() {
    // Small random models soon repeat themselves; then a pass yields several tokens.
    let passes = golden::one_per_type().into_iter().filter_map(|name| {
        let case = golden::case(&name);
        let rows = [repeated(&case)];
        let options =
            GenerateOptions { max_new: max_new_tokens(&case, rows[0].len()), lookup: 5, ..GenerateOptions::default() };
        let row = generate(&case.loaded.model, &rows, &Plan::default(), &options).rows.remove(0);
        (row.lookup.passes > 0).then(|| row.lookup.passes as f64 / row.tokens.len() as f64)
    });
    let fewest = passes.fold(f64::INFINITY, f64::min);
    assert!(fewest < 0.5, "{fewest} passes a token at best");
}

#[test]
fn prompt_lookup_is_off_if_a_plan_taps_generated_tokens() {
    let case = golden::case("llama");
    let rows = [repeated(&case)];
    let options = GenerateOptions { max_new: 10, lookup: 4, ..GenerateOptions::default() };
    let tap =
        |positions| Plan::default().with(Tap::new("layers.0.resid_post", Action::Capture(None)).positions(positions));
    for (positions, on) in [(Positions::All, false), (Positions::Generated, false), (Positions::Last, true)] {
        let found = generate(&case.loaded.model, &rows, &tap(positions), &options);
        let plain =
            generate(&case.loaded.model, &rows, &Plan::default(), &GenerateOptions { lookup: 0, ..options.clone() });
        assert_eq!(found.rows[0].tokens, plain.rows[0].tokens);
        assert_eq!(found.rows[0].lookup.passes > 0, on);
    }
}

fn run(case: &Case, rows: &[Vec<u32>], plan: &Plan, prefixes: Option<&PrefixCache>) -> Run {
    let options = RunOptions { prefixes: prefixes.cloned(), ..RunOptions::default() };
    case.loaded.model.run(rows, plan, &options).unwrap_or_else(|error| panic!("{}: {error}", case.name))
}

fn bits(run: &Run) -> Vec<Vec<u32>> {
    run.captures.iter().map(|capture| capture.array.values().iter().map(|x| x.to_bits()).collect()).collect()
}

/// Captures every layer's output and the logits, from a position on.
fn capture_from(position: usize) -> Plan {
    let rest = || Positions::Slice { start: Some(position as i64), end: None, step: 1 };
    ["layers.*.resid_post", "logits"]
        .into_iter()
        .fold(Plan::default(), |plan, site| plan.with(Tap::new(site, Action::Capture(None)).positions(rest())))
}

/// Whether RoPE scaling at this length differs from that of shorter rows, so that no prefix is
/// shared.
fn stretched(case: &Case, length: usize) -> bool {
    case.loaded.model.program().architecture().ropes.iter().any(|rope| rope.is_stretched(length))
}

#[test]
fn a_cached_prefix_changes_no_bit() {
    let mut shared = 0;
    for name in golden::one_per_type() {
        let case = golden::case(&name);
        let begin = case.ids.len() / 2;
        let prefix = case.loaded.model.prefix(&case.ids[..begin]).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut other = case.ids.clone();
        other.truncate(begin + 1);
        let rows = [case.ids.clone(), other, case.ids[1..].to_vec()];
        let (ours, theirs) =
            (run(&case, &rows, &capture_from(begin), Some(&prefix)), run(&case, &rows, &capture_from(begin), None));
        assert_eq!(bits(&ours), bits(&theirs), "{name}");
        let expected = [0, 1].map(|row: usize| if stretched(&case, rows[row].len()) { 0 } else { begin });
        assert_eq!(ours.reused[..2], expected, "{name}");
        assert_eq!(theirs.reused, [0, 0, 0]);
        shared += ours.reused[0];

        let max_new = max_new_tokens(&case, case.ids.len()).min(6);
        let options = GenerateOptions { max_new, ..GenerateOptions::default() };
        let plain = generate(&case.loaded.model, &rows, &capture_from(begin), &options);
        let with = GenerateOptions { prefixes: Some(prefix), ..options };
        let cached = generate(&case.loaded.model, &rows, &capture_from(begin), &with);
        for (ours, theirs) in cached.rows.iter().zip(&plain.rows) {
            assert_eq!(ours.tokens, theirs.tokens, "{name}");
        }
        for (ours, theirs) in cached.captures.iter().zip(&plain.captures) {
            assert_eq!(ours.array.values(), theirs.array.values(), "{name}: {}", ours.site);
        }
    }
    assert!(shared > 0);
}

#[test]
fn a_prefix_cache_stores_rows_of_calls_and_finds_shared_prefixes() {
    for name in ["llama", "mistral", "mamba"] {
        let case = golden::case(name);
        let cache = PrefixCache::new(1 << 30);
        let options = GenerateOptions { max_new: 4, prefixes: Some(cache.clone()), ..GenerateOptions::default() };
        let first = generate(&case.loaded.model, std::slice::from_ref(&case.ids), &Plan::default(), &options);
        assert_eq!(first.reused, [0]);
        // The next turn of a conversation: prompt, answer, new tokens.
        let next = [case.ids.as_slice(), &first.rows[0].tokens, &case.ids[..3]].concat();
        let plan = capture_from(next.len() - 1);
        let (ours, theirs) = (
            run(&case, std::slice::from_ref(&next), &plan, Some(&cache)),
            run(&case, std::slice::from_ref(&next), &plan, None),
        );
        assert_eq!(bits(&ours), bits(&theirs), "{name}");
        assert_eq!(ours.reused, [case.ids.len() + 3], "{name}: all computed positions");
        // Other tokens after a shared prefix: a KV cache can be truncated, recurrent state cannot.
        let recurrent = case.loaded.model.program().is_recurrent();
        let mut fork = case.ids[..case.ids.len() - 2].to_vec();
        fork.extend([case.ids[0], case.ids[1]]);
        let plan = capture_from(fork.len() - 1);
        let (ours, theirs) =
            (run(&case, &[fork.clone()], &plan, Some(&cache)), run(&case, &[fork.clone()], &plan, None));
        assert_eq!(bits(&ours), bits(&theirs), "{name}");
        assert_eq!(ours.reused[0] >= case.ids.len() - 2, !recurrent, "{name}: {:?}", ours.reused);
        assert!(cache.counts().tokens > 0 && cache.counts().bytes > 0);
    }
}

#[test]
fn positions_that_a_plan_taps_are_computed() {
    let case = golden::case("llama");
    let prefix = case.loaded.model.prefix(&case.ids[..6]).expect("a prefix");
    let capture = |site: &str, positions| Tap::new(site, Action::Capture(None)).positions(positions);
    let zero = |at: i64| {
        Tap::new("layers.0.resid_post", Action::Set(Operand::Number(0.0))).positions(Positions::List(vec![at]))
    };
    let logits = || capture("logits", Positions::Last);
    let plans = [
        (Plan::default().with(capture("logits", Positions::All)), 0),
        (Plan::default().with(capture("layers.0.resid_post", Positions::List(vec![4]))), 4),
        (Plan::default().with(zero(2)).with(logits()), 2),
        (Plan::default().with(zero(7)).with(logits()), 6),
        (Plan::default().with(capture("layers.1.attn_probs", Positions::Last)).with(logits()), 0),
        (Plan::default().with(Tap::new("layers.1", Action::Skip(None))).with(logits()), 0),
    ];
    for (index, (plan, reused)) in plans.iter().enumerate() {
        let rows = [case.ids.clone()];
        let (ours, theirs) = (run(&case, &rows, plan, Some(&prefix)), run(&case, &rows, plan, None));
        assert_eq!(bits(&ours), bits(&theirs), "plan {index}");
        assert_eq!(ours.reused, [*reused], "plan {index}");
    }
    // Rows with edits are not stored.
    let cache = PrefixCache::new(1 << 30);
    run(&case, std::slice::from_ref(&case.ids), &plans[3].0, Some(&cache));
    assert_eq!(cache.counts().prefixes, 0);
    run(&case, std::slice::from_ref(&case.ids), &plans[1].0, Some(&cache));
    assert_eq!(cache.counts().prefixes, 0, "the later layers have not run");
    run(&case, std::slice::from_ref(&case.ids), &plans[0].0, Some(&cache));
    assert_eq!(cache.counts().prefixes, 1);
}

#[test]
fn a_prefix_cache_is_bounded_and_belongs_to_one_model() {
    let case = golden::case("llama");
    let one = case.loaded.model.prefix(&case.ids).expect("a prefix").counts().bytes;
    let cache = PrefixCache::new(2 * one + one / 2);
    for first in 0..5 {
        let row: Vec<u32> = std::iter::once(first).chain(case.ids[1..].iter().copied()).collect();
        case.loaded.model.keep_prefix(&cache, &row).expect("a prefix");
    }
    assert_eq!((cache.counts().prefixes, cache.counts().bytes), (2, 2 * one));
    let error = golden::case("gpt2").loaded.model.keep_prefix(&cache, &[1, 2, 3]).expect_err("another model's");
    assert!(error.to_string().contains("another model"), "{error}");
    cache.clear();
    assert_eq!(cache.counts().bytes, 0);
}

#[test]
fn a_bf16_kv_cache_has_half_the_size_and_the_same_bits_in_chunks() {
    let load = |kv| {
        let options = LoadOptions { kv, ..LoadOptions::default() };
        LoadedModel::builtin(&options).expect("the built-in model")
    };
    let (wide, narrow) = (load(KvFormat::F32), load(KvFormat::Bf16));
    let row = wide.encode("Once upon a time, there was a little girl named Lily. She loved to play").expect("tokens");
    let logits = |loaded: &LoadedModel, chunk| {
        let options = RunOptions { chunk, ..RunOptions::default() };
        loaded
            .model
            .run(std::slice::from_ref(&row), &Plan::capture(["logits"]), &options)
            .expect("a run")
            .captures
            .remove(0)
            .array
    };
    let (ours, theirs) = (logits(&narrow, None), logits(&wide, None));
    assert_eq!(ours.values(), logits(&narrow, Some(3)).values(), "whole and in chunks");
    let off = ours.values().iter().zip(theirs.values()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off > 0.0 && off < 0.2, "rounding changes the logits a little: {off}");
    let bytes = |loaded: &LoadedModel| loaded.model.prefix(&row).expect("a prefix").counts().bytes - 4 * row.len();
    assert_eq!(bytes(&narrow) * 2, bytes(&wide));
}

#[test]
fn the_number_of_threads_changes_no_bit_and_zero_is_refused() {
    let case = golden::case("llama");
    let options = |threads| RunOptions { threads, ..RunOptions::default() };
    let on = |threads| case.loaded.model.run(std::slice::from_ref(&case.ids), &capture_from(0), &options(threads));
    let all = bits(&on(None).expect("a run"));
    assert_eq!(all, bits(&on(Some(1)).expect("a run")));
    assert_eq!(all, bits(&on(Some(64)).expect("a run")));
    assert!(on(Some(0)).expect_err("no thread").to_string().contains("threads is 0"));
}
