//! Calls to a server on loopback have the results of the same calls in this process.

mod support;

use golden::{Choices, RandomCall};
use pellucid_client::{Error, RemoteModel};
use pellucid_engine::plan::{Expr, Map};
use pellucid_engine::{
    Action, Array, Callback, CaptureDtype, CaptureOptions, GenerateOptions, Plan, RunOptions, Sampling, Tap,
};
use pellucid_models::StopStrings;
use pellucid_models::wire::WireResults;
use std::sync::Arc;
use support::{TestServer, bits_of_generation, bits_of_run};

#[test]
fn random_plans_have_the_bits_of_local_calls() {
    let cases: Vec<golden::Case> = ["gpt2", "mixtral", "mamba", "qwen3_next"].map(golden::case).into();
    let server = TestServer::start(&cases);
    let remotes: Vec<RemoteModel> = cases.iter().map(|case| server.connect(&case.name)).collect();
    let (mut ran, count) = (0, 200);
    for seed in 0..count {
        let index = (seed % cases.len() as u64) as usize;
        let (model, remote) = (&cases[index].loaded.model, &remotes[index]);
        let RandomCall { rows, plan, max_new } = RandomCall::new(model.program(), &mut Choices::from_seed(seed));
        let (here, there) = match max_new {
            None => {
                let here = model.run(&rows, &plan, &RunOptions::default());
                let there = remote.run(&rows, &plan, &RunOptions::default(), false);
                (here.map(|run| bits_of_run(&run)), there.map(|there| bits_of_run(&there.run)))
            }
            Some(max_new) => {
                let options = GenerateOptions { max_new, ..GenerateOptions::default() };
                let stops = StopStrings::default();
                let here = cases[index].loaded.generate(&rows, &plan, &options, &stops, &mut |_| {});
                let there = remote.generate(&rows, &plan, &options, &stops, false, &mut |_| {});
                let here = here.map_err(|error| match error {
                    pellucid_models::Error::Engine(error) => error,
                    other => panic!("{other}"),
                });
                (here.map(|it| bits_of_generation(&it)), there.map(|there| bits_of_generation(&there.generation)))
            }
        };
        ran += u64::from(here.is_ok());
        let there = there.map_err(|error| match error {
            Error::Call(pellucid_models::Error::Engine(error)) => error,
            other => panic!("seed {seed}: {other}\n{plan:?}"),
        });
        match (here, there) {
            (Ok(here), Ok(there)) => assert_eq!(here, there, "seed {seed}: {plan:?}"),
            (Err(here), Err(there)) => assert_eq!(here.to_string(), there.to_string(), "seed {seed}: {plan:?}"),
            (here, there) => panic!("seed {seed}: {:?} and {:?}\n{plan:?}", here.err(), there.err()),
        }
    }
    assert!(ran * 4 > count, "only {ran} of {count} calls ran");
}

#[test]
fn results_are_read_as_they_were_written() {
    let case = golden::case("llama");
    let mut plan = Plan::capture(["layers.*.resid_post", "layers.0.attn_probs"]);
    plan.taps.push(Tap::new("layers.1.mlp_act", Action::Capture(Some(pellucid_engine::Reduce::TopK(3)))));
    let read = plan.read(Tap::read("layers.0.resid_post"));
    let log = plan.value(Expr::Map(Map::Log, read));
    plan.save_value(log);
    let plan = pellucid_models::wire::plan_for_wire(&plan);
    for dtype in [CaptureDtype::F32, CaptureDtype::Bf16] {
        let captures = CaptureOptions { dtype, ..CaptureOptions::default() };
        let options = RunOptions { captures, ..RunOptions::default() };
        let run = case.loaded.model.run(&[vec![1, 2, 3], vec![4]], &plan, &options).expect("it runs");
        // The logarithm of negative numbers is NaN.
        assert!(run.saved.iter().any(|saved| saved.array.values().iter().any(|x| x.is_nan())));
        let expected = bits_of_run(&run);
        let written = WireResults::of_run(run, Default::default(), None).encode(&plan).expect("written");
        let read = WireResults::decode(&written).expect("read").into_run();
        assert_eq!(bits_of_run(&read), expected);
        for end in [0, 7, 8, 100, written.len() - 1] {
            assert!(WireResults::decode(&written[..end]).is_err(), "{end} of {} bytes", written.len());
        }
    }
}

