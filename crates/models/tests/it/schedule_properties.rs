//! Properties of the scheduler under random load: tokens and captures of a request have the bits of
//! its solo run, and a capture has exactly the positions `prompt + generated − 1`, with the bits of
//! a run over the finished text.

use crate::batch::{self, Random, everything};
use crate::schedule::{alone, options};
use crate::test_plans::{add, at, bits, capture, plan};
use golden::Case;
use pellucid_engine::{
    Action, Error, GenerateOptions, Generation, Model, Plan, Request, RowToken, RunOptions, Scheduler,
    SchedulerOptions, Tap,
};
use pellucid_models::{LoadOptions, LoadedModel};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A load: limits of the scheduler, and for each request the seed of its prompt, plan, options,
/// arrival and cancellation. proptest shrinks a failure by leaving out requests.
fn loads() -> impl Strategy<Value = (SchedulerOptions, Vec<u64>)> {
    // A request has up to three rows.
    let limits = (3_usize..=32, 1_usize..=80, 0_usize..=1, 1_usize..=2);
    let settings = limits.prop_map(|(max_rows, pass_tokens, prefix, captures)| SchedulerOptions {
        max_rows,
        pass_tokens,
        prefix_bytes: prefix << 20,
        capture_bytes: captures << 20,
        record_passes: true,
        ..SchedulerOptions::default()
    });
    (settings, prop::collection::vec(any::<u64>(), 1..=32))
}

/// Counts over all cases of the property, which show that it was not trivial.
#[derive(Default)]
struct Coverage {
    compared: AtomicUsize,
    cancelled: AtomicUsize,
    shared_passes: AtomicUsize,
}

