//! Many jobs in one `Batch`: each gives the same bits as alone.

use crate::test_plans::{add, at, bits, call, capture, from, plan, set};
use golden::Case;
use pellucid_engine::plan::Expr;
use pellucid_engine::{
    Action, Batch, Control, Finish, GenerateOptions, Generation, Operand, Plan, RequestId, Sampling, Tap,
};
use std::collections::HashMap;

/// A small pseudo-random number generator, so that a failing case can be repeated.
pub(crate) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

/// A request: its rows, plan and options, the pass it arrives before, and the pass it is cancelled
/// before.
pub(crate) struct Request {
    pub rows: Vec<Vec<u32>>,
    pub plan: Plan,
    pub options: GenerateOptions,
    pub arrival: usize,
    pub cancelled: Option<usize>,
}

pub(crate) fn request(case: &Case, random: &mut Random) -> Request {
    let n = case.ids.len();
    let rows: Vec<Vec<u32>> = (0..1 + random.below(3))
        .map(|_| {
            let start = random.below(n - 1);
            case.ids[start..start + 1 + random.below(n - start)].to_vec()
        })
        .collect();
    let plan = taps(case, rows.len(), random);
    let sampling = match random.below(2) {
        0 => Sampling::default(),
        _ => Sampling { temperature: 0.9, seed: random.below(1000) as u64, ..Sampling::default() },
    };
    let chunk = [None, Some(1), Some(3)][random.below(3)];
    let options = GenerateOptions { max_new: 1 + random.below(9), sampling, chunk, ..GenerateOptions::default() };
    let cancelled = (random.below(5) == 0).then(|| random.below(12));
    Request { rows, plan, options, arrival: random.below(12), cancelled }
}

/// A random plan: none, captures, edits, skipped layers, attention, closures, values, or other
/// rows.
fn taps(case: &Case, rows: usize, random: &mut Random) -> Plan {
    let layer = random.below(case.layers());
    let site = |point: &str| format!("layers.{layer}.{point}");
    let resid = site("resid_post");
    let last = format!("layers.{}.resid_post", case.layers() - 1);
    match random.below(11) {
        0 => Plan::default(),
        1 => plan([capture("layers.*.resid_post"), capture("logits")]),
        2 => plan([Tap::new(&resid, Action::Scale(0.5)), capture(&last)]),
        3 => plan([add(&resid, 0.25).positions(at("-1")), capture(&last)]),
        4 => plan([Tap::new(&resid, Action::Skip(None)), capture(&last)]),
        5 if case.loaded.model.find(&site("attn_probs")).is_ok() => {
            let halved = call(|row| row.values.iter_mut().for_each(|x| *x *= 0.5));
            plan([capture(&site("attn_probs")), Tap::new(site("attn_probs"), halved), capture(&site("attn_scores"))])
        }
        6 => plan([Tap::new(&resid, call(|row| row.values.iter_mut().for_each(|x| *x = -*x))), capture(&last)]),
        7 => {
            let mut plan = plan([Tap::new(&resid, Action::Read)]);
            let read = plan.value(Expr::Read(0));
            let squared = plan.value(Expr::Combine(pellucid_engine::plan::Combine::Mul, read, read));
            plan.save = vec![squared];
            plan.with(set(&resid, Operand::Value(squared))).with(capture(&last))
        }
        9 if case.loaded.model.find(&site("expert_out")).is_ok() => plan([
            Tap::replace(site("expert_indices"), [(0, 1), (1, 0)]),
            Tap::scale(site("expert_weights"), 0.5).experts([random.below(4)]),
            Tap::zero(site("expert_out")).experts([random.below(4)]).positions(at("1:")),
            capture("layers.*.expert_out"),
        ]),
        8 if rows > 1 => {
            // Every row but the first takes the first row's embedding of its first token.
            let taken = (1..rows).map(|row| set("embed", from("embed", 0)).positions(at("0")).rows([row]));
            plan(taken.chain([capture(&last)]))
        }
        _ => plan([Tap::new(&resid, Action::Capture(Some(pellucid_engine::Reduce::Norm))), capture("embed")]),
    }
}

/// One capture: its tap, row, positions and bits.
pub(crate) type CaptureBits = (usize, usize, Vec<usize>, Vec<u32>);
/// The tokens of each row, the captures, and the bits of saved values.
pub(crate) type GenerationBits = (Vec<(Vec<u32>, Finish)>, Vec<CaptureBits>, Vec<Vec<u32>>);

/// The tokens, captures and saved values of a generation, as bits.
pub(crate) fn everything(generation: &Generation) -> GenerationBits {
    let rows = generation.rows.iter().map(|row| (row.tokens.clone(), row.finish)).collect();
    let captures = generation.captures.iter();
    let captures = captures.map(|capture| (capture.tap, capture.row, capture.positions.clone(), bits(&capture.array)));
    let saved = generation.saved.iter().map(|saved| bits(&saved.array)).collect();
    (rows, captures.collect(), saved)
}

