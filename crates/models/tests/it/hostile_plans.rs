//! Plans with mistakes or with sizes that no machine has: an error that names the mistake, quickly,
//! and never a panic, a wrong number or an allocation. Tests are named for the findings of the
//! security test.

use crate::test_plans::bits;
use golden::{Case, difference};
use pellucid_engine::{Plan, Run, RunOptions};
use pellucid_models::{LoadOptions, LoadedModel};
use std::time::{Duration, Instant};

fn plan(json: &str) -> Plan {
    Plan::from_json(json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

fn two_rows(case: &Case) -> Vec<Vec<u32>> {
    vec![case.ids.clone(), case.ids[..5].to_vec()]
}

fn run(case: &Case, json: &str) -> Run {
    case.run(std::slice::from_ref(&case.ids), &plan(json))
}

fn refused_for(case: &Case, rows: &[Vec<u32>], json: &str) -> String {
    let error = case.loaded.model.run(rows, &plan(json), &RunOptions::default()).expect_err(json);
    format!("{error}; {}", error.remedy().map(ToString::to_string).unwrap_or_default())
}

fn refused(case: &Case, json: &str) -> String {
    refused_for(case, std::slice::from_ref(&case.ids), json)
}

fn tap(tap: &str) -> String {
    format!(r#"{{"taps": [{tap}]}}"#)
}

#[test]
fn f5_a_wrong_value_over_two_rows_is_an_error() {
    let case = golden::case("gpt2");
    let json = r#"{"taps": [{"site": "embed", "as": "h"}],
        "values": [{"name": "a", "matmul": ["h", "h"]}, {"name": "b", "add": ["a", "h"]}], "save": ["b"]}"#;
    for rows in [two_rows(&case), vec![case.ids.clone()]] {
        let error = refused_for(&case, &rows, json);
        assert!(error.contains("value `a`") && error.contains("matmul"), "{error}");
    }
}

#[test]
fn f6_through_reaches_sites_inside_ops_and_their_gradients() {
    let sites = ["attn_scale", "attn_normed", "mlp_scale", "mlp_normed", "head_out", "mixer_state"];
    for name in ["gpt2", "llama", "gemma2", "mamba", "qwen3_next"] {
        let case = golden::case(name);
        let last = case.layers() - 1;
        let inner = sites.iter().map(|point| (format!("layers.{last}.resid_pre"), format!("layers.{last}.{point}")));
        let ends = ["final_scale", "final_normed"].map(|point| (format!("layers.{last}.resid_post"), point.to_owned()));
        let mut tried = 0;
        for (from, to) in inner.chain(ends) {
            if case.loaded.model.find(&from).is_err() || case.loaded.model.find(&to).is_err() {
                continue;
            }
            let json = format!(
                r#"{{"taps": [{{"site": "{from}", "as": "h"}}, {{"site": "{to}", "capture": true}}],
                "values": [{{"name": "x", "through": {{"of": "h", "from": "{from}", "to": "{to}"}}}}], "save": ["x"]}}"#
            );
            let outcome = case.loaded.model.run(std::slice::from_ref(&case.ids), &plan(&json), &RunOptions::default());
            // mlp sites also need the attention's output of other sublayers: refused, by name.
            let run = match outcome {
                Ok(run) => run,
                Err(error) => {
                    assert!(error.to_string().contains("cannot be computed from the first alone"), "{name}: {error}");
                    continue;
                }
            };
            assert_eq!(bits(&run.saved[0].array), bits(&run.captures[0].array), "{name}: {from} to {to}");
            tried += 1;
        }
        assert!(tried >= 3, "{name}: only {tried} sites");
    }
}

#[test]
fn f6_gradients_flow_through_a_norms_inside() {
    let case = golden::case("llama");
    let last = case.layers() - 1;
    let from = format!("layers.{last}.resid_post");
    let metric = |to: &str| {
        format!(
            r#"{{"taps": [{{"site": "{from}", "grad": {{"as": "g"}}}}, {{"site": "{from}", "as": "h"}}],
            "values": [{{"name": "x", "through": {{"of": "h", "from": "{from}", "to": "{to}"}}}},
                       {{"name": "m", "sum": {{"exp": "x"}}}}], "save": ["g"], "metric": "m"}}"#
        )
    };
    // The same metric from the site itself.
    let direct = |to: &str| {
        format!(
            r#"{{"taps": [{{"site": "{from}", "grad": {{"as": "g"}}}}, {{"site": "{to}", "as": "x"}}],
            "values": [{{"name": "m", "sum": {{"exp": "x"}}}}], "save": ["g"], "metric": "m"}}"#
        )
    };
    for to in ["final_normed", "final_scale"] {
        let (ours, truth) = (run(&case, &metric(to)), run(&case, &direct(to)));
        let (ours, truth) = (ours.saved[0].array.values(), truth.saved[0].array.values());
        assert!(truth.iter().any(|&x| x != 0.0) && difference(ours, truth) < 1e-5, "{to}");
    }
}

