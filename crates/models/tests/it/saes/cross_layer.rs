//! Cross-layer transcoders: features of a layer write the MLP outputs of all later layers.

use super::gradients::{gradient, gradients, metric, value};
use super::{matrix, number, numbers, run};
use crate::test_plans::{at, bits, capture, plan};
use golden::Case;
use pellucid_engine::sae::{InputNormalization, Sae, SaeKind};
use pellucid_engine::{
    Action, Batch, Control, GenerateOptions, Model, Operand, Plan, Reduce, RunOptions, Splice, Tap, TranscoderLayer,
};
use std::path::PathBuf;
use std::sync::Arc;

/// Features of each layer.
const FEATURES: usize = 24;

fn acts(layer: usize) -> String {
    format!("{}/sae.acts", mlp_out(layer))
}

fn mlp_out(layer: usize) -> String {
    format!("layers.{layer}.mlp_out")
}

fn splice(layer: usize, how: Splice) -> Tap {
    Tap::new(mlp_out(layer), Action::Splice(how))
}

/// A cross-layer transcoder with fixed weights for all layers of a case; kinds alternate.
fn layers(case: &Case) -> Vec<TranscoderLayer> {
    layers_of(case, &|layer| match layer % 3 {
        0 => SaeKind::JumpRelu { threshold: (0..FEATURES).map(|i| number(i).abs() * 0.3).collect() },
        1 => SaeKind::TopK { k: 6, by_decoder_norm: None },
        _ => SaeKind::Relu,
    })
}

fn layers_of(case: &Case, kind: &dyn Fn(usize) -> SaeKind) -> Vec<TranscoderLayer> {
    let program = case.loaded.model.program();
    let count = program.architecture().layers.len();
    let layer = |layer: usize| {
        let (read, write) = (case.site(&format!("layers.{layer}.resid_mid")), case.site(&mlp_out(layer)));
        let d = super::width(case, read);
        let size = 1.0 / (d as f32).sqrt();
        let decoder = |target: usize| matrix(100 * layer + target, FEATURES, d, 2.0 * size);
        let mut decoder_biases = vec![vec![0.0; d]; count - layer];
        decoder_biases[0] = numbers(7 + layer, d, 0.1);
        let sae = Sae {
            kind: kind(layer),
            normalization: InputNormalization::None,
            undo_normalization: false,
            subtract_decoder_bias: false,
            encoder: matrix(50 + layer, FEATURES, d, size),
            encoder_bias: numbers(60 + layer, FEATURES, 0.1),
            decoders: (layer..count).map(decoder).collect(),
            decoder_biases,
            skip: (layer == 0).then(|| matrix(90, d, d, 0.3 * size)),
        };
        (Arc::new(sae), read, write)
    };
    (0..count).map(layer).collect()
}

fn attached(case: &Case) -> Model {
    case.loaded.model.attach_cross_layer(&layers(case)).unwrap_or_else(|e| panic!("{}: {e}", case.name))
}

/// Families with an MLP in every layer.
fn cases() -> Vec<Case> {
    let all = ["gpt2", "llama", "gemma2", "mixtral", "qwen3"];
    all.iter().map(|name| golden::case(name)).collect()
}

fn one(case: &Case) -> Vec<Vec<u32>> {
    vec![case.ids.clone()]
}

/// Activations of all layers without a transcoder's op: features and reconstructions.
fn expected(case: &Case, layers: &[TranscoderLayer]) -> Vec<(Vec<f32>, Vec<f32>)> {
    let pool = pellucid_kernels::Pool::global();
    let sites = layers.iter().map(|(_, read, _)| capture(&read.to_string()));
    let inputs = case.run(&one(case), &plan(sites)).captures;
    let mut features: Vec<Vec<f32>> = Vec::new();
    let mut all = Vec::new();
    for (layer, (sae, ..)) in layers.iter().enumerate() {
        let x = inputs[layer].array.values();
        let mut acts = vec![0.0; case.ids.len() * FEATURES];
        let scales = sae.encode(&pool, x, &mut acts);
        sae.activate(&pool, &mut acts);
        let mut recon = vec![0.0; case.ids.len() * sae.d_out()];
        sae.decode(&pool, 0, &acts, &scales, x, &mut recon);
        for (earlier, acts) in features.iter().enumerate() {
            let mut decoded = vec![0.0; recon.len()];
            let (earlier_sae, ..) = &layers[earlier];
            let x = inputs[earlier].array.values();
            earlier_sae.decode(&pool, layer - earlier, acts, &scales, x, &mut decoded);
            recon.iter_mut().zip(&decoded).for_each(|(sum, y)| *sum += y);
        }
        features.push(acts.clone());
        all.push((acts, recon));
    }
    all
}