#[test]
fn branches_and_sampled_generations_have_the_bits_of_local_calls() {
    let cases = [golden::case("gpt2")];
    let server = TestServer::start(&cases);
    let (model, remote) = (&cases[0].loaded, server.connect("gpt2"));
    let tokens = vec![5, 3, 9, 1];
    let edits = Plan::of([Tap::new("layers.0.resid_post", Action::Scale(0.5)).positions([0])]);
    let branch = |position: i64| {
        Plan::of([
            Tap::new("layers.1.resid_post", Action::Zero).positions([position]),
            Tap::capture("layers.*.resid_post"),
            Tap::capture("logits"),
        ])
    };
    let branches: Vec<Plan> = (0..300).map(|index| branch(index % 4)).collect();
    let here = model.model.base(&tokens, &edits).and_then(|base| base.branches(&branches)).expect("they run");
    let there = remote.branches(&tokens, &edits, &branches, None).expect("they run there");
    assert_eq!(here.len(), there.len());
    here.iter().zip(&there).for_each(|(here, there)| assert_eq!(bits_of_run(here), bits_of_run(there)));

    let sampling = Sampling { temperature: 1.3, top_k: 20, seed: u64::MAX - 3, ..Sampling::default() };
    let options = GenerateOptions { max_new: 9, sampling, ..GenerateOptions::default() };
    let (rows, stops) = (vec![tokens.clone(), tokens], StopStrings::default());
    let (mut own, mut other) = (Vec::new(), Vec::new());
    let plan = Plan::capture(["layers.1.z"]);
    let here = model.generate(&rows, &plan, &options, &stops, &mut |piece| own.push((piece.row, piece.token)));
    let there =
        remote.generate(&rows, &plan, &options, &stops, false, &mut |piece| other.push((piece.row, piece.token)));
    let (here, there) = (here.expect("it runs"), there.expect("it runs there").generation);
    assert_eq!(bits_of_generation(&here), bits_of_generation(&there));
    assert_eq!(own.len(), 18);
    own.sort_by_key(|(row, _)| *row);
    other.sort_by_key(|(row, _)| *row);
    assert_eq!(own, other);
}

#[test]
fn weights_are_fetched_and_a_model_without_weights_computes_nothing() {
    let cases = [golden::case("llama")];
    let server = TestServer::start(&cases);
    let (model, remote) = (&cases[0].loaded.model, server.connect("llama"));
    for id in model.program().weight_ids().step_by(5) {
        let name = &model.program().weight(id).name;
        let fetched = remote.weight(name).expect("a weight");
        assert_eq!(
            (fetched.shape(), fetched.values()),
            (&model.program().weight(id).shape[..], &model.weights().floats(id)[..])
        );
    }
    let width = model.program().architecture().width;
    let stream = Array::new(vec![2, width], (0..2 * width).map(|i| (i as f32).sin()).collect());
    assert_eq!(remote.unembed(&stream).expect("logits").values(), model.unembed(stream.values()).expect("logits"));
    let refused = remote.local().model.run(&[vec![1]], &Plan::default(), &RunOptions::default());
    assert!(refused.unwrap_err().to_string().contains("not in this process"));
    let refused = remote
        .local()
        .model
        .generate(&[vec![1]], &Plan::default(), &Default::default(), &mut |_, _| pellucid_engine::Control::Go);
    assert!(refused.unwrap_err().to_string().contains("not in this process"));
}

#[test]
fn functions_are_refused_before_anything_is_sent() {
    let cases = [golden::case("llama")];
    let server = TestServer::start(&cases);
    let remote = server.connect("llama");
    drop(server);
    // The server is gone, so an answer could not come from it.
    let plan = Plan::of([Tap::new("layers.0.z", Action::Call(Callback(Arc::new(|_| {}))))]);
    let error = remote.run(&[vec![1, 2]], &plan, &RunOptions::default(), false).err().expect("an error");
    assert!(matches!(&error, Error::Usage { hint, .. } if hint.contains("functions")), "{error}");
    let options = RunOptions { threads: Some(1), ..RunOptions::default() };
    let error = remote.run(&[vec![1, 2]], &Plan::default(), &options, false).err().expect("an error");
    assert!(error.to_string().contains("`threads`"), "{error}");
}
