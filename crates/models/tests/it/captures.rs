//! How captures are stored: bf16, in files, and read while their row still runs.

use crate::test_plans::{at, bits, capture, plan};
use golden::Case;
use pellucid_engine::{
    Array, Capture, CaptureDtype, CaptureOptions, Control, GenerateOptions, Generation, Plan, Reduce, Request,
    RequestMemory, RunOptions, Scheduler, SchedulerOptions, Tap,
};
use std::path::Path;

fn options(captures: CaptureOptions) -> GenerateOptions {
    GenerateOptions { max_new: 9, captures, ..GenerateOptions::default() }
}

fn generate(case: &Case, plan: &Plan, captures: CaptureOptions) -> Generation {
    let rows = [case.ids.clone(), case.ids[..3].to_vec()];
    let generation = case.loaded.model.generate(&rows, plan, &options(captures), &mut |_, _| Control::Go);
    generation.expect("a generation")
}

/// Captures of every kind: whole, selected, reduced, attention patterns.
fn mixed_plan() -> Plan {
    plan([
        capture("layers.*.resid_post"),
        capture("layers.1.mlp_act").units([3, 1]),
        capture("layers.0.attn_probs"),
        capture("logits").generated(),
        capture("layers.1.resid_post").positions(at("-1,0")),
        Tap::capture_reduced("layers.0.resid_post", Reduce::Mean),
        Tap::capture_reduced("layers.0.resid_post", Reduce::TopK(3)),
        Tap::capture_reduced("layers.0.resid_post", Reduce::Norm),
    ])
}

fn in_file(folder: &Path, dtype: CaptureDtype) -> CaptureOptions {
    CaptureOptions { dtype, memory_limit: Some(0), spill_folder: Some(folder.into()) }
}

fn assert_equal(name: &str, left: &[Capture], right: &[Capture]) {
    assert_eq!(left.len(), right.len(), "{name}");
    for (left, right) in left.iter().zip(right) {
        assert_eq!((left.site, left.row, &left.positions), (right.site, right.row, &right.positions), "{name}");
        assert_eq!(left.array.shape(), right.array.shape(), "{name}: {}", left.site);
        assert!(bits(&left.array) == bits(&right.array), "{name}: {}", left.site);
        assert_eq!(left.units, right.units, "{name}");
    }
}

/// Number of memory mappings of files in a folder.
fn mappings(folder: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings of this process");
    let folder = folder.canonicalize().expect("the folder");
    maps.lines().filter(|line| line.contains(&*folder.to_string_lossy())).count()
}

#[test]
fn captures_in_a_file_have_the_same_bits_and_free_it() {
    for name in ["llama", "mixtral", "mamba"] {
        let (case, folder) = (golden::case(name), tempfile::tempdir().expect("a folder"));
        let look = if name == "llama" { mixed_plan() } else { Plan::capture(["layers.*.resid_post", "logits"]) };
        let heap = generate(&case, &look, CaptureOptions::default());
        let file = generate(&case, &look, in_file(folder.path(), CaptureDtype::F32));
        assert_equal(name, &heap.captures, &file.captures);
        assert_eq!(mappings(folder.path()), 1, "one file for all captures");
        let kept: Array = file.captures[0].array.clone();
        drop(file);
        assert_eq!(mappings(folder.path()), 1, "an array keeps its file");
        assert!(bits(&kept) == bits(&heap.captures[0].array));
        drop(kept);
        assert_eq!(mappings(folder.path()), 0, "the last array frees it");
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0, "no name is left");

        let rows = [case.ids.clone(), case.ids[..2].to_vec()];
        let run = |captures: CaptureOptions| {
            let options = RunOptions { captures, ..RunOptions::default() };
            case.loaded.model.run(&rows, &Plan::capture(["layers.*.resid_post"]), &options).expect("a run").captures
        };
        assert_equal(name, &run(CaptureOptions::default()), &run(in_file(folder.path(), CaptureDtype::F32)));
    }
}

#[test]
fn a_limit_that_is_not_exceeded_keeps_captures_on_the_heap() {
    let (case, folder) = (golden::case("llama"), tempfile::tempdir().expect("a folder"));
    let captures = CaptureOptions { memory_limit: Some(1 << 20), ..in_file(folder.path(), CaptureDtype::F32) };
    let _generation = generate(&case, &mixed_plan(), captures);
    assert_eq!(mappings(folder.path()), 0);
}

#[test]
fn a_folder_that_does_not_exist_is_named_before_the_run() {
    let case = golden::case("llama");
    let captures = in_file(Path::new("/no/such/folder"), CaptureDtype::F32);
    let rows = [case.ids.clone()];
    let refused = case.loaded.model.generate(&rows, &mixed_plan(), &options(captures), &mut |_, _| Control::Go);
    let message = refused.expect_err("there is no folder").to_string();
    assert!(message.contains("/no/such/folder"), "{message}");
}