#[test]
fn a_reconstruction_is_the_sum_over_the_features_of_all_layers_up_to_it() {
    for case in cases() {
        let (layers, model) = (layers(&case), attached(&case));
        let count = layers.len();
        let parts = (0..count)
            .flat_map(|layer| ["acts", "recon", "error"].map(|part| format!("{}/sae.{part}", mlp_out(layer))));
        let parts = parts.chain((0..count).map(mlp_out)).chain(["logits".into()]);
        let found = run(&model, &one(&case), &plan(parts.map(|site| capture(&site)))).captures;
        for (layer, (acts, recon)) in expected(&case, &layers).into_iter().enumerate() {
            let values = |index: usize| found[index].array.values();
            assert_eq!(values(3 * layer), acts, "{} {layer}", case.name);
            assert_eq!(values(3 * layer + 1), recon, "{} {layer}", case.name);
            let errors = values(3 * count + layer).iter().zip(&recon).map(|(y, recon)| y - recon);
            assert!(values(3 * layer + 2).iter().copied().eq(errors), "{} {layer}", case.name);
        }
        let plain = case.run(&one(&case), &plan([capture("logits")])).captures.remove(0);
        assert_eq!(bits(&found.last().expect("logits").array), bits(&plain.array), "reading changes nothing");
    }
}

#[test]
fn torch_gives_the_same_features_reconstructions_logits_and_gradients() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/sae/clt"));
    let loaded = pellucid_models::sae::read_layers(&root).expect("files").expect("a cross-layer transcoder");
    let reference = golden::tensors(&root.join("reference.safetensors"));
    let mut case = golden::case("gpt2");
    case.loaded.attach_cross_layer(&loaded, &Default::default()).expect("it fits");
    let model = &case.loaded.model;
    case.ids = reference["ids"].1.iter().map(|&id| id as u32).collect();
    let feature = reference["ablated_feature"].1[0] as usize;
    let close = |ours: &[f32], name: &str| {
        let truth = &reference[name].1;
        let size = truth.iter().fold(1.0_f32, |max, x| max.max(x.abs()));
        let error = golden::difference(ours, truth);
        assert!(error < 2e-5 * size, "{name}: {error}");
    };
    // The files name the sites: circuit-tracer's hook_mlp_out is the MLP's contribution.
    let sites: Vec<String> = model.saes().iter().map(|attached| attached.write.to_string()).collect();
    let splice = |site: &String| Tap::new(site, Action::Splice(Splice::Recon));
    let acts = |layer: usize| format!("{}/sae.acts", sites[layer]);
    let count = loaded.len();
    let all = || sites.iter().map(splice);
    for part in ["acts", "recon", "error"] {
        let taps = sites.iter().map(|site| capture(&format!("{site}/sae.{part}")));
        for (layer, found) in run(model, &one(&case), &plan(taps)).captures.iter().enumerate() {
            close(found.array.values(), &format!("{part}.{layer}"));
        }
    }
    let logits = |taps: Vec<Tap>| {
        let run = run(model, &one(&case), &plan(taps.into_iter().chain([capture("logits")])));
        run.captures[0].array.values().to_vec()
    };
    close(&logits(vec![]), "logits");
    close(&logits(all().collect()), "spliced");
    close(&logits(vec![splice(&sites[count - 1])]), "spliced_last");
    let ablate = Tap::new(acts(0), Action::Zero).units([feature]).positions(at("2"));
    close(&logits(vec![ablate]), "ablated");
    let steer = Tap::new(acts(0), Action::Set(Operand::Number(2.0))).units([feature]);
    close(&logits(all().chain([steer]).collect()), "steered");
    // The gradient of a logit in the spliced model.
    let mut with_metric = plan(all().chain((0..count).map(|layer| gradient(&acts(layer)))).chain([gradient("embed")]));
    let last = with_metric.read(Tap::new("logits", Action::Read).positions(at("last")));
    let picks = vec![pellucid_engine::plan::Pick::At(0), pellucid_engine::plan::Pick::At(7)];
    let logit = with_metric.value(pellucid_engine::plan::Expr::Index { of: last, picks });
    with_metric.metrics.push(logit);
    for recompute in [false, true] {
        let options = RunOptions { recompute, ..RunOptions::default() };
        let found = model.run(&one(&case), &with_metric, &options).expect("gradients").captures;
        (0..count).for_each(|layer| close(found[layer].array.values(), &format!("grad.{layer}")));
        close(found[count].array.values(), "grad_in");
    }
}

