//! Site names in every naming scheme, errors for missing sites, and plans as JSON.

use crate::test_plans::{add, at, bits, call, capture, direction, plan, set};
use pellucid_engine::plan::{FromSite, Injection};
use pellucid_engine::{Action, Operand, Phase, Plan, Point, Positions, Reduce, Tap, When};

#[test]
fn every_naming_scheme_names_the_same_sites() {
    let llama = golden::case("llama");
    for (name, site) in [
        ("blocks.1.hook_resid_pre", "layers.1.resid_pre"),
        ("blocks.1.hook_resid_mid", "layers.1.resid_mid"),
        ("blocks.1.hook_resid_post", "layers.1.resid_post"),
        ("blocks.1.attn.hook_q", "layers.1.q"),
        ("blocks.1.attn.hook_k", "layers.1.k"),
        ("blocks.1.attn.hook_v", "layers.1.value"),
        ("blocks.1.attn.hook_rot_q", "layers.1.rot_q"),
        ("blocks.1.attn.hook_attn_scores", "layers.1.attn_scores"),
        ("blocks.1.attn.hook_pattern", "layers.1.attn_probs"),
        ("blocks.1.attn.hook_z", "layers.1.z"),
        ("blocks.1.attn.hook_result", "layers.1.head_out"),
        ("blocks.1.hook_attn_out", "layers.1.attn_out_post"),
        ("blocks.1.hook_mlp_out", "layers.1.mlp_out_post"),
        ("blocks.1.mlp.hook_pre", "layers.1.mlp_pre"),
        ("blocks.1.mlp.hook_pre_linear", "layers.1.mlp_pre_linear"),
        ("blocks.1.mlp.hook_post", "layers.1.mlp_act"),
        ("blocks.1.ln1.hook_normalized", "layers.1.attn_normed"),
        ("blocks.1.ln2.hook_scale", "layers.1.mlp_scale"),
        ("hook_embed", "embed"),
        ("ln_final.hook_normalized", "final_normed"),
        ("resid_post1", "layers.1.resid_post"),
        ("q2", "layers.2.q"),
        ("pattern0", "layers.0.attn_probs"),
        ("pre1", "layers.1.mlp_pre"),
        ("post1", "layers.1.mlp_act"),
        // The contribution in TransformerLens' short names, the raw output in interp-engine's.
        ("mlp_out1", "layers.1.mlp_out_post"),
        ("mlp_out.1", "layers.1.mlp_out"),
        ("attn_out.1", "layers.1.attn_out"),
        ("resid_post.2", "layers.2.resid_post"),
        ("model.layers.2.output", "layers.2.resid_post"),
        ("model.layers.2.input", "layers.2.resid_pre"),
        ("model.layers.0.self_attn.output", "layers.0.attn_out"),
        ("model.layers.0.mlp.input", "layers.0.mlp_in"),
        ("model.embed_tokens.output", "embed"),
        ("model.norm.output", "final_norm"),
        ("lm_head.output", "lm_head"),
    ] {
        assert_eq!(llama.site(name).to_string(), site, "{name}");
    }
    for (case, name, site) in [
        ("gpt2", "transformer.h.1.mlp.output", "layers.1.mlp_out"),
        ("gpt2", "transformer.h.1.attn.output", "layers.1.attn_out"),
        ("gpt2", "hook_pos_embed", "pos_embed"),
        ("gpt_neox", "gpt_neox.layers.0.attention.output", "layers.0.attn_out"),
        ("opt", "model.decoder.layers.2.output", "layers.2.resid_post"),
        ("mixtral", "model.layers.0.mlp.output", "layers.0.mlp_out"),
        ("mixtral", "blocks.0.mlp.hook_expert_indices", "layers.0.expert_indices"),
        ("qwen3", "blocks.0.attn.q_norm.hook_out", "layers.0.q_norm_out"),
    ] {
        assert_eq!(golden::case(case).site(name).to_string(), site, "{case}: {name}");
    }
}

#[test]
fn an_alias_captures_the_same_tensor() {
    for case in golden::all() {
        let program = case.loaded.model.program();
        for site in program.sites() {
            for alias in pellucid_engine::site::aliases(program, site) {
                assert_eq!(case.site(&alias), site, "{}: {alias}", case.name);
            }
        }
        let found = case.run(
            std::slice::from_ref(&case.ids),
            &Plan::capture(["resid_post.1", "layers.1.resid_post", "blocks.1.hook_resid_post"]),
        );
        assert!(found.captures.iter().all(|capture| bits(&capture.array) == bits(&found.captures[0].array)));
    }
}

