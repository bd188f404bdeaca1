//! A row's bits depend on its own adapter, not on its company.

use super::{llama_with_two, open, run};
use crate::test_plans::{bits, capture};
use golden::Case;
use pellucid_engine::{
    Action, Batch, Control, GenerateOptions, Generation, Plan, PrefixCache, Request, RowAdapters, Run, RunOptions,
    Sampling, Scheduler, SchedulerOptions, Tap,
};

fn prompts() -> Vec<Vec<u32>> {
    vec![vec![1, 5, 9, 2, 6], vec![5, 3], vec![5, 8, 9, 7, 9, 3, 2]]
}

fn names() -> [Option<&'static str>; 3] {
    [Some("a"), Some("b"), None]
}

fn each(names: &[Option<&str>]) -> RowAdapters {
    RowAdapters::Each(names.iter().map(|name| name.map(str::to_owned)).collect())
}

fn all_sites(run: &Run, row: usize) -> Vec<Vec<u32>> {
    run.captures.iter().filter(|capture| capture.row == row).map(|capture| bits(&capture.array)).collect()
}

#[test]
fn rows_with_different_adapters_have_the_bits_of_each_alone() {
    let loaded = llama_with_two();
    let sites: Vec<String> = loaded.model.program().sites().map(|site| site.to_string()).collect();
    let plan = Plan::capture(sites.iter().map(String::as_str));
    let (rows, names) = (prompts(), names());
    let together = run(&loaded, &rows, &plan, each(&names));
    let plain = open(&golden::path("llama"), &[]).expect("a model");
    for (row, name) in names.into_iter().enumerate() {
        let alone = run(&loaded, &rows[row..=row], &plan, each(&[name]));
        assert!(all_sites(&together, row) == all_sites(&alone, 0), "row {row} depends on its company");
        let by_default = loaded.model.with_adapter(name).expect("a model");
        let by_default = by_default.run(&rows[row..=row], &plan, &RunOptions::default()).expect("a run");
        assert!(all_sites(&by_default, 0) == all_sites(&alone, 0), "row {row} by default");
        let without = run(&plain, &rows[row..=row], &plan, RowAdapters::default());
        assert_eq!(all_sites(&together, row) == all_sites(&without, 0), name.is_none(), "row {row}");
    }
    // The order of rows does not matter, nor do chunks and threads.
    let reversed: Vec<Vec<u32>> = rows.iter().rev().cloned().collect();
    let adapters = each(&[None, Some("b"), Some("a")]);
    let options = RunOptions { adapters, chunk: Some(2), threads: Some(1), ..RunOptions::default() };
    let plan = Plan::capture(["layers.*.resid_post", "logits"]);
    let (chunked, whole) =
        (loaded.model.run(&reversed, &plan, &options).expect("a run"), run(&loaded, &rows, &plan, each(&names)));
    for row in 0..3 {
        assert!(all_sites(&chunked, 2 - row) == all_sites(&whole, row), "row {row} in chunks");
    }
}

fn generate(model: &pellucid_engine::Model, rows: &[Vec<u32>], options: &GenerateOptions) -> Generation {
    let plan = Plan::capture(["layers.1.resid_post", "logits"]);
    model.generate(rows, &plan, options, &mut |_, _| Control::Go).expect("a generation")
}

fn tokens_and_bits(generation: &Generation, row: usize) -> (Vec<u32>, Vec<Vec<u32>>) {
    let captures = generation.captures.iter().filter(|capture| capture.row == row);
    (generation.rows[row].tokens.clone(), captures.map(|capture| bits(&capture.array)).collect())
}