/// bf16 captures are the f32 captures rounded to nearest even; reductions stay f32.
#[test]
fn bf16_captures_are_the_rounded_f32_captures() {
    let (case, folder) = (golden::case("llama"), tempfile::tempdir().expect("a folder"));
    let exact = generate(&case, &mixed_plan(), CaptureOptions::default());
    let heap = CaptureOptions { dtype: CaptureDtype::Bf16, ..CaptureOptions::default() };
    for captures in [heap, in_file(folder.path(), CaptureDtype::Bf16)] {
        let half = generate(&case, &mixed_plan(), captures);
        let mut stored = 0;
        for (exact, half) in exact.captures.iter().zip(&half.captures) {
            match half.array.halves() {
                Some(halves) => {
                    stored += 1;
                    let rounded: Vec<half::bf16> =
                        exact.array.values().iter().map(|&x| half::bf16::from_f32(x)).collect();
                    assert!(halves == rounded, "{}", half.site);
                    let widened: Vec<f32> = rounded.iter().map(|x| x.to_f32()).collect();
                    assert_eq!(half.array.values(), widened);
                }
                None => assert!(bits(&exact.array) == bits(&half.array), "{}", half.site),
            }
        }
        assert!(stored >= 2 * case.loaded.model.program().architecture().layers.len());
    }
    let model = &case.loaded.model;
    let need = |dtype| {
        let captures = CaptureOptions { dtype, ..CaptureOptions::default() };
        let look = Plan::capture(["layers.*.resid_post"]);
        RequestMemory::of(model, std::slice::from_ref(&case.ids), &look, &options(captures))
            .expect("bytes")
            .capture_bytes
    };
    assert_eq!(need(CaptureDtype::F32), 2 * need(CaptureDtype::Bf16));
}

/// After each token, a handle shows the lines of all positions before it; they are never written
/// again.
#[test]
fn captures_are_read_while_the_request_runs() {
    let case = golden::case("llama");
    let scheduler = Scheduler::new(&case.loaded.model, SchedulerOptions::default()).expect("a scheduler");
    let look = Plan::of([Tap::capture("layers.*.resid_post"), Tap::capture_reduced("logits", Reduce::TopK(2))]);
    let submit = |plan: &Plan| {
        scheduler.submit(Request::new(case.ids.clone(), plan.clone(), options(CaptureOptions::default())))
    };
    let handle = submit(&look).expect("a request");
    let mut early: Vec<Capture> = Vec::new();
    let mut tokens = 0;
    while handle.next_token().is_some() {
        tokens += 1;
        let so_far = handle.captures();
        // The thread may be ahead of this one, never behind.
        let lines = so_far[0].positions.len();
        assert!(lines >= case.ids.len() + tokens - 1, "{lines} lines after {tokens} tokens");
        assert_eq!(so_far[0].positions, (0..lines).collect::<Vec<_>>());
        early.extend(so_far);
    }
    let after = handle.captures();
    assert_equal("again", &after, &handle.captures());
    let generation = handle.wait().expect("a generation");
    assert_equal("at the end", &after, &generation.captures);
    for capture in &early {
        let same = |all: &&Capture| (all.site, all.tap) == (capture.site, capture.tap);
        let all = generation.captures.iter().find(same).expect("the same capture at the end");
        assert!(bits(&all.array)[..capture.array.len()] == bits(&capture.array), "{}", capture.site);
    }
    let none = submit(&Plan::default()).expect("a request without captures");
    while none.next_token().is_some() {}
    assert!(none.captures().is_empty());
}

/// A request whose captures go to a file needs none of the scheduler's capture memory.
#[test]
fn captures_in_a_file_do_not_count_as_memory() {
    let (case, folder) = (golden::case("llama"), tempfile::tempdir().expect("a folder"));
    let settings = SchedulerOptions { capture_bytes: 1000, ..SchedulerOptions::default() };
    let scheduler = Scheduler::new(&case.loaded.model, settings).expect("a scheduler");
    let look = Plan::capture(["layers.*.resid_post"]);
    let submit = |captures| scheduler.submit(Request::new(case.ids.clone(), look.clone(), options(captures)));
    let refused = submit(CaptureOptions::default()).err().expect("too large").to_string();
    assert!(refused.contains("the scheduler has 1000"), "{refused}");
    let generation = submit(in_file(folder.path(), CaptureDtype::F32)).expect("it fits").wait().expect("a generation");
    let rows = [case.ids.clone()];
    let go = &mut |_, _| Control::Go;
    let alone = case.loaded.model.generate(&rows, &look, &options(CaptureOptions::default()), go).expect("alone");
    assert_equal("in a file", &generation.captures, &alone.captures);
}