#[test]
fn with_the_error_term_and_no_edit_the_logits_keep_their_bits() {
    for case in cases() {
        let model = attached(&case);
        let plain = case.run(&one(&case), &plan([capture("logits")])).captures.remove(0);
        let count = model.saes().len();
        for spliced in [0..count, 1..2, count - 1..count] {
            let taps = spliced.map(|layer| splice(layer, Splice::ReconAndError)).chain([capture("logits")]);
            let found = run(&model, &one(&case), &plan(taps)).captures.remove(0);
            assert_eq!(bits(&found.array), bits(&plain.array), "{}", case.name);
        }
    }
}

#[test]
fn an_edited_feature_changes_all_later_layers_by_its_decoder_rows() {
    for case in cases() {
        let (layers, model) = (layers(&case), attached(&case));
        let position = case.ids.len() / 2;
        let features = &expected(&case, &layers)[0].0[position * FEATURES..][..FEATURES];
        let feature = (0..FEATURES).max_by(|&a, &b| features[a].total_cmp(&features[b])).expect("features");
        let here = at(&position.to_string());
        let edit = Tap::new(acts(0), Action::Set(Operand::Number(1.5))).units([feature]).positions(here.clone());
        let edited = run(&model, &one(&case), &plan([edit, capture("logits")])).captures.remove(0).array;
        // The same by adding the decoder rows to the MLP outputs of the plain model.
        let change = 1.5 - features[feature];
        let add = |target: usize| {
            let decoder = &layers[0].0.decoders[target];
            let mut row = vec![0.0; decoder.cols()];
            decoder.row(feature, &mut row);
            row.iter_mut().for_each(|w| *w *= change);
            Tap::new(mlp_out(target), Action::Add { operand: Operand::Vector(row), scale: 1.0 }).positions(here.clone())
        };
        let taps = (0..layers.len()).map(add).chain([capture("logits")]);
        let added = case.run(&one(&case), &plan(taps)).captures.remove(0).array;
        let largest = added.values().iter().fold(1.0_f32, |max, x| max.max(x.abs()));
        let error = golden::difference(edited.values(), added.values());
        assert!(error < 2e-5 * largest, "{}: {error}", case.name);
        let before = position * added.shape()[1];
        assert!(edited.values()[..before] == added.values()[..before], "{}: earlier positions", case.name);
        let only_first = case.run(&one(&case), &plan([add(0), capture("logits")])).captures.remove(0).array;
        assert!(golden::difference(edited.values(), only_first.values()) > 1e-3, "{}: later layers", case.name);
    }
}

/// Plans that read, edit and splice some layers.
fn plans(layers: usize) -> Vec<Plan> {
    let last = layers - 1;
    let steer = Tap::new(acts(0), Action::Add { operand: Operand::Number(1.5), scale: 1.0 }).units([7]);
    let sparse = Tap::new(acts(last), Action::Capture(Some(Reduce::Sparse)));
    vec![
        Plan::default(),
        plan([capture(&acts(1)), capture(&format!("{}/sae.recon", mlp_out(last)))]),
        plan((0..layers).map(|layer| splice(layer, Splice::Recon)).chain([capture(&acts(last))])),
        plan([splice(last, Splice::Recon), capture(&format!("layers.{last}.resid_post"))]),
        plan([steer.clone(), sparse, capture(&format!("layers.{last}.resid_post"))]),
        plan([steer.positions(at("1:3")), splice(1, Splice::Recon), capture("logits").positions(at("-1"))]),
    ]
}