#[test]
fn modules_that_return_the_residual_stream_have_no_alias() {
    // BLOOM's attention and MLP modules add the residual themselves.
    let bloom = golden::case("bloom");
    for name in ["transformer.h.0.self_attention.output", "transformer.h.0.mlp.output"] {
        assert!(bloom.loaded.model.find(name).is_err(), "{name}");
    }
    // TransformerLens' hooks before the norm have no corresponding site.
    assert!(
        bloom.loaded.model.find("blocks.0.hook_mlp_in").is_err()
            && bloom.loaded.model.find("blocks.0.hook_attn_in").is_err()
    );
}

#[test]
fn an_unknown_name_gets_suggestions() {
    let case = golden::case("llama");
    for (name, near) in [
        ("layers.1.resid_pots", "`layers.1.resid_post`"),
        ("blocks.1.hook_resid_pst", "`blocks.1.hook_resid_post`"),
        ("logit", "`logits`"),
    ] {
        let error = case.loaded.model.find(name).expect_err("a typo");
        assert_eq!(error.to_string(), format!("no site is called `{name}`"));
        assert!(error.remedy().unwrap().to_string().contains(near), "{name}: {error:?}");
    }
    for name in [
        "",
        "layers",
        "layers..z",
        "layers.x.z",
        "layers.-1.z",
        "layers.2-1.z",
        "layers.{}.z",
        "layers.{0,}.z",
        "layers.99999999999999999999.z",
        "é",
        "{}",
    ] {
        assert!(case.loaded.model.find(name).is_err(), "{name:?}");
    }
    for name in ["layers.3.z", "layers.{0,3}.z", "layers.1-7.z", "layers.0-18446744073709551615.z", "z.3"] {
        let error = case.loaded.model.find(name).expect_err("past the last layer");
        assert!(
            error.to_string().contains("there is no layer")
                && error.remedy() == Some(&"this model's layers are 0 to 2".into()),
            "{name}: {error}"
        );
    }
}

#[test]
fn every_point_that_may_be_absent_is_refused_with_its_reason() {
    let mut refused = Vec::new();
    for name in ["llama", "gpt_neox", "opt-postnorm", "mixtral", "gpt2"] {
        let case = golden::case(name);
        for point in Point::ALL {
            let site = if point.info().scope == pellucid_engine::point::Scope::Model {
                point.to_string()
            } else {
                format!("layers.1.{point}")
            };
            if let Err(error) = case.loaded.model.find(&site) {
                let family = &case.loaded.model.program().architecture().family;
                assert_eq!(
                    error.to_string(),
                    format!("`{site}` does not exist on this {family} model: {}", point.info().absent_because)
                );
                assert!(error.remedy().is_some());
                let pattern = site.replace(".1.", ".*.");
                if pattern != site {
                    let error = case.loaded.model.find(&pattern).expect_err("no layer has it");
                    assert_eq!(
                        error.to_string(),
                        format!("`{pattern}` matches no site: {}", point.info().absent_because)
                    );
                }
                refused.push(point);
            }
        }
    }
    use Point::*;
    let mut expected = vec![
        PosEmbed,
        AttnScale,
        AttnNormed,
        QNormOut,
        KNormOut,
        AttnGate,
        MixerIn,
        MixerGate,
        ConvOut,
        MixerState,
        MixerScan,
        MixerOut,
        MixerOutPost,
        ResidMid,
        MlpScale,
        MlpNormed,
        MlpPre,
        MlpPreLinear,
        MlpAct,
        RouterLogits,
        ExpertWeights,
        ExpertIndices,
        ExpertOut,
        FinalScale,
        FinalNormed,
        FinalNorm,
    ];
    expected.sort();
    refused.sort();
    refused.dedup();
    assert_eq!(refused, expected);
}

