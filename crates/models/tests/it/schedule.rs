//! The scheduler: a request gives the bits of its solo run under any load, limits hold, and each
//! fault ends its own request only.

use crate::batch::{self, Random, everything};
use crate::test_plans::{call, capture, plan};
use golden::Case;
use pellucid_engine::{
    Control, Error, Finish, GenerateOptions, Generation, Plan, Request, RequestMemory, RowToken, Scheduler,
    SchedulerOptions, Tap,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

fn alone(case: &Case, rows: &[Vec<u32>], plan: &Plan, options: &GenerateOptions) -> Generation {
    let generation = case.loaded.model.generate(rows, plan, options, &mut |_, _| Control::Go);
    generation.expect("the solo run")
}

fn options(max_new: usize) -> GenerateOptions {
    GenerateOptions { max_new, ..GenerateOptions::default() }
}

/// Submits 40 requests from four threads, with random limits of the scheduler, and cancels some.
fn scheduled_requests_keep_their_bits(name: &str, seed: u64) {
    let case = golden::case(name);
    let mut random = Random(seed);
    let settings = SchedulerOptions {
        max_rows: 3 + random.below(12),
        pass_tokens: 1 + random.below(40),
        prefix_bytes: random.below(2) << 20,
        capture_bytes: (1 + random.below(2)) << 20,
        record_passes: true,
        ..SchedulerOptions::default()
    };
    let scheduler = Scheduler::new(&case.loaded.model, settings.clone()).expect("a scheduler");
    let requests: Vec<batch::Request> = (0..40).map(|_| batch::request(&case, &mut random)).collect();
    let (compared, cancelled) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for part in requests.chunks(10) {
            let (case, scheduler, compared, cancelled) = (&case, &scheduler, &compared, &cancelled);
            scope.spawn(move || {
                let submit = |request: &batch::Request| {
                    let (inputs, plan) = (request.rows.clone(), request.plan.clone());
                    let options = request.options.clone();
                    scheduler.submit(Request { inputs, plan, options, on_token: None }).expect("a request that fits")
                };
                let handles: Vec<_> = part.iter().map(|request| (request, submit(request))).collect();
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
                            cancelled.fetch_add(1, Ordering::Relaxed);
                        }
                        generation => {
                            let generation = generation.expect("a request that runs");
                            let solo = alone(case, &request.rows, &request.plan, &request.options);
                            assert!(everything(&generation) == everything(&solo), "{name}: differs from its solo run");
                            if request.cancelled.is_none() {
                                let tokens = generation.rows.iter().map(|row| row.tokens.clone());
                                assert_eq!(streamed, tokens.collect::<Vec<_>>(), "{name}: the stream");
                            }
                            compared.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    assert!(compared.into_inner() >= 25 && cancelled.into_inner() + 25 <= 40);
    let load = scheduler.load();
    assert_eq!(
        (load.running, load.waiting, load.rows, load.capture_bytes),
        (0, 0, 0, 0),
        "{name}: everything is freed"
    );
    let passes = scheduler.passes();
    let together = passes.iter().map(|pass| pass.requests.len()).max();
    assert!(together > Some(1), "{name}: requests share passes");
}

#[test]
fn requests_of_a_dense_model_keep_their_bits_under_load() {
    scheduled_requests_keep_their_bits("llama", 11);
}

#[test]
fn requests_of_a_mixture_of_experts_keep_their_bits_under_load() {
    scheduled_requests_keep_their_bits("mixtral", 12);
}

#[test]
fn requests_of_a_recurrent_model_keep_their_bits_under_load() {
    scheduled_requests_keep_their_bits("mamba", 13);
}

#[test]
fn requests_with_sliding_windows_keep_their_bits_under_load() {
    scheduled_requests_keep_their_bits("mistral-sliding", 14);
}

#[test]
fn requests_of_a_hybrid_model_keep_their_bits_under_load() {
    scheduled_requests_keep_their_bits("recurrent_gemma", 15);
}

/// Positions per site are `prompt + generated − 1` for many lengths, chunked or not.
#[test]
fn captures_have_exactly_prompt_plus_generated_minus_one_positions() {
    let case = golden::case("llama");
    let settings = SchedulerOptions { pass_tokens: 17, max_rows: 8, ..SchedulerOptions::default() };
    let scheduler = Scheduler::new(&case.loaded.model, settings).expect("a scheduler");
    let look = Plan::capture(["layers.*.resid_post"]);
    let mut handles = Vec::new();
    for prompt in [1, 2, 31, 32, 33] {
        for new in [1, 2, 31] {
            let tokens: Vec<u32> = case.ids.iter().copied().cycle().take(prompt).collect();
            let handle = scheduler.submit(Request::new(tokens.clone(), look.clone(), options(new)));
            handles.push((tokens, new, handle.expect("a request")));
        }
    }
    for (tokens, new, handle) in handles {
        let generation = handle.wait().expect("a generation");
        assert_eq!(generation.rows[0].tokens.len(), new);
        for capture in &generation.captures {
            assert_eq!(capture.positions, (0..tokens.len() + new - 1).collect::<Vec<_>>());
        }
        // Teacher forcing: the whole text but its last token, in one pass.
        let mut text = tokens;
        text.extend(&generation.rows[0].tokens[..new - 1]);
        let forced = case.loaded.model.run(&[text], &look, &Default::default()).expect("a run");
        for (capture, forced) in generation.captures.iter().zip(&forced.captures) {
            assert!(crate::test_plans::bits(&capture.array) == crate::test_plans::bits(&forced.array));
        }
    }
}

#[test]
fn requests_that_cannot_run_are_refused_when_submitted() {
    let case = golden::case("llama");
    let one = RequestMemory::of(&case.loaded.model, std::slice::from_ref(&case.ids), &Plan::default(), &options(20));
    let kv_bytes = one.expect("a request").kv_bytes - 1;
    let settings = SchedulerOptions { max_rows: 2, kv_bytes, queue: 0, ..SchedulerOptions::default() };
    let scheduler = Scheduler::new(&case.loaded.model, settings).expect("a scheduler");
    let refused = |request: Request| scheduler.submit(request).err().expect("it is refused").to_string();
    let ids = case.ids.clone();
    let none = Plan::default();
    assert!(refused(Request::new(ids.clone(), Plan::capture(["layers.99.resid_post"]), options(2))).contains("99"));
    assert!(refused(Request::new(vec![], none.clone(), options(2))).contains("row 0 is empty"));
    assert!(refused(Request::new(ids.clone(), none.clone(), options(0))).contains("max_new"));
    let threads = GenerateOptions { threads: Some(1), ..options(2) };
    assert!(refused(Request::new(ids.clone(), none.clone(), threads)).contains("threads"));
    let three = Request { inputs: vec![ids.clone(); 3], options: options(1), ..Request::default() };
    assert!(refused(three).contains("3 rows"));
    let large = refused(Request::new(ids.clone(), none.clone(), options(20)));
    assert!(large.contains(&format!("for KV caches, and the scheduler has {kv_bytes}")), "{large}");
    assert!(matches!(scheduler.submit(Request::new(ids, none, options(1))), Err(Error::Busy { waiting: 0 })));
    let wrong = SchedulerOptions { pass_tokens: 0, ..SchedulerOptions::default() };
    assert!(Scheduler::new(&case.loaded.model, wrong).err().expect("no tokens").to_string().contains("pass_tokens"));
}

/// The KV budget holds two requests: the others wait, in order, and all end.
#[test]
fn requests_wait_for_memory_and_are_served_in_order() {
    let case = golden::case("llama");
    let request = || Request::new(case.ids.clone(), Plan::default(), options(5));
    let one = RequestMemory::of(&case.loaded.model, std::slice::from_ref(&case.ids), &Plan::default(), &options(5));
    let kv_bytes = 2 * one.expect("a request").kv_bytes;
    let settings = SchedulerOptions { kv_bytes, prefix_bytes: 0, record_passes: true, ..SchedulerOptions::default() };
    let scheduler = Scheduler::new(&case.loaded.model, settings).expect("a scheduler");
    let handles: Vec<_> = (0..9).map(|_| scheduler.submit(request()).expect("a request")).collect();
    handles.into_iter().for_each(|handle| drop(handle.wait().expect("a generation")));
    let passes = scheduler.passes();
    assert!(passes.iter().all(|pass| pass.requests.len() <= 2), "two requests fit");
    let first_pass = |id: u64| passes.iter().position(|pass| pass.requests.iter().any(|share| share.request == id));
    let starts: Vec<_> = (0..9).map(|id| first_pass(id).expect("it ran")).collect();
    assert!(starts.is_sorted(), "first come, first served: {starts:?}");
}

/// While a long prompt is in prefill, a request that decodes gets one token in every pass.
#[test]
fn a_long_prompt_does_not_stall_the_others() {
    let case = golden::case("llama");
    let settings =
        SchedulerOptions { pass_tokens: 4, prefix_bytes: 0, record_passes: true, ..SchedulerOptions::default() };
    let scheduler = Scheduler::new(&case.loaded.model, settings).expect("a scheduler");
    let long: Vec<u32> = case.ids.iter().copied().cycle().take(40).collect();
    let mut short = Request::new(vec![case.ids[0]], Plan::default(), options(40));
    // The first token waits until the long prompt is in the queue.
    let (submitted, wait) = mpsc::channel::<()>();
    short.on_token = Some(Box::new(move |_| {
        _ = wait.recv();
        Control::Go
    }));
    let short = scheduler.submit(short).expect("a request");
    let long = scheduler.submit(Request::new(long, Plan::default(), options(1))).expect("a request");
    drop(submitted);
    long.wait().expect("it ends");
    short.wait().expect("it ends");
    let passes = scheduler.passes();
    let mixed = passes.iter().filter(|pass| pass.requests.iter().any(|share| share.prompt_tokens > 0)).skip(1);
    let mixed: Vec<_> = mixed.collect();
    assert!(mixed.len() >= 10, "the long prompt takes many passes");
    assert!(mixed.iter().all(|pass| pass.requests.iter().any(|share| share.decode_tokens == 1)));
    let most = passes.iter().map(|pass| pass.requests.iter().map(|s| s.prompt_tokens + s.decode_tokens).sum());
    assert!(most.max() <= Some(4_usize), "no pass has more than its token budget");
}

#[test]
fn faults_of_one_request_leave_the_others_alone() {
    let case = golden::case("llama");
    let scheduler = Scheduler::new(&case.loaded.model, SchedulerOptions::default()).expect("a scheduler");
    let ids = || case.ids.clone();
    let panics = plan([Tap::new("layers.0.resid_post", call(|_| panic!("a callback that fails")))]);
    let in_plan = scheduler.submit(Request::new(ids(), panics, options(4))).expect("a request");
    let mut in_token = Request::new(ids(), Plan::default(), options(4));
    in_token.on_token = Some(Box::new(|_| panic!("a token callback that fails")));
    let in_token = scheduler.submit(in_token).expect("a request");
    let good = plan([capture("layers.*.resid_post")]);
    let fine = scheduler.submit(Request::new(ids(), good.clone(), options(8))).expect("a request");
    assert!(in_plan.wait().expect_err("it panics").to_string().contains("callback"));
    assert!(in_token.wait().expect_err("it panics").to_string().contains("callback"));
    let solo = alone(&case, &[ids()], &good, &options(8));
    assert!(everything(&fine.wait().expect("a generation")) == everything(&solo));
}

#[test]
fn a_token_callback_ends_a_row_and_sees_every_token() {
    let case = golden::case("llama");
    let scheduler = Scheduler::new(&case.loaded.model, SchedulerOptions::default()).expect("a scheduler");
    let (send, seen) = mpsc::channel();
    let mut request = Request::new(case.ids.clone(), Plan::default(), options(20));
    let mut count = 0;
    request.on_token = Some(Box::new(move |token| {
        count += 1;
        send.send(token).expect("the test listens");
        if count == 3 { Control::Stop } else { Control::Go }
    }));
    let generation = scheduler.submit(request).expect("a request").wait().expect("a generation");
    assert_eq!(generation.rows[0].finish, Finish::Stop);
    let tokens: Vec<u32> = seen.iter().map(|token: RowToken| token.token).collect();
    assert_eq!(tokens, generation.rows[0].tokens);
    assert_eq!(tokens.len(), 3);
}

#[test]
fn dropping_handles_and_the_scheduler_ends_requests() {
    let case = golden::case("llama");
    let scheduler = Arc::new(Scheduler::new(&case.loaded.model, SchedulerOptions::default()).expect("a scheduler"));
    let request = || Request::new(case.ids.clone(), Plan::default(), options(30));
    drop(scheduler.submit(request()).expect("a request"));
    let handle = scheduler.submit(request()).expect("a request");
    handle.next_token().expect("it runs");
    assert!(handle.next_token_within(Duration::from_secs(60)).expect("in time").is_some());
    drop(Arc::into_inner(scheduler));
    assert!(matches!(handle.wait(), Err(Error::Interrupted) | Ok(_)));
}

/// A request whose plan reads nothing of the shared prefix reuses it; one that captures it does
/// not.
#[test]
fn shared_prefixes_are_reused_where_no_tap_reads_them() {
    let case = golden::case("llama");
    let scheduler = Scheduler::new(&case.loaded.model, SchedulerOptions::default()).expect("a scheduler");
    let text: Vec<u32> = case.ids.iter().copied().cycle().take(24).collect();
    let generate = |plan: Plan| {
        let handle = scheduler.submit(Request::new(text.clone(), plan, options(3))).expect("a request");
        handle.wait().expect("a generation")
    };
    let first = generate(Plan::default());
    assert_eq!(first.reused, [0]);
    let second = generate(Plan::default());
    assert_eq!(second.reused, [23], "the last prompt token is always computed");
    assert_eq!(second.rows[0].tokens, first.rows[0].tokens);
    let captured = generate(Plan::capture(["layers.0.resid_post"]));
    assert_eq!(captured.reused, [0]);
    assert_eq!(captured.captures[0].positions.len(), 26);
}

/// R12 of the review with real weights: a sampled row does not depend on its place in the batch.
#[test]
fn sampling_depends_on_the_seed_and_not_on_the_place_in_the_batch() {
    let case = golden::case("llama");
    let sampling = pellucid_engine::Sampling { temperature: 1.0, seed: 5, ..Default::default() };
    let options = GenerateOptions { max_new: 12, sampling, ..GenerateOptions::default() };
    let (one, two) = (case.ids[..3].to_vec(), case.ids[1..].to_vec());
    let tokens = |rows: &[Vec<u32>]| -> Vec<Vec<u32>> {
        let generation = alone(&case, rows, &Plan::default(), &options);
        generation.rows.into_iter().map(|row| row.tokens).collect()
    };
    let solo = tokens(std::slice::from_ref(&two));
    let batch = tokens(&[one.clone(), two.clone(), one.clone()]);
    assert_eq!(batch[1], solo[0], "another prompt before it changes nothing");
    assert_eq!(batch[0], tokens(std::slice::from_ref(&one))[0]);
    assert_ne!(batch[0], batch[2], "copies of a prompt differ");
}