#[test]
fn a_row_has_the_same_bits_alone_in_a_batch_and_in_chunks() {
    for case in cases() {
        let model = attached(&case);
        let rows = [case.ids[..4].to_vec(), case.ids.clone(), case.ids[2..].to_vec()];
        for plan in plans(model.saes().len()) {
            let together = run(&model, &rows, &plan);
            let chunked =
                model.run(&rows, &plan, &RunOptions { chunk: Some(2), ..RunOptions::default() }).expect("chunks");
            for (row, tokens) in rows.iter().enumerate() {
                let alone = run(&model, std::slice::from_ref(tokens), &plan);
                for other in [&together, &chunked] {
                    let own = other.captures.iter().filter(|capture| capture.row == row);
                    assert!(own.clone().count() == alone.captures.len());
                    for (a, b) in own.zip(&alone.captures) {
                        let same = bits(&a.array) == bits(&b.array) && a.sparse == b.sparse;
                        assert!(same, "{}: {} of row {row} under {plan:?}", case.name, a.site);
                    }
                }
            }
        }
    }
}

#[test]
fn decoding_has_the_bits_of_a_whole_run() {
    for case in cases() {
        let model = attached(&case);
        for plan in plans(model.saes().len()).into_iter().skip(1) {
            let options = GenerateOptions { max_new: 5, ..GenerateOptions::default() };
            let generated = model.generate(&one(&case), &plan, &options, &mut |_, _| Control::Go).expect("tokens");
            let mut text = [case.ids.clone(), generated.rows[0].tokens.clone()].concat();
            text.pop();
            // A plan with positions selects others in a longer text.
            if plan.taps.iter().any(|tap| tap.positions != Default::default()) {
                continue;
            }
            let whole = run(&model, &[text], &plan);
            for (a, b) in generated.captures.iter().zip(&whole.captures) {
                assert!(bits(&a.array) == bits(&b.array) && a.sparse == b.sparse, "{}: {}", case.name, a.site);
            }
        }
    }
}

#[test]
fn requests_with_and_without_features_share_passes() {
    let case = golden::case("llama");
    let model = attached(&case);
    let plans = plans(model.saes().len());
    let options = |seed: usize| GenerateOptions { max_new: 3 + seed % 4, ..GenerateOptions::default() };
    let requests: Vec<(Vec<u32>, &Plan)> = (0..12)
        .map(|seed| {
            let length = 4 + (number(seed).abs() * (case.ids.len() - 5) as f32) as usize;
            (case.ids[..length].to_vec(), &plans[seed % plans.len()])
        })
        .collect();
    let mut batch = Batch::new(&model);
    let add = |(seed, (tokens, plan)): (usize, &(Vec<u32>, &Plan))| {
        batch.add(std::slice::from_ref(tokens), plan, &options(seed)).expect("a request")
    };
    let ids: Vec<_> = requests.iter().enumerate().map(add).collect();
    while batch.running() > 0 {
        batch.pass(16, &mut |_, _, _| Control::Go).expect("a pass");
    }
    for (seed, ((tokens, plan), id)) in requests.iter().zip(ids).enumerate() {
        let shared = batch.take(id).expect("ended").expect("no error");
        let rows = std::slice::from_ref(tokens);
        let alone = model.generate(rows, plan, &options(seed), &mut |_, _| Control::Go).expect("tokens");
        assert_eq!(shared.rows[0].tokens, alone.rows[0].tokens, "request {seed}");
        for (a, b) in shared.captures.iter().zip(&alone.captures) {
            assert!(bits(&a.array) == bits(&b.array), "request {seed}: {}", a.site);
        }
    }
}