fn forty_jobs(name: &str, seed: u64) {
    let case = golden::case(name);
    let model = &case.loaded.model;
    let mut random = Random(seed);
    let requests: Vec<Request> = (0..40).map(|_| request(&case, &mut random)).collect();
    let mut batch = Batch::new(model);
    let mut ids: HashMap<RequestId, usize> = HashMap::new();
    let mut streamed: Vec<Vec<(usize, u32)>> = vec![Vec::new(); requests.len()];
    let (mut together, mut pass) = (0, 0);
    while pass <= 12 || batch.running() > 0 {
        for (index, request) in requests.iter().enumerate().filter(|(_, request)| request.arrival == pass) {
            let id = batch.add(&request.rows, &request.plan, &request.options);
            ids.insert(id.unwrap_or_else(|e| panic!("{name}: request {index}: {e}")), index);
        }
        for (id, _) in ids.iter().filter(|(_, index)| requests[**index].cancelled == Some(pass)) {
            batch.cancel(*id);
        }
        together = together.max(batch.running());
        if batch.running() > 0 {
            let budget = 1 + random.below(24);
            let watch = &mut |id, row, token| {
                streamed[ids[&id]].push((row, token));
                Control::Go
            };
            batch.pass(budget, watch).unwrap_or_else(|e| panic!("{name}: pass {pass}: {e}"));
        }
        pass += 1;
    }
    assert!(together > 10, "{name}: at most {together} jobs ran together");
    let mut compared = 0;
    for (id, index) in ids {
        let request = &requests[index];
        let Some(generation) = batch.take(id) else {
            assert!(request.cancelled.is_some(), "{name}: request {index} gave nothing");
            continue;
        };
        let generation = generation.unwrap_or_else(|e| panic!("{name}: request {index}: {e}"));
        let alone = model
            .generate(&request.rows, &request.plan, &request.options, &mut |_, _| Control::Go)
            .unwrap_or_else(|e| panic!("{name}: request {index} alone: {e}"));
        assert!(everything(&generation) == everything(&alone), "{name}: request {index} differs from its solo run");
        for (row, generated) in generation.rows.iter().enumerate() {
            let own = streamed[index].iter().filter(|(of, _)| *of == row).map(|(_, token)| *token);
            assert_eq!(own.collect::<Vec<_>>(), generated.tokens, "{name}: the stream of request {index}");
        }
        compared += 1;
    }
    assert!(compared >= 25, "{name}: only {compared} requests ended");
}

#[test]
fn forty_jobs_of_a_dense_model_keep_their_bits() {
    forty_jobs("llama", 1);
}

#[test]
fn forty_jobs_of_a_model_with_learned_positions_keep_their_bits() {
    forty_jobs("gpt2", 2);
}

#[test]
fn forty_jobs_of_a_mixture_of_experts_keep_their_bits() {
    forty_jobs("mixtral", 3);
}

#[test]
fn forty_jobs_of_a_recurrent_model_keep_their_bits() {
    forty_jobs("mamba", 4);
}

#[test]
fn forty_jobs_with_sliding_windows_keep_their_bits() {
    forty_jobs("mistral-sliding", 5);
}

#[test]
fn forty_jobs_of_a_hybrid_model_keep_their_bits() {
    forty_jobs("recurrent_gemma", 6);
}

#[test]
fn an_empty_batch_and_a_budget_of_zero_do_no_harm() {
    let case = golden::case("llama");
    let mut batch = Batch::new(&case.loaded.model);
    batch.pass(8, &mut |_, _, _| Control::Go).expect("nothing to do");
    let options = GenerateOptions { max_new: 2, ..GenerateOptions::default() };
    let id = batch.add(std::slice::from_ref(&case.ids), &Plan::default(), &options).expect("a request");
    while batch.running() > 0 {
        batch.pass(0, &mut |_, _, _| Control::Go).expect("a pass");
    }
    assert_eq!(batch.take(id).expect("it ended").expect("a generation").rows[0].tokens.len(), 2);
    assert!(batch.take(id).is_none() && !batch.cancel(id), "a request is taken once");
}

/// A failing tap ends its own request; the requests that share the pass go on.
#[test]
fn a_failing_request_does_not_disturb_the_others() {
    let case = golden::case("llama");
    let model = &case.loaded.model;
    let mut failing = plan([Tap::new("layers.0.resid_post", Action::Read)]);
    let read = failing.value(Expr::Read(0));
    let nan = failing.value(Expr::Constant(pellucid_engine::Array::new(vec![1], vec![f32::NAN])));
    let sum = failing.value(Expr::Combine(pellucid_engine::plan::Combine::Add, read, nan));
    let failing = failing.with(set("layers.1.resid_post", Operand::Value(sum)));
    let options = GenerateOptions { max_new: 4, ..GenerateOptions::default() };
    let good = plan([capture("layers.*.resid_post")]);
    let mut batch = Batch::new(model);
    let first = batch.add(std::slice::from_ref(&case.ids), &good, &options).expect("a request");
    let second = batch.add(std::slice::from_ref(&case.ids), &failing, &options).expect("a request");
    while batch.running() > 0 {
        batch.pass(64, &mut |_, _, _| Control::Go).expect("a pass");
    }
    let error = batch.take(second).expect("it ended").expect_err("it writes NaN").to_string();
    assert!(error.contains("NaN"), "{error}");
    let alone = model.generate(std::slice::from_ref(&case.ids), &good, &options, &mut |_, _| Control::Go);
    let together = batch.take(first).expect("it ended").expect("a generation");
    assert!(everything(&together) == everything(&alone.expect("a generation")));
}