#[test]
fn f10_top_k_of_a_selection_reports_the_models_units() {
    let case = golden::case("gpt2");
    let topk = |selection: &str| {
        tap(&format!(r#"{{"site": "layers.1.z", {selection} "capture": {{"reduce": {{"topk": 2}}}}}}"#))
    };
    let all = run(&case, &tap(r#"{"site": "layers.1.z", "capture": true}"#));
    let width: usize = all.captures[0].array.shape()[1..].iter().product();
    let heads = all.captures[0].array.shape()[1];
    for (selection, columns) in [
        (r#""units": [7, 3, 5],"#.to_owned(), vec![7, 3, 5]),
        (format!(r#""heads": [{}],"#, heads - 1), (width - width / heads..width).collect::<Vec<_>>()),
        (String::new(), (0..width).collect()),
    ] {
        let top = run(&case, &topk(&selection)).captures.remove(0);
        let units = top.units.expect("units");
        for position in 0..case.ids.len() {
            let line = &all.captures[0].array.values()[position * width..][..width];
            let mut order = columns.clone();
            order.sort_by(|&a: &usize, &b: &usize| line[b].total_cmp(&line[a]));
            let expected: Vec<f32> = order[..2].iter().map(|&unit| unit as f32).collect();
            assert_eq!(units.row(position), expected, "{selection}");
            assert_eq!(top.array.row(position), [line[order[0]], line[order[1]]], "{selection}");
        }
    }
}

#[test]
fn f14_sizes_of_values_are_bounded_before_anything_runs() {
    let case = golden::case("gpt2");
    let doubled = |times: usize| {
        let values = (0..times).map(|n| {
            let of = if n == 0 { "h".to_owned() } else { format!("v{}", n - 1) };
            format!(r#"{{"name": "v{n}", "concat": {{"of": ["{of}", "{of}"], "axis": 0}}}}"#)
        });
        let values = values.collect::<Vec<_>>().join(", ");
        format!(r#"{{"taps": [{{"site": "embed", "as": "h"}}], "values": [{values}], "save": ["v{}"]}}"#, times - 1)
    };
    for times in [45, 60, 80, 200] {
        let error = refused(&case, &doubled(times));
        assert!(error.contains("value `v") && (error.contains("memory") || error.contains("may be used")), "{error}");
        let explained = plan(&doubled(times)).explain(&case.loaded.model, &[case.ids.len()]);
        assert!(explained.is_err(), "explain agrees with run");
    }
    // Lists of an index combine: 3 lists of 4,000 are 64 G elements of an array of 8.
    let list = vec!["0"; 4000].join(",");
    let combined = format!(
        r#"{{"taps": [], "values": [{{"name": "c", "constant": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]}},
        {{"name": "x", "index": {{"of": "c", "picks": [[{list}], [{list}], [{list}]]}}}}], "save": ["x"]}}"#
    );
    assert!(refused(&case, &combined).contains("value `x`"));
    let reshaped = r#"{"taps": [], "values": [{"name": "c", "constant": [1]},
        {"name": "x", "reshape": {"of": "c", "shape": [4611686018427387904, 4, 1]}}], "save": ["x"]}"#;
    assert!(refused(&case, reshaped).contains("reshape"));
    // Small values are not affected, and explain counts them.
    let run = run(&case, &doubled(3));
    assert_eq!(run.saved[0].array.shape()[0], 8 * case.ids.len());
    let explained = plan(&doubled(3)).explain(&case.loaded.model, &[case.ids.len()]).expect("an explanation");
    assert_eq!(explained.capture_bytes, 4 * run.saved[0].array.len());
    assert!(explained.value_bytes >= 2 * explained.capture_bytes / 4);
}

#[test]
fn f14_a_huge_step_ends_the_slice() {
    let case = golden::case("gpt2");
    let sliced = r#"{"taps": [], "values": [{"name": "c", "constant": [1, 2, 3]},
        {"name": "x", "index": {"of": "c", "picks": ["1::9223372036854775807"]}},
        {"name": "y", "index": {"of": "c", "picks": ["1::-9223372036854775808"]}}], "save": ["x", "y"]}"#;
    let run = run(&case, sliced);
    assert_eq!(run.saved.iter().map(|saved| saved.array.values()).collect::<Vec<_>>(), [[2.0], [2.0]]);
}

#[test]
fn f16_a_selection_lists_each_index_once() {
    let case = golden::case("llama");
    for (selection, problem) in [
        (r#""site": "embed", "positions": [0, 0]"#, "position 0 is selected twice"),
        (r#""site": "embed", "positions": [-1, 11]"#, "position 11 is selected twice"),
        (r#""site": "embed", "units": [3, 1, 3]"#, "unit 3 is selected twice"),
        (r#""site": "layers.0.z", "heads": [1, 1]"#, "head 1 is selected twice"),
        (r#""site": "embed", "rows": [0, 0]"#, "row 0 is selected twice"),
        (r#""site": "layers.{0,0}.z""#, "layer 0 is selected twice"),
        (r#""site": "layers.0.attn_scores", "keys": [0, 0]"#, "key 0 is selected twice"),
    ] {
        let ids: Vec<u32> = case.ids.iter().copied().cycle().take(12).collect();
        for action in [r#""zero": true"#, r#""capture": true"#] {
            let error = refused_for(&case, std::slice::from_ref(&ids), &tap(&format!("{{{selection}, {action}}}")));
            assert!(error.contains(problem), "{selection}: {error}");
        }
    }
    // A source may serve several rows.
    let rows = vec![case.ids.clone(); 3];
    let patch = r#"{"site": "layers.0.resid_post", "rows": [1, 2], "set": {"from": {"rows": [0, 0]}}}"#;
    case.run(&rows, &plan(&tap(patch)));
    let experts = golden::case("mixtral");
    let twice = r#"{"site": "layers.0.expert_weights", "experts": [1, 1], "zero": true}"#;
    assert!(refused(&experts, &tap(twice)).contains("expert 1 is selected twice"));
}

#[test]
fn f16_a_gradient_that_the_metric_does_not_depend_on_is_refused() {
    let case = golden::case("llama");
    let metric =
        |taps: &str| format!(r#"{{"taps": [{taps}], "values": [{{"name": "m", "sum": "h"}}], "metric": "m"}}"#);
    let read = r#"{"site": "layers.0.resid_post", "as": "h"}"#;
    for (gradient, remedy) in [
        (r#"{"site": "layers.1.resid_post", "grad": true}"#, "a later site"),
        (r#"{"site": "layers.0.resid_post", "grad": true}"#, "before the tap that the metric reads"),
    ] {
        let error = refused(&case, &metric(&format!("{read}, {gradient}")));
        assert!(error.contains("does not depend on this site") && error.contains(remedy), "{error}");
    }
    // Before the read, and a pattern of which some layers matter, run.
    let before = r#"{"site": "layers.0.resid_post", "grad": true}"#;
    let ran = run(&case, &metric(&format!("{before}, {read}")));
    assert!(ran.captures[0].array.values().iter().all(|&x| x == 1.0));
    run(&case, &metric(&format!(r#"{read}, {{"site": "layers.*.z", "grad": true}}"#)));
}

#[test]
fn f16_long_and_many_wrong_names_are_answered_at_once() {
    let case = golden::case("gpt2");
    let started = Instant::now();
    let long = "layers.0.".to_owned() + &"z".repeat(1_000_000);
    let error = refused(&case, &tap(&format!(r#"{{"site": "{long}", "capture": true}}"#)));
    assert!(error.len() < 2000 && error.contains("no site is called"), "{} bytes", error.len());
    let many: Vec<String> =
        (0..20_000).map(|n| format!(r#"{{"site": "layers.0.wrong{n}", "capture": true}}"#)).collect();
    let error = refused(&case, &tap(&many.join(",")));
    assert!(
        error.contains("the first 20 problems") && error.contains("wrong19") && !error.contains("wrong20`"),
        "{error}"
    );
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn f7_a_negative_clip_is_refused() {
    for name in ["olmo", "olmoe", "mpt", "dbrx"] {
        let directory = golden::temp_models::with_config(name, |config| {
            // The key is at the top or inside `attn_config`.
            config["clip_qkv"] = (-1).into();
            config["attn_config"]["clip_qkv"] = (-1).into();
        });
        let error = LoadedModel::open(directory.path(), &LoadOptions::default(), &mut |_| {}).err();
        let error = error.unwrap_or_else(|| panic!("{name} loads")).to_string();
        assert!(error.contains("clip"), "{name}: {error}");
    }
}