/// Submits the requests from up to four threads, cancels some, and compares the others with their
/// solo runs.
fn check_load(case: &Case, settings: &SchedulerOptions, seeds: &[u64], coverage: &Coverage) -> TestCaseResult {
    let scheduler = Scheduler::new(&case.loaded.model, settings.clone()).expect("a scheduler");
    let requests: Vec<batch::Request> = seeds.iter().map(|&seed| batch::request(case, &mut Random(seed))).collect();
    std::thread::scope(|scope| {
        let scheduler = &scheduler;
        let part = |part| scope.spawn(move || check_requests(case, scheduler, part, coverage));
        let threads: Vec<_> = requests.chunks(8).map(part).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let load = scheduler.load();
    prop_assert_eq!((load.running, load.waiting, load.rows, load.kv_bytes, load.capture_bytes), (0, 0, 0, 0, 0));
    let passes = scheduler.passes();
    let shared = passes.iter().filter(|pass| pass.requests.len() > 1).count();
    coverage.shared_passes.fetch_add(shared, Ordering::Relaxed);
    for pass in &passes {
        prop_assert!(pass.kv_bytes <= settings.kv_bytes && pass.capture_bytes <= settings.capture_bytes);
    }
    Ok(())
}

fn check_requests(
    case: &Case,
    scheduler: &Scheduler,
    requests: &[batch::Request],
    coverage: &Coverage,
) -> TestCaseResult {
    let submit = |request: &batch::Request| {
        // The arrival is a number of passes; a pass of these models takes some 100 µs.
        std::thread::sleep(Duration::from_micros(40 * request.arrival as u64));
        let (inputs, plan, options) = (request.rows.clone(), request.plan.clone(), request.options.clone());
        scheduler.submit(Request { inputs, plan, options, ..Request::default() }).expect("a request that fits")
    };
    let handles: Vec<_> = requests.iter().map(|request| (request, submit(request))).collect();
    for (request, handle) in handles {
        if let Some(passes) = request.cancelled {
            (0..passes / 4).for_each(|_| _ = handle.next_token());
            handle.cancel();
        }
        let mut streamed: Vec<Vec<u32>> = vec![Vec::new(); request.rows.len()];
        while let Some(RowToken { row, token }) = handle.next_token() {
            streamed[row].push(token);
        }
        match handle.wait() {
            Err(Error::Interrupted) if request.cancelled.is_some() => {
                coverage.cancelled.fetch_add(1, Ordering::Relaxed);
            }
            generation => {
                let generation = generation.expect("a request that runs");
                let solo = alone(case, &request.rows, &request.plan, &request.options);
                prop_assert!(everything(&generation) == everything(&solo), "{}: not its solo run", case.name);
                if request.cancelled.is_none() {
                    let tokens: Vec<_> = generation.rows.iter().map(|row| row.tokens.clone()).collect();
                    prop_assert_eq!(streamed, tokens, "the stream");
                }
                coverage.compared.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

fn requests_keep_their_bits(name: &str) {
    let case = golden::case(name);
    let coverage = Coverage::default();
    let mut runner = TestRunner::new(Config::with_cases(32));
    let outcome = runner.run(&loads(), |(settings, seeds)| check_load(&case, &settings, &seeds, &coverage));
    outcome.unwrap_or_else(|failure| panic!("{name}: {failure}"));
    let Coverage { compared, cancelled, shared_passes } = coverage;
    let seen = (compared.into_inner(), cancelled.into_inner(), shared_passes.into_inner());
    assert!(seen.0 > 50 && seen.1 > 0 && seen.2 > 50, "{name}: compared, cancelled, shared passes: {seen:?}");
}

#[test]
fn requests_of_a_dense_model_keep_their_bits_under_load() {
    requests_keep_their_bits("llama");
}

#[test]
fn requests_of_a_mixture_of_experts_keep_their_bits_under_load() {
    requests_keep_their_bits("mixtral");
}

#[test]
fn requests_of_a_recurrent_model_keep_their_bits_under_load() {
    requests_keep_their_bits("mamba");
}

#[test]
fn requests_with_sliding_windows_keep_their_bits_under_load() {
    requests_keep_their_bits("mistral-sliding");
}

#[test]
fn requests_of_a_hybrid_model_keep_their_bits_under_load() {
    requests_keep_their_bits("recurrent_gemma");
}

/// A golden model with a context of 512 tokens; the cases themselves have a shorter one.
fn long_context(name: &str) -> (tempfile::TempDir, LoadedModel) {
    let directory = golden::temp_models::with_config(name, |config| {
        if let Some(context) = config.get_mut("max_position_embeddings") {
            *context = 512.into();
        }
    });
    let loaded = LoadedModel::open(directory.path(), &LoadOptions::default(), &mut |_| {}).expect("a model");
    (directory, loaded)
}

/// Plans that give the same activations for a generation and for a run over its finished text.
fn plan_of(model: &Model, number: usize) -> Plan {
    let all = capture("layers.*.resid_post");
    match number % 5 {
        0 => plan([all]),
        1 => plan([Tap::new("layers.0.resid_post", Action::Scale(0.5)), all]),
        2 => plan([capture("embed"), capture("logits")]),
        3 => plan([add("layers.0.resid_post", 0.25).positions(at("0")), all]),
        _ => {
            let last = model.program().architecture().layers.len() - 1;
            let skip = Tap::new("layers.0.resid_post", Action::Skip(None));
            plan([skip, capture(&format!("layers.{last}.resid_post"))])
        }
    }
}

/// Checks positions and bits of the captures against a run over `prompt + generated[..-1]`.
fn check_against_teacher_forcing(model: &Model, prompt: &[u32], plan: &Plan, new: usize, generation: &Generation) {
    let tokens = &generation.rows[0].tokens;
    assert_eq!(tokens.len(), new);
    let text: Vec<u32> = prompt.iter().chain(&tokens[..new - 1]).copied().collect();
    let forced = model.run(std::slice::from_ref(&text), plan, &RunOptions::default()).expect("a run");
    assert!(!generation.captures.is_empty());
    assert_eq!(generation.captures.len(), forced.captures.len());
    for (capture, forced) in generation.captures.iter().zip(&forced.captures) {
        let (length, site) = (text.len(), capture.site);
        assert!(capture.positions.iter().copied().eq(0..length), "{site} of {} + {new}", prompt.len());
        assert!(bits(&capture.array) == bits(&forced.array), "{site} of {} + {new}", prompt.len());
    }
}

const PROMPTS: [usize; 5] = [1, 2, 63, 64, 65];
const NEW_TOKENS: [usize; 6] = [1, 2, 31, 32, 33, 127];

/// All pairs of lengths at once, with different plans, for several numbers of concurrent requests,
/// with prompts in chunks and whole.
fn captures_have_exact_positions(name: &str, concurrency: &[usize]) {
    let (_directory, loaded) = long_context(name);
    let model = &loaded.model;
    let vocab = model.program().architecture().vocab;
    for (&max_rows, (pass_tokens, chunk)) in
        concurrency.iter().flat_map(|rows| [(17, None), (4096, Some(5)), (4096, None)].map(|split| (rows, split)))
    {
        let settings = SchedulerOptions { max_rows, pass_tokens, ..SchedulerOptions::default() };
        let scheduler = Scheduler::new(model, settings).expect("a scheduler");
        let lengths = PROMPTS.iter().flat_map(|&prompt| NEW_TOKENS.map(|new| (prompt, new)));
        let submit = |(number, (prompt, new)): (usize, (usize, usize))| {
            // Every prompt starts differently, so that the prefix cache does not make them alike.
            let tokens: Vec<u32> = (0..prompt).map(|i| ((i * 13 + number * 7 + 1) % vocab) as u32).collect();
            let (plan, options) = (plan_of(model, number), GenerateOptions { chunk, ..options(new) });
            let handle = scheduler.submit(Request::new(tokens.clone(), plan.clone(), options)).expect("a request");
            (tokens, plan, new, handle)
        };
        let handles: Vec<_> = lengths.enumerate().map(submit).collect();
        for (tokens, plan, new, handle) in handles {
            let generation = handle.wait().expect("a generation");
            check_against_teacher_forcing(model, &tokens, &plan, new, &generation);
        }
    }
}

#[test]
fn captures_of_a_dense_model_have_exactly_prompt_plus_generated_minus_one_positions() {
    captures_have_exact_positions("llama", &[1, 2, 7, 32]);
}

#[test]
fn captures_of_a_mixture_of_experts_have_exact_positions() {
    captures_have_exact_positions("mixtral", &[5, 32]);
}

#[test]
fn captures_of_a_recurrent_model_have_exact_positions() {
    captures_have_exact_positions("mamba", &[5, 32]);
}

#[test]
fn captures_with_sliding_windows_have_exact_positions() {
    captures_have_exact_positions("mistral-sliding", &[5, 32]);
}