/// One tap of each action, with every kind of operand and selector among them.
fn one_of_each() -> Vec<Tap> {
    let (site, v) = ("layers.1.resid_post", Operand::Vector(direction(32)));
    let cap = |min, max| Action::Cap { vector: v.clone(), min, max };
    let source = |positions: Option<&str>| {
        Operand::From(FromSite {
            site: Some("layers.0.mlp_out".into()),
            rows: Some(vec![0]),
            positions: positions.map(at),
        })
    };
    let mut taps = vec![
        capture(site).positions(at("-4:")).rows([0, 1]),
        Tap::new(site, Action::Capture(Some(Reduce::Mean))).positions(at("last")),
        Tap::new(site, Action::Capture(Some(Reduce::Norm))).positions(at("::2")),
        Tap::new(site, Action::Capture(Some(Reduce::TopK(3)))).positions(at("prompt")),
        Tap::new(site, Action::Capture(Some(Reduce::Dot(v.clone())))).phase(Phase::Prefill),
        Tap::new(site, Action::Capture(Some(Reduce::Project(Operand::Rows(vec![direction(32); 2]))))),
        set(site, Operand::Number(0.1)).units([0, 5]).positions(at("0,-1")),
        set(site, Operand::Vector(direction(32))).positions(at("3")).steps(at("all")),
        set(site, Operand::Rows(vec![direction(32); 2])).positions(at("1:3")),
        set("layers.2.mlp_out", source(None)).rows([1]).positions(at("2")),
        set("layers.2.mlp_out", source(Some("0"))).rows([1]).positions(at("4:6")),
        set("layers.1.attn_scores", Operand::Number(f32::NEG_INFINITY)).heads([1]).keys(at("0,1")).positions(at("5:")),
        Tap::new(site, Action::Add { operand: v.clone(), scale: 0.3 }).phase(Phase::Decode),
        Tap::new(site, Action::Add { operand: Operand::Number(0.7), scale: 1.0 }),
        Tap::new("layers.2.mlp_out", Action::Add { operand: source(None), scale: -1.0 })
            .rows([1])
            .positions(at("last")),
        Tap::new(site, Action::Scale(1.1)),
        Tap::new("layers.1.z", Action::Zero).heads([3]),
        Tap::new(site, Action::MeanAblate(v.clone())).positions(at("6")),
        Tap::new(site, Action::ProjectOut { vector: v.clone(), scale: 0.25 }),
        Tap::new(site, cap(Some(-1.0), Some(2.5))),
        Tap::new(site, cap(None, Some(0.5))),
        Tap::add_scaled(site, v.clone(), 0.2).phase(Phase::Decode),
        Tap::norm_match(site, v.clone(), -0.5),
        Tap::orthogonal(site, v.clone(), 2.0).positions(at("4")),
        Tap::swap(site, v.clone(), Operand::Vector(vec![1.0; 32])),
        Tap::inject(site, v.clone(), Injection::default()).positions(at("2")),
        Tap::inject("layers.2.mlp_out", source(Some("0")), Injection { scale: 0.5, add: true, norm_match: true })
            .rows([1])
            .positions(at("3")),
        Tap::add_scaled(site, v.clone(), 0.1).when(When::below("layers.0.resid_post", v.clone(), 0.5)),
        Tap::mark("m", When::above("layers.0.resid_post", v.clone(), 0.5)).rows([1]),
        Tap::new("layers.0", Action::Skip(None)).positions(at("1")),
    ];
    taps.push(capture("logits"));
    taps
}

/// Taps on the experts of a model.
fn on_experts() -> Vec<Tap> {
    let mut taps = vec![
        Tap::zero("layers.1.expert_out").experts([0, 2]),
        Tap::scale("layers.1.expert_weights", 0.5).experts([1]).when(When::above(
            "layers.0.mlp_out",
            vec![1.0; 32],
            0.0,
        )),
        Tap::new("layers.0.router_logits", Action::Set(Operand::Number(f32::NEG_INFINITY))).experts([3]),
        Tap::replace("layers.2.expert_indices", [(0, 1), (1, 0)]),
    ];
    taps.push(capture("logits"));
    taps
}

#[test]
fn every_action_survives_a_json_round_trip() {
    let case = golden::case("llama");
    let inputs = [case.ids.clone(), case.ids[2..].to_vec()];
    for tap in one_of_each() {
        let json = plan([tap.clone()]).to_json().expect("plain data");
        assert_eq!(Plan::from_json(&json), Ok(plan([tap])), "{json}");
    }
    let built = plan(one_of_each());
    let read = Plan::from_json(&built.to_json().expect("plain data")).expect("a valid plan");
    let (ours, theirs) = (case.run(&inputs, &built), case.run(&inputs, &read));
    assert_eq!(ours.captures.len(), 14);
    for (ours, theirs) in ours.captures.iter().zip(&theirs.captures) {
        assert!(
            ours.site == theirs.site && ours.positions == theirs.positions && bits(&ours.array) == bits(&theirs.array)
        );
    }
    let experts = golden::case("mixtral");
    let read = Plan::from_json(&plan(on_experts()).to_json().expect("plain data")).expect("a valid plan");
    assert_eq!(read, plan(on_experts()));
    assert_eq!(experts.run(&inputs, &read).captures.len(), 2);
    let file = plan([
        set("embed", Operand::File("v.safetensors#v".into())),
        capture("embed").positions(Positions::Token(" Paris".into())),
    ]);
    assert_eq!(Plan::from_json(&file.to_json().expect("plain data")), Ok(file));
    assert!(plan([Tap::new("embed", call(|_| {}))]).to_json().expect_err("a closure").contains("closure"));
}