#[test]
fn branches_have_the_bits_of_a_whole_run() {
    for case in cases() {
        let model = attached(&case);
        let count = model.saes().len();
        let edit = |layer: usize, position: &str| {
            Tap::new(acts(layer), Action::Set(Operand::Number(0.5))).units([3]).positions(at(position))
        };
        let bases = [Plan::default(), plan([splice(0, Splice::Recon)])];
        for base_plan in bases {
            let base = model.base(&case.ids, &base_plan).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            let recon = format!("{}/sae.recon", mlp_out(count - 1));
            let mut plans: Vec<Plan> = (0..count)
                .map(|layer| plan([edit(layer, "2"), capture(&acts(layer)), capture(&recon), capture("logits")]))
                .collect();
            let zero = Tap::new("layers.1.z", Action::Zero).positions(at("3"));
            plans.push(plan([zero, capture(&recon), capture("logits")]));
            plans.push(plan([splice(count - 1, Splice::Recon).positions(at("2:")), capture("logits")]));
            for (plan, branch) in plans.iter().zip(base.branches(&plans).expect("branches")) {
                let whole = run(&model, &one(&case), &base_plan.clone().then(plan.clone()));
                assert_eq!(branch.captures.len(), whole.captures.len());
                for (a, b) in branch.captures.iter().zip(&whole.captures) {
                    assert!(bits(&a.array) == bits(&b.array), "{}: {} under {plan:?}", case.name, a.site);
                }
            }
        }
    }
}

/// The layers are spliced without their errors, so that the metric is a function of the features. A
/// ReLU has no jumps, so differences are good approximations.
#[test]
fn gradients_of_and_through_features_agree_with_finite_differences() {
    for case in cases() {
        let layers = layers_of(&case, &|_| SaeKind::Relu);
        let model = case.loaded.model.attach_cross_layer(&layers).expect("attached");
        let count = model.saes().len();
        let splices = || (0..count).map(|layer| splice(layer, Splice::Recon)).collect::<Vec<Tap>>();
        let sites: Vec<String> = (0..count).map(acts).chain(["layers.0.resid_pre".into()]).collect();
        for site in &sites {
            let taps = splices().into_iter().chain([gradient(site)]).collect::<Vec<_>>();
            let found = gradients(&model, &case, taps.clone(), false).remove(0);
            let again = gradients(&model, &case, taps, true).remove(0);
            assert!(golden::difference(&found, &again) < 1e-6, "{}: {site} recomputed", case.name);
            let position = case.ids.len() - 1;
            let width = found.len() / case.ids.len();
            let own = &found[position * width..][..width];
            let norm = own.iter().map(|g| g * g).sum::<f32>().sqrt();
            assert!(norm > 0.0, "{}: a gradient at {site}", case.name);
            let step = 2e-3;
            let moved = |by: f32| {
                let vector = own.iter().map(|g| g / norm * by).collect();
                let add = Action::Add { operand: Operand::Vector(vector), scale: 1.0 };
                let shift = Tap::new(site, add).positions(at(&position.to_string()));
                value(&model, &case, splices().into_iter().chain([shift]).collect())
            };
            let slope = (moved(step) - moved(-step)) / (2.0 * step);
            assert!((slope - norm).abs() < 0.03 * norm.max(0.05), "{} {site}: {slope} {norm}", case.name);
        }
    }
}

/// Without a splice, a gradient of features is that of the model whose MLPs are replaced by the
/// transcoder plus constant errors.
#[test]
fn gradients_without_a_splice_treat_the_errors_as_constants() {
    let case = golden::case("llama");
    let model = attached(&case);
    let count = model.saes().len();
    let error = |layer: usize| format!("{}/sae.error", mlp_out(layer));
    let errors = run(&model, &one(&case), &plan((0..count).map(|layer| capture(&error(layer))))).captures;
    let frozen = || {
        let set = |layer: usize| {
            let width = errors[layer].array.shape()[1];
            let rows = errors[layer].array.values().chunks_exact(width).map(<[f32]>::to_vec).collect();
            Tap::new(error(layer), Action::Set(Operand::Rows(rows)))
        };
        (0..count).map(set).collect::<Vec<Tap>>()
    };
    for layer in 0..count {
        let found = gradients(&model, &case, vec![gradient(&acts(layer))], false).remove(0);
        let position = case.ids.len() - 1;
        let own = &found[position * FEATURES..][..FEATURES];
        let norm = own.iter().map(|g| g * g).sum::<f32>().sqrt();
        assert!(norm > 0.0, "a gradient at layer {layer}");
        let moved = |by: f32| {
            let vector = own.iter().map(|g| g / norm * by).collect();
            let add = Action::Add { operand: Operand::Vector(vector), scale: 1.0 };
            let shift = Tap::new(acts(layer), add).positions(at(&position.to_string()));
            // Later layers only: earlier ones keep their MLP.
            let frozen = frozen().into_iter().skip(layer);
            value(&model, &case, frozen.chain([shift]).collect())
        };
        let step = 2e-3;
        let slope = (moved(step) - moved(-step)) / (2.0 * step);
        assert!((slope - norm).abs() < 0.03 * norm.max(0.05), "layer {layer}: {slope} {norm}");
    }
}

