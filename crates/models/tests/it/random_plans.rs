//! Random plans on models of many kinds: no panic, and every way to run a plan agrees.
//!
//! `PELLUCID_RANDOM_PLANS=100000` runs that many instead of a few hundred.

use golden::{Choices, Outcome, RandomCall};

const CASES: [&str; 8] = ["gpt2", "llama", "gemma2", "mixtral", "mamba", "qwen3_next", "deepseek_v3", "gpt_neox"];

#[test]
fn random_plans_run_alike_in_every_way_or_are_refused() {
    let count: u64 = std::env::var("PELLUCID_RANDOM_PLANS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    let first: u64 = std::env::var("PELLUCID_RANDOM_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let cases: Vec<golden::Case> = CASES.iter().map(|name| golden::case(name)).collect();
    let (mut ran, mut naive) = (0, 0);
    for seed in first..first + count {
        let case = &cases[(seed % cases.len() as u64) as usize];
        let model = &case.loaded.model;
        let call = RandomCall::new(model.program(), &mut Choices::from_seed(seed));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| call.check(model)));
        let outcome = outcome.unwrap_or_else(|_| panic!("seed {seed} on {}: {call:?}", case.name));
        ran += u64::from(outcome != Outcome::Refused);
        naive += u64::from(outcome == Outcome::RanAsNaive);
    }
    // The generator is of use only if most plans are valid.
    assert!(ran * 4 > count, "only {ran} of {count} plans ran");
    assert!(naive * 25 > count, "only {naive} of {count} plans were compared with the naive executor");
}

#[test]
fn a_fuzzers_bytes_are_a_call() {
    let case = golden::case("llama");
    for bytes in [&[][..], &[0; 3], &[255; 40], b"any bytes at all, of any length"] {
        RandomCall::new(case.loaded.model.program(), &mut Choices::from_bytes(bytes)).check(&case.loaded.model);
    }
}
