//! A decode step allocates nothing. A separate test binary, because allocations of other tests
//! would be counted too.

use pellucid_engine::{Control, GenerateOptions, Model, Plan, Sampling};
use pellucid_kernels::Pool;
use pellucid_lab::counting::{CountingAllocator, during};
use pellucid_models::{LoadOptions, LoadedModel};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Counts the allocations of a generation, including its prompts.
fn allocations(model: &Model, prompts: &[Vec<u32>], options: &GenerateOptions) -> u64 {
    let generate =
        || model.generate(prompts, &Plan::default(), options, &mut |_, _| Control::Go).expect("a generation");
    let (generation, counted) = during(generate);
    assert!(generation.rows.iter().all(|row| row.tokens.len() == options.max_new), "no row ends early");
    counted.expect("counted").count
}

/// Checks that twenty more steps do not add an allocation.
fn check(name: &str, model: &Model, prompts: &[Vec<u32>], options: &GenerateOptions) {
    let of = |max_new: usize| allocations(model, prompts, &GenerateOptions { max_new, ..options.clone() });
    // The first calls compile and cache the plan.
    let _ = (of(6), of(26));
    let (few, many) = (of(6), of(26));
    assert_eq!(many, few, "{name}: twenty more steps allocate {} times", many as i64 - few as i64);
}

/// One test for everything: tests of a process run in parallel.
#[test]
fn a_step_allocates_nothing() {
    let sampled = Sampling {
        temperature: 0.8,
        top_k: 30,
        top_p: 0.9,
        min_p: 0.01,
        repetition_penalty: 1.2,
        ..Sampling::default()
    };
    let ways = [
        ("greedy", GenerateOptions::default()),
        ("sampled", GenerateOptions { sampling: sampled, ..GenerateOptions::default() }),
    ];
    let loaded = LoadedModel::builtin(&LoadOptions::default()).expect("the built-in model");
    let prompts = |texts: &[&str]| texts.iter().map(|text| loaded.encode(text).expect("tokens")).collect::<Vec<_>>();
    let alone = loaded.model.clone().with_pool(Arc::new(Pool::new(1)));
    for (way, options) in &ways {
        check(&format!("built-in, {way}"), &alone, &prompts(&["Tom saw a dog and a dog and a dog"]), options);
        check(&format!("built-in, two rows, {way}"), &alone, &prompts(&["Tom saw a dog.", "Lily"]), options);
    }
    // A thread allocates its scratch buffers when it first works; later steps allocate nothing.
    let shared = loaded.model.clone().with_pool(Arc::new(Pool::new(2)));
    let rows = prompts(&["Tom saw a dog.", "Lily"]);
    let of = |max_new: usize| allocations(&shared, &rows, &GenerateOptions { max_new, ..GenerateOptions::default() });
    assert!((0..20).any(|_| of(6) == of(26)), "two threads: steps keep allocating");

    for name in golden::one_per_type() {
        let case = golden::case(&name);
        let context = case.loaded.model.program().architecture().context.unwrap_or(usize::MAX);
        if case.ids.len() + 26 > context || !can_generate(&case) {
            continue;
        }
        let model = case.loaded.model.clone().with_pool(Arc::new(Pool::new(1)));
        for prompts in [vec![case.ids.clone()], vec![case.ids.clone(), case.ids[2..].to_vec()]] {
            check(&format!("{name}, {} rows", prompts.len()), &model, &prompts, &GenerateOptions::default());
        }
    }
}

/// Whether the model can generate.
fn can_generate(case: &golden::Case) -> bool {
    let once = GenerateOptions { max_new: 1, ..GenerateOptions::default() };
    case.loaded
        .model
        .generate(std::slice::from_ref(&case.ids), &Plan::default(), &once, &mut |_, _| Control::Go)
        .is_ok()
}