#[test]
fn detaching_a_layer_detaches_the_transcoder_and_keeps_others() {
    let case = golden::case("llama");
    let model = attached(&case);
    let site = case.site("layers.0.resid_post");
    let d = super::width(&case, site);
    let both = model.attach(Arc::new(super::sae(SaeKind::Relu, d, d)), site, site).expect("an SAE");
    let one_left = both.detach(case.site(&mlp_out(1))).expect("detached");
    assert_eq!(one_left.saes().len(), 1);
    assert!(one_left.find("layers.0.resid_post/sae.acts").is_ok() && one_left.find(&acts(0)).is_err());
    let set_left = both.detach(site).expect("detached");
    assert_eq!(set_left.saes().len(), model.saes().len());
    let plan = &plans(model.saes().len())[2];
    let (a, b) = (run(&set_left, &one(&case), plan), run(&model, &one(&case), plan));
    assert_eq!(bits(&a.captures[0].array), bits(&b.captures[0].array));
}

#[test]
fn incomplete_transcoders_are_refused() {
    let case = golden::case("llama");
    let all = layers(&case);
    let error = |layers: &[TranscoderLayer]| match case.loaded.model.attach_cross_layer(layers) {
        Ok(_) => panic!("attached"),
        Err(error) => error.to_string(),
    };
    let missing = error(&all[..all.len() - 1]);
    assert!(missing.contains("layer 0 of the cross-layer transcoder reconstructs"), "{missing}");
    let reversed: Vec<TranscoderLayer> = all
        .iter()
        .map(|(sae, ..)| sae.clone())
        .zip(all.iter().rev())
        .map(|(sae, (_, read, write))| (sae, *read, *write))
        .collect();
    assert!(error(&reversed).contains("computed after"), "{}", error(&reversed));
    let (sae, read, write) = &all[0];
    let single = case.loaded.model.attach(sae.clone(), *read, *write).err().expect("refused").to_string();
    assert!(single.contains("this SAE reconstructs 3 layers"), "{single}");
}

#[test]
fn plans_that_name_no_feature_execute_the_ops_of_the_plain_model() {
    for case in cases() {
        let mut model = attached(&case);
        for site in ["layers.0.resid_post", "layers.1.resid_pre", "layers.1.z"] {
            let site = case.site(site);
            let d = super::width(&case, site);
            if let Ok(more) = model.attach(Arc::new(super::sae(SaeKind::Relu, d, d)), site, site) {
                model = more;
            }
        }
        assert!(model.saes().len() >= 4);
        let executed = |model: &Model| {
            let (profiled, profile) = model.profiled();
            let mut with_metric = plan([gradient("layers.0.resid_pre")]);
            metric(&mut with_metric);
            run(&profiled, &one(&case), &plan([capture("logits"), capture("layers.1.resid_post")]));
            run(&profiled, &one(&case), &with_metric);
            let options = GenerateOptions { max_new: 3, ..GenerateOptions::default() };
            profiled.generate(&one(&case), &Plan::default(), &options, &mut |_, _| Control::Go).expect("tokens");
            let ops = model.program().ops();
            profile
                .times()
                .iter()
                .map(|time| (ops[time.op].kind.name(), time.tokens, time.computed))
                .collect::<Vec<_>>()
        };
        assert_eq!(executed(&model), executed(&case.loaded.model), "{}", case.name);
        let explained = |model: &Model| {
            let plan = plan([capture("logits")]);
            let explanation = plan.explain(model, &[case.ids.len()]).expect("an explanation");
            (explanation.ops, explanation.flops as u64, explanation.weight_bytes as u64, explanation.feature_bytes)
        };
        assert_eq!(explained(&model), explained(&case.loaded.model), "{}", case.name);
    }
}
