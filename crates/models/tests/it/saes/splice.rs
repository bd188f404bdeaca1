//! Splicing: the model continues with a reconstruction, with or without the error.

use super::attach::sites;
use super::{FEATURES, attached, kinds, matrix, number, run, sae, width};
use crate::test_plans::{at, bits, capture, plan, set};
use pellucid_engine::sae::SaeKind;
use pellucid_engine::{Action, Operand, Plan, Splice, Tap};
use std::sync::Arc;

fn splice(site: &str, how: Splice) -> Tap {
    Tap::new(site, Action::Splice(how))
}

/// One vector per position.
fn lines(values: &[f32], width: usize) -> Operand {
    Operand::Rows(values.chunks_exact(width).map(<[f32]>::to_vec).collect())
}

#[test]
fn a_spliced_model_is_the_plain_model_with_the_reconstruction_written_in() {
    for name in golden::one_per_type() {
        let case = golden::case(&name);
        let ids = std::slice::from_ref(&case.ids);
        for site in sites(&case) {
            let model = attached(&case, SaeKind::Relu, site);
            let taps = [splice(site, Splice::Recon), capture(&format!("{site}/sae.recon")), capture("logits")];
            let spliced = run(&model, ids, &plan(taps));
            let recon = &spliced.captures[0].array;
            let d = width(&case, case.site(site));
            let written = case.run(ids, &plan([set(site, lines(recon.values(), d)), capture("logits")]));
            let (a, b) = (&spliced.captures[1].array, &written.captures[0].array);
            assert!(bits(a) == bits(b), "{name}: {site}");
            let plain = case.run(ids, &plan([capture("logits")]));
            assert!(bits(a) != bits(&plain.captures[0].array), "{name}: {site} is spliced");
        }
    }
}

#[test]
fn with_the_error_term_and_no_edit_the_logits_keep_their_bits() {
    for name in golden::one_per_type() {
        let case = golden::case(&name);
        let ids = std::slice::from_ref(&case.ids);
        let plain = case.run(ids, &plan([capture("logits")]));
        for kind in kinds() {
            let model = attached(&case, kind, "layers.0.resid_post");
            let run =
                run(&model, ids, &plan([splice("layers.0.resid_post", Splice::ReconAndError), capture("logits")]));
            assert_eq!(bits(&run.captures[0].array), bits(&plain.captures[0].array), "{name}");
        }
    }
}

#[test]
fn an_edited_feature_adds_its_decoder_row() {
    for kind in kinds() {
        let case = golden::case("llama");
        let (site, ids) = ("layers.0.resid_post", std::slice::from_ref(&case.ids));
        let model = attached(&case, kind, site);
        let acts = run(&model, ids, &plan([capture("layers.0.resid_post/sae.acts")])).captures.remove(0).array;
        let position = case.ids.len() / 2;
        let line = &acts.values()[position * FEATURES..][..FEATURES];
        let feature = (0..FEATURES).max_by(|&a, &b| line[a].total_cmp(&line[b])).expect("features");
        let mut row = vec![0.0; width(&case, case.site(site))];
        model.saes()[0].sae.decoders[0].row(feature, &mut row);
        let edits: [(Action, f32); 3] = [
            (Action::Zero, -line[feature]),
            (Action::Scale(3.0), 2.0 * line[feature]),
            (Action::Set(Operand::Number(0.7)), 0.7 - line[feature]),
        ];
        for (action, change) in edits {
            let here = at(&position.to_string());
            let edit = Tap::new("layers.0.resid_post/sae.acts", action).units([feature]).positions(here.clone());
            let edited = run(&model, ids, &plan([edit, capture("layers.1.resid_pre"), capture("logits")]));
            let vector: Vec<f32> = row.iter().map(|w| w * change).collect();
            let add = Tap::new(site, Action::Add { operand: Operand::Vector(vector), scale: 1.0 }).positions(here);
            let added = case.run(ids, &plan([add, capture("layers.1.resid_pre"), capture("logits")]));
            let (stream, expected) = (&edited.captures[0].array, &added.captures[0].array);
            let largest = expected.values().iter().fold(0.0_f32, |max, x| max.max(x.abs()));
            let error = golden::difference(stream.values(), expected.values());
            assert!(error < 1e-5 * largest.max(1.0), "feature {feature}: {error}");
            // Positions before the edit keep their bits.
            let before = position * expected.shape()[1];
            assert!(stream.values()[..before] == expected.values()[..before]);
            assert!(
                bits(&edited.captures[1].array) != bits(&case.run(ids, &plan([capture("logits")])).captures[0].array)
            );
        }
    }
}

#[test]
fn a_masked_splice_replaces_the_selected_positions() {
    let case = golden::case("gpt2");
    let (site, ids) = ("layers.0.resid_post", std::slice::from_ref(&case.ids));
    let model = attached(&case, SaeKind::Relu, site);
    let taps = [splice(site, Splice::Recon).positions(at("1:3")), capture("layers.1.resid_pre")];
    let masked = run(&model, ids, &plan(taps)).captures.remove(0).array;
    let whole = run(&model, ids, &plan([capture(site), capture("layers.0.resid_post/sae.recon")]));
    let d = width(&case, case.site(site));
    for (position, line) in masked.values().chunks_exact(d).enumerate() {
        let source = &whole.captures[usize::from((1..3).contains(&position))].array;
        assert_eq!(line, &source.values()[position * d..][..d], "position {position}");
    }
}

