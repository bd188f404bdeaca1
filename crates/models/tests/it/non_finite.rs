//! Where NaN or infinity begins.

use golden::Case;
use pellucid_engine::{Control, GenerateOptions, NonFinite, Plan, RunOptions};

fn begins(case: &Case, json: &str) -> Option<NonFinite> {
    let plan = Plan::from_json(json).expect("a plan");
    let rows = vec![case.ids[..4].to_vec(), case.ids.clone()];
    let found = case.loaded.model.find_non_finite(&rows, &plan, &RunOptions::default()).expect("a run");
    let options = GenerateOptions { max_new: 3, ..GenerateOptions::default() };
    let generated = case.loaded.model.find_non_finite_generating(&rows, &plan, &options).expect("a generation");
    // NaN differs from itself, so the texts are compared.
    let text = |found: &Option<NonFinite>| found.as_ref().map(NonFinite::to_string);
    assert_eq!(text(&found), text(&generated), "a generation finds the same in its prompts");
    found
}

#[test]
fn f12_nan_is_reported_where_it_begins() {
    for name in ["gpt2", "llama", "mixtral", "qwen3_next"] {
        let case = golden::case(name);
        let capture = r#"{"site": "logits", "capture": true}"#;
        assert_eq!(begins(&case, &format!(r#"{{"taps": [{capture}]}}"#)), None, "{name}: a healthy model");
        // Each edit writes a finite value; their sum overflows, or a norm of the first does.
        let edits = r#"{"site": "layers.0.resid_post", "rows": [1], "positions": "last", "set": 3e38},
            {"site": "layers.1.mlp_out_post", "rows": [1], "positions": "last", "set": 3e38}"#;
        let found = begins(&case, &format!(r#"{{"taps": [{edits}, {capture}]}}"#)).expect("an overflow");
        assert_eq!((found.row, found.position, found.edited_by), (1, case.ids.len() - 1, None), "{name}: {found}");
        assert_eq!(found.layer, Some(1), "{name}: {found}");
        assert!(found.to_string().contains("from finite values"), "{found}");
        // An edit that writes the infinity itself is named.
        let edits = r#"{"site": "layers.0.resid_post", "rows": [1], "positions": [2], "units": [5], "set": 3e38},
            {"site": "layers.0.resid_post", "rows": [1], "positions": [2], "units": [5], "scale": 10}"#;
        let found = begins(&case, &format!(r#"{{"taps": [{edits}, {capture}]}}"#)).expect("an infinity");
        assert_eq!(found.site, Some(case.site("layers.0.resid_post")), "{name}: {found}");
        assert_eq!((found.row, found.position, found.unit, found.edited_by), (1, 2, 5, Some(1)), "{name}: {found}");
    }
}

#[test]
fn masking_with_negative_infinity_is_not_reported() {
    let case = golden::case("mixtral");
    let mask = r#"{"site": "layers.0.router_logits", "experts": [1], "set": "-inf"}"#;
    assert_eq!(begins(&case, &format!(r#"{{"taps": [{mask}, {{"site": "logits", "capture": true}}]}}"#)), None);
}

#[test]
fn generated_rows_say_that_their_logits_were_not_finite() {
    let case = golden::case("llama");
    let rows = vec![case.ids.clone(), case.ids[..3].to_vec()];
    // Each edit writes a finite value; their sum overflows. Without `allow_nan` no token is chosen.
    let plan = Plan::from_json(
        r#"{"allow_nan": true, "taps": [{"site": "layers.0.resid_post", "rows": [1], "set": 3e38},
            {"site": "layers.1.mlp_out_post", "rows": [1], "set": 3e38}]}"#,
    );
    let options = GenerateOptions { max_new: 2, ..GenerateOptions::default() };
    let generation = case.loaded.model.generate(&rows, &plan.expect("a plan"), &options, &mut |_, _| Control::Go);
    let rows = generation.expect("a generation").rows;
    assert_eq!(rows.iter().map(|row| row.non_finite).collect::<Vec<_>>(), [false, true]);
}