#[test]
fn generations_batches_and_schedules_mix_adapters() {
    let loaded = llama_with_two();
    let (model, rows, names) = (&loaded.model, prompts(), names());
    let sampling = Sampling { temperature: 0.9, seed: 4, ..Sampling::default() };
    let options = |adapters: RowAdapters| GenerateOptions {
        max_new: 12,
        sampling: sampling.clone(),
        adapters,
        ..GenerateOptions::default()
    };
    let alone: Vec<_> = (0..3)
        .map(|row| tokens_and_bits(&generate(model, &rows[row..=row], &options(each(&names[row..=row]))), 0))
        .collect();
    assert!(alone[0].1 != alone[2].1);
    let together = generate(model, &rows, &options(each(&names)));
    (0..3).for_each(|row| assert!(tokens_and_bits(&together, row) == alone[row], "row {row}"));
    // Decoded tokens equal those of a whole run.
    let whole = [rows[0].clone(), alone[0].0.clone()].concat();
    let plan = Plan::capture(["layers.1.resid_post", "logits"]);
    let whole = run(&loaded, &[whole[..whole.len() - 1].to_vec()], &plan, "a".into());
    assert!(all_sites(&whole, 0) == alone[0].1, "decoding differs from a whole run");

    let mut batch = Batch::new(model);
    let request = |row: usize| (rows[row].clone(), options(each(&names[row..=row])));
    let ids: Vec<_> = (0..3)
        .map(|row| {
            let (prompt, options) = request(row);
            let id = batch.add(&[prompt], &plan, &options).expect("a request");
            // The first requests decode while the later ones join.
            batch.pass(3, &mut |_, _, _| Control::Go).expect("a pass");
            id
        })
        .collect();
    while batch.running() > 0 {
        batch.pass(3, &mut |_, _, _| Control::Go).expect("a pass");
    }
    for (row, id) in ids.into_iter().enumerate() {
        let generation = batch.take(id).expect("it has ended").expect("a generation");
        assert!(tokens_and_bits(&generation, 0) == alone[row], "row {row} of the batch");
    }

    let scheduler = Scheduler::new(model, SchedulerOptions::default()).expect("a scheduler");
    // Twice, so that the second round starts from cached prefixes.
    for round in 0..2 {
        let handles: Vec<_> = (0..3)
            .map(|row| {
                let (prompt, options) = request(row);
                scheduler.submit(Request::new(prompt, plan.clone(), options)).expect("a request")
            })
            .collect();
        for (row, handle) in handles.into_iter().enumerate() {
            let generation = handle.wait().expect("a generation");
            assert!(tokens_and_bits(&generation, 0) == alone[row], "row {row} of the scheduler, round {round}");
        }
    }
    let unknown = options("c".into());
    let error = scheduler.submit(Request::new(rows[0].clone(), Plan::default(), unknown)).err().expect("refused");
    assert!(error.to_string().contains("no adapter named `c` is attached"), "{error}");
}

#[test]
fn the_same_prompt_with_two_adapters_draws_the_same_random_numbers_as_alone() {
    let loaded = llama_with_two();
    let rows = vec![vec![1, 5, 9, 2]; 2];
    let options = |adapters: RowAdapters| GenerateOptions {
        max_new: 16,
        sampling: Sampling { temperature: 1.5, seed: 2, ..Sampling::default() },
        adapters,
        ..GenerateOptions::default()
    };
    let together = generate(&loaded.model, &rows, &options(each(&[Some("a"), Some("b")])));
    for (row, name) in ["a", "b"].into_iter().enumerate() {
        let alone = generate(&loaded.model, &rows[..1], &options(name.into()));
        assert!(tokens_and_bits(&together, row) == tokens_and_bits(&alone, 0), "{name}");
    }
}

#[test]
fn cached_prefixes_belong_to_their_adapter() {
    let loaded = llama_with_two();
    let cache = PrefixCache::new(1 << 24);
    let options = |name: Option<&str>, prefixes: Option<&PrefixCache>| GenerateOptions {
        max_new: 4,
        adapters: each(&[name]),
        prefixes: prefixes.cloned(),
        ..GenerateOptions::default()
    };
    let prompt = vec![vec![1, 5, 9, 2, 6, 5, 3]];
    let plan = Plan::of([capture("logits").positions(pellucid_engine::Positions::Last)]);
    let go = |options: &GenerateOptions| {
        loaded.model.generate(&prompt, &plan, options, &mut |_, _| Control::Go).expect("a generation")
    };
    for round in 0..2 {
        for name in names() {
            let (ours, alone) = (go(&options(name, Some(&cache))), go(&options(name, None)));
            assert_eq!(ours.reused[0] > 0, round > 0, "{name:?}");
            assert!(tokens_and_bits(&ours, 0) == tokens_and_bits(&alone, 0), "{name:?} in round {round}");
        }
    }
    // A prefix that a model computes by default is for its default adapter only.
    let fixed = loaded.model.with_adapter(Some("b")).expect("a model").prefix(&prompt[0]).expect("a prefix");
    assert!(go(&options(Some("b"), Some(&fixed))).reused[0] > 0);
    assert_eq!(go(&options(Some("a"), Some(&fixed))).reused[0], 0);
    // A name may be attached again, with other weights.
    let path = golden::path("llama");
    let mut other = loaded.clone();
    other.detach_adapter("a").expect("it is attached");
    other.attach_adapter("a", super::adapter_for(&path, 77, |_| true).path()).expect("an adapter");
    let with = |prefixes| other.model.generate(&prompt, &plan, &options(Some("a"), prefixes), &mut |_, _| Control::Go);
    let (ours, alone) = (with(Some(&cache)).expect("a generation"), with(None).expect("a generation"));
    assert!(ours.reused[0] == 0 && tokens_and_bits(&ours, 0) == tokens_and_bits(&alone, 0));
}