#[test]
fn a_transcoder_replaces_the_output_of_the_mlp() {
    let case = golden::case("llama");
    let (read, write) = (case.site("layers.1.mlp_in"), case.site("layers.1.mlp_out"));
    let d = width(&case, read);
    for skips in [false, true] {
        let mut transcoder = sae(SaeKind::Relu, d, d);
        (transcoder.subtract_decoder_bias, transcoder.undo_normalization) = (false, false);
        transcoder.skip = skips.then(|| matrix(9, d, d, 0.1));
        let model = case.loaded.model.attach(Arc::new(transcoder), read, write).expect("a transcoder");
        let taps = [splice("layers.1.mlp_out", Splice::Recon), capture("layers.1.mlp_out/sae.out")];
        let ids = std::slice::from_ref(&case.ids);
        let run =
            run(&model, ids, &plan(taps.into_iter().chain([capture("layers.1.mlp_in"), capture("layers.1.mlp_out")])));
        let [out, input, output] = &run.captures[..] else { panic!("three captures") };
        let sae = &model.saes()[0].sae;
        let mut expected = vec![0.0; out.array.values().len()];
        sae.reconstruct(&pellucid_kernels::Pool::global(), input.array.values(), &mut expected);
        assert_eq!(out.array.values(), expected, "skip path: {skips}");
        assert!(output.array.values() != expected, "the plain output stays visible");
        let written = case.run(ids, &plan([set("layers.1.mlp_out", lines(&expected, d)), capture("logits")]));
        let spliced = super::run(&model, ids, &plan([splice("layers.1.mlp_out", Splice::Recon), capture("logits")]));
        assert_eq!(bits(&written.captures[0].array), bits(&spliced.captures[0].array));
    }
}

#[test]
fn two_autoencoders_are_spliced_in_forward_order() {
    let case = golden::case("gpt2");
    let ids = std::slice::from_ref(&case.ids);
    let mut model = attached(&case, SaeKind::Relu, "layers.0.z");
    let site = case.site("layers.1.z");
    let d = width(&case, site);
    model = model.attach(Arc::new(sae(SaeKind::TopK { k: 4, by_decoder_norm: None }, d, d)), site, site).expect("two");
    let taps = [splice("layers.*.z", Splice::Recon), capture("layers.*.z/sae.recon"), capture("logits")];
    let run = run(&model, ids, &plan(taps));
    let [first, second, logits] = &run.captures[..] else { panic!("three captures") };
    let written =
        [set("layers.0.z", lines(first.array.values(), d)), set("layers.1.z", lines(second.array.values(), d))];
    let written = case.run(ids, &plan(written.into_iter().chain([capture("logits")])));
    assert_eq!(bits(&logits.array), bits(&written.captures[0].array));
}

#[test]
fn branches_that_edit_features_have_the_bits_of_whole_runs() {
    for name in golden::one_per_type() {
        let case = golden::case(&name);
        for site in sites(&case) {
            let model = attached(&case, SaeKind::Relu, site);
            let acts = format!("{site}/sae.acts");
            let length = case.ids.len();
            let edit = |seed: usize| {
                let unit = (number(seed).abs() * (FEATURES - 1) as f32) as usize;
                let position = seed % length;
                Tap::new(&acts, Action::Set(Operand::Number(0.5))).units([unit]).positions(at(&position.to_string()))
            };
            let plans: Vec<Plan> = (0..6)
                .map(|seed| plan([edit(seed), capture(&acts), capture(site), capture("logits")]))
                .chain([plan([splice(site, Splice::Recon).positions(at("2:")), capture("logits")])])
                .collect();
            let base = model.base(&case.ids, &Plan::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
            let branches = base.branches(&plans).unwrap_or_else(|e| panic!("{name} {site}: {e}"));
            for (plan, branch) in plans.iter().zip(&branches) {
                let whole = run(&model, std::slice::from_ref(&case.ids), plan);
                assert_eq!(branch.captures.len(), whole.captures.len());
                for (a, b) in branch.captures.iter().zip(&whole.captures) {
                    assert!(a.site == b.site && bits(&a.array) == bits(&b.array), "{name} {site}: {} {plan:?}", a.site);
                }
            }
        }
    }
}

#[test]
fn splices_are_written_and_read_as_json() {
    for (json, how) in
        [("true", Splice::Recon), ("\"recon\"", Splice::Recon), ("\"recon+error\"", Splice::ReconAndError)]
    {
        let text = format!("{{\"taps\": [{{\"site\": \"layers.0.resid_post\", \"splice\": {json}}}]}}");
        let plan = Plan::from_json(&text).expect("a plan");
        assert_eq!(plan.taps[0].action, Action::Splice(how));
        assert_eq!(Plan::from_json(&plan.to_json().expect("JSON")).expect("a plan"), plan);
    }
}
