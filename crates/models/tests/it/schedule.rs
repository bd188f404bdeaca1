//! The scheduler: limits hold, requests are served in order, and each fault ends its own request
//! only. `schedule_properties.rs` compares requests under load with their solo runs.

use crate::batch::everything;
use crate::test_plans::{call, capture, plan};
use golden::Case;
use pellucid_engine::{
    Control, Error, Finish, GenerateOptions, Generation, Plan, Request, RequestMemory, RowToken, Scheduler,
    SchedulerOptions, Tap,
};
use std::sync::{Arc, mpsc};
use std::time::Duration;

pub(crate) fn alone(case: &Case, rows: &[Vec<u32>], plan: &Plan, options: &GenerateOptions) -> Generation {
    let generation = case.loaded.model.generate(rows, plan, options, &mut |_, _| Control::Go);
    generation.expect("the solo run")
}

pub(crate) fn options(max_new: usize) -> GenerateOptions {
    GenerateOptions { max_new, ..GenerateOptions::default() }
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

/// A short prompt that arrives later overtakes a long one, which still advances.
#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let case = golden::case("llama");
    let settings =
        SchedulerOptions { pass_tokens: 4, prefix_bytes: 0, record_passes: true, ..SchedulerOptions::default() };
    let scheduler = Scheduler::new(&case.loaded.model, settings).expect("a scheduler");
    let long: Vec<u32> = case.ids.iter().copied().cycle().take(48).collect();
    let mut first = Request::new(vec![case.ids[0]], Plan::default(), options(1));
    // Both prompts wait in the queue until the first request has its token.
    let (submitted, wait) = mpsc::channel::<()>();
    first.on_token = Some(Box::new(move |_| {
        _ = wait.recv();
        Control::Go
    }));
    let first = scheduler.submit(first).expect("a request");
    let long = scheduler.submit(Request::new(long, Plan::default(), options(1))).expect("a request");
    let shorts: Vec<_> = (0..6)
        .map(|_| {
            scheduler.submit(Request::new(case.ids[..6].to_vec(), Plan::default(), options(1))).expect("a request")
        })
        .collect();
    drop(submitted);
    drop(first.wait().expect("it ends"));
    drop(long.wait().expect("it ends"));
    shorts.into_iter().for_each(|short| drop(short.wait().expect("it ends")));
    let passes = scheduler.passes();
    let last_pass = |id: u64| passes.iter().rposition(|pass| pass.requests.iter().any(|share| share.request == id));
    let ends: Vec<_> = (1..8).map(|id| last_pass(id).expect("it ran")).collect();
    assert!(ends[1..].iter().all(|end| *end < ends[0]), "the short prompts end first: {ends:?}");
    let advances = passes.iter().position(|pass| pass.requests.iter().any(|share| share.request == 1));
    assert!(advances < last_pass(7), "the long prompt advances beside them: {advances:?}, {ends:?}");
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

#[test]
fn the_end_of_every_request_is_reported_once() {
    let case = golden::case("llama");
    let scheduler = Scheduler::new(&case.loaded.model, SchedulerOptions::default()).expect("a scheduler");
    let (send, ends) = mpsc::channel();
    let submit = |number: usize| {
        let send = send.clone();
        let on_end: pellucid_engine::OnEnd = Box::new(move || send.send(number).expect("the test listens"));
        let request = Request::new(case.ids.clone(), Plan::default(), options(3 + 10 * number));
        scheduler.submit(Request { on_end: Some(on_end), ..request }).expect("a request")
    };
    let handles: Vec<_> = (0..4).map(submit).collect();
    handles[3].cancel();
    let mut ended: Vec<usize> = (0..4).map(|_| ends.recv_timeout(Duration::from_secs(60)).expect("an end")).collect();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2, 3]);
    assert!(handles.iter().all(|handle| handle.is_done()));
    assert!(ends.try_recv().is_err(), "no second report");
    // A callback that panics disturbs no other request.
    let panics = Request { on_end: Some(Box::new(|| panic!("an end callback that fails"))), ..Request::default() };
    let panics = Request { inputs: vec![case.ids.clone()], options: options(2), ..panics };
    scheduler.submit(panics).expect("a request").wait().expect("a generation");
    let request = Request::new(case.ids.clone(), Plan::default(), options(2));
    scheduler.submit(request).expect("a request").wait().expect("the scheduler still runs");
}