#[test]
fn branches_and_edits_of_heads_use_the_adapter() {
    let loaded = llama_with_two();
    let tokens = prompts().remove(0);
    let edits = [
        Tap::new("layers.1.resid_pre", Action::Scale(-1.5)).positions(crate::test_plans::at("2")),
        Tap::new("layers.0.head_out", Action::Scale(2.0)).heads([0]),
        Tap::new("layers.1.mlp_out", Action::Zero).positions(crate::test_plans::at("last")),
    ];
    for name in names() {
        let model = loaded.model.with_adapter(name).expect("a model");
        let base = model.base(&tokens, &Plan::default()).expect("a base");
        for edit in &edits {
            let plan = Plan::of([edit.clone(), capture("layers.*.resid_post"), capture("logits")]);
            let branch = base.branch(&plan).expect("a branch");
            let whole = run(&loaded, std::slice::from_ref(&tokens), &plan, each(&[name]));
            assert!(all_sites(&branch, 0) == all_sites(&whole, 0), "{name:?}: {edit:?}");
        }
    }
    // Each head's share of the output includes its share of the update.
    let shares = run(
        &loaded,
        std::slice::from_ref(&tokens),
        &Plan::capture(["layers.0.head_out", "layers.0.attn_out"]),
        "b".into(),
    );
    let (heads, out) = (&shares.captures[0].array, &shares.captures[1].array);
    let width = out.shape()[1];
    for (shares, out) in heads.values().chunks_exact(heads.shape()[1] * width).zip(out.values().chunks_exact(width)) {
        let sum: Vec<f32> = (0..width).map(|i| shares.iter().skip(i).step_by(width).sum()).collect();
        assert!(golden::difference(&sum, out) < 1e-5);
    }
}

/// Devices do not know adapters, so adapted projections run on the host.
#[test]
fn a_device_gives_the_bits_of_the_cpu() {
    let loaded = llama_with_two();
    let device = pellucid_engine::deferred::Deferred::on(&loaded.model);
    let plan = Plan::capture(["layers.*.resid_post", "logits"]);
    let options = RunOptions { adapters: each(&names()), ..RunOptions::default() };
    let ours = device.run(&prompts(), &plan, &options).expect("a run");
    let cpu = run(&loaded, &prompts(), &plan, each(&names()));
    (0..3).for_each(|row| assert!(all_sites(&ours, row) == all_sites(&cpu, row), "row {row}"));
    assert!(ours.moved.fallbacks > 0);
}

/// Every family that the test of parity covers keeps the bits of its rows.
#[test]
fn mixed_rows_keep_their_bits_in_several_families() {
    for name in ["gpt2", "gpt_neox", "gemma2", "mamba", "mixtral", "falcon"] {
        let case: Case = golden::case(name);
        let mut loaded = case.loaded.clone();
        for (name, seed) in [("a", 1), ("b", 2)] {
            let adapter = super::adapter_for(&golden::path(&case.name), seed, |module| !module.ends_with("lm_head"));
            loaded.attach_adapter(name, adapter.path()).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        }
        let plan = Plan::capture(["layers.*.resid_post", "logits"]);
        let rows = [case.ids.clone(), case.ids[1..].to_vec(), case.ids.clone()];
        let together = run(&loaded, &rows, &plan, each(&names()));
        for (row, name) in names().into_iter().enumerate() {
            let alone = run(&loaded, &rows[row..=row], &plan, each(&[name]));
            assert!(all_sites(&together, row) == all_sites(&alone, 0), "{}: row {row}", case.name);
        }
        assert!(all_sites(&together, 0) != all_sites(&together, 2), "{}: the adapter changes nothing", case.name);
    }
}