#[test]
fn an_example_plan_is_parsed() {
    let json = r#"{"taps": [
        {"site": "layers.*.resid_post", "capture": true, "positions": "last"},
        {"site": "layers.2.resid_post", "rows": [0], "positions": "-4:", "phase": "all", "add": {"vector": [1.0, 2.0], "scale": 4.0}},
        {"site": "layers.1.z", "heads": [3, 1], "zero": true},
        {"site": "layers.1.mlp_out", "rows": [1], "set": {"from": {"site": "layers.1.mlp_out", "rows": [0]}}}
    ]}"#;
    let built = plan([
        capture("layers.*.resid_post").positions(Positions::Last),
        Tap::new("layers.2.resid_post", Action::Add { operand: Operand::Vector(vec![1.0, 2.0]), scale: 4.0 })
            .rows([0])
            .positions(at("-4:")),
        Tap::new("layers.1.z", Action::Zero).heads([3, 1]),
        set("layers.1.mlp_out", crate::test_plans::from("layers.1.mlp_out", 0)).rows([1]),
    ]);
    assert_eq!(Plan::from_json(json), Ok(built));
    assert_eq!(Plan::from_json(r#"{"taps": [{"site": "embed", "add": 2}]}"#), Ok(plan([add("embed", 2.0)])));
}

#[test]
fn invalid_json_plans_are_refused() {
    for (tap, expected) in [
        (r#"{"site": "embed"}"#, "exactly one action"),
        (r#"{"site": "embed", "zero": true, "scale": 2}"#, "exactly one action"),
        (r#"{"site": "embed", "zreo": true}"#, "zreo"),
        (r#"{"zero": true}"#, "site"),
        (r#"{"site": "embed", "zero": false}"#, "`zero` must be true"),
        (r#"{"site": "embed", "capture": {"reduce": "median"}}"#, "median"),
        (r#"{"site": "embed", "capture": {"reduce": {"topk": -1}}}"#, "-1"),
        (r#"{"site": "embed", "set": {"vector": [1], "scale": 3}}"#, "scale"),
        (r#"{"site": "embed", "set": {"vectr": [1]}}"#, "vectr"),
        (r#"{"site": "embed", "set": null}"#, "an operand is"),
        (r#"{"site": "embed", "set": [[1, 2], 3]}"#, "rows of numbers"),
        (r#"{"site": "embed", "add": {"vector": [1], "scale": "much"}}"#, "`scale` must be a number"),
        (r#"{"site": "embed", "project_out": {"vector": [1], "min": 1}}"#, "min"),
        (r#"{"site": "embed", "cap": {"vector": [1]}}"#, "`min`, `max` or both"),
        (r#"{"site": "embed", "cap": {"vector": [1], "max": 1, "scale": 2}}"#, "scale"),
        (r#"{"site": "embed", "add_scaled": {"vector": [1]}}"#, "scale"),
        (r#"{"site": "embed", "norm_match": {"vector": [1], "norm": 2}}"#, "norm"),
        (r#"{"site": "embed", "orthogonal": [1]}"#, "orthogonal"),
        (r#"{"site": "embed", "swap": [[1]]}"#, "two directions"),
        (r#"{"site": "embed", "inject": {"vector": [1], "add": 2}}"#, "inject"),
        (r#"{"site": "embed", "call": "f"}"#, "closure"),
        (r#"{"site": "embed", "zero": true, "positions": 1.5}"#, "integer"),
        (r#"{"site": "embed", "zero": true, "positions": {"tokn": "a"}}"#, "token"),
        (r#"{"site": "embed", "zero": true, "rows": [-1]}"#, "-1"),
        (r#"{"site": "embed", "zero": true, "phase": "later"}"#, "later"),
    ] {
        let error = Plan::from_json(&format!(r#"{{"taps": [{tap}]}}"#)).expect_err(tap);
        assert!(error.contains(expected), "{tap}: {error}");
    }
    assert!(
        Plan::from_json(r#"{"taps": [], "tap": []}"#).is_err()
            && Plan::from_json("[]").is_err()
            && Plan::from_json("{").is_err()
    );
}
