//! Every golden model reproduces the activations and tokens of `transformers`.

use golden::{Case, difference};
use pellucid_engine::{GenerateOptions, Plan};
use pellucid_models::families;

/// Failed comparisons, as text.
type Faults = Vec<String>;

/// Runs a check on every case, and reports all faults at once.
fn every_case(check: impl Fn(&Case) -> Faults) {
    let faults: Faults = golden::names()
        .iter()
        .flat_map(|name| match golden::open(name) {
            Ok(case) => check(&case),
            Err(error) => vec![error],
        })
        .collect();
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

/// Compares a site with a reference tensor. A missing tensor is a fault if `needed`; a tensor whose
/// site is missing always is.
fn compare(case: &Case, site: &str, tensor: &str, tolerance: f32, needed: bool) -> Option<String> {
    let Some((_, truth)) = case.reference.get(tensor) else {
        return needed.then(|| format!("{}: the case has no {tensor}", case.name));
    };
    if case.loaded.model.find(site).is_err() {
        return Some(format!("{}: there is a reference for {tensor} but no site {site}", case.name));
    }
    let off = difference(&case.capture(&[site])[0], truth);
    (off > tolerance).then(|| format!("{}: {site} is off by {off} (allowed {tolerance})", case.name))
}

#[test]
fn logits_residual_streams_and_sublayers_agree() {
    every_case(|case| {
        let mut faults = Faults::new();
        faults.extend(compare(case, "logits", "logits", 1e-4, true));
        faults.extend(compare(case, "layers.0.resid_pre", "resid_pre.0", 1e-4, true));
        faults.extend(compare(case, "final_norm", "final_norm", 1e-4, false));
        for layer in 0..case.layers() {
            let at = |point: &str| (format!("layers.{layer}.{point}"), format!("{point}.{layer}"));
            let (site, tensor) = at("resid_post");
            faults.extend(compare(case, &site, &tensor, 1e-4, true));
            for point in
                ["attn_out", "mixer_out", "mixer_out_post", "mlp_out", "mlp_out_post", "z", "mlp_act", "router_logits"]
            {
                let (site, tensor) = at(point);
                faults.extend(compare(case, &site, &tensor, 1e-4, false));
            }
        }
        faults
    });
}

#[test]
fn attention_probabilities_agree() {
    let layers: usize = golden::all()
        .iter()
        .map(|case| {
            let has_reference = |layer: &usize| case.reference.contains_key(&format!("attn_probs.{layer}"));
            (0..case.layers()).filter(has_reference).count()
        })
        .sum();
    assert!(layers > 100, "most cases have reference attention");
    every_case(|case| {
        let one =
            |layer| compare(case, &format!("layers.{layer}.attn_probs"), &format!("attn_probs.{layer}"), 1e-5, false);
        (0..case.layers()).filter_map(one).collect()
    });
}

#[test]
fn greedy_continuations_agree_token_for_token() {
    every_case(|case| {
        // If RoPE depends on the row's length, decoding with a KV cache differs from recomputing
        // every token, in transformers as here. The engine decodes with the cache.
        let grows = case.loaded.model.program().architecture().ropes.iter().any(|rope| rope.long.is_some());
        let cached = case.reference.get("greedy_cached").filter(|_| grows);
        let truth = cached.unwrap_or(&case.reference["greedy"]);
        let truth: Vec<u32> = truth.1.iter().map(|&x| x as u32).collect();
        let options = GenerateOptions { max_new: truth.len(), ..GenerateOptions::default() };
        let model = &case.loaded.model;
        let generation = model.generate(std::slice::from_ref(&case.ids), &Plan::default(), &options, &mut |_, _| {
            pellucid_engine::Control::Go
        });
        match generation {
            Ok(generation) if generation.rows[0].tokens == truth => Faults::new(),
            Ok(generation) => vec![format!("{}: {:?} instead of {truth:?}", case.name, generation.rows[0].tokens)],
            Err(error) => vec![format!("{}: {error}", case.name)],
        }
    });
}

#[test]
fn a_shorter_row_agrees_in_a_batch_with_a_longer_one() {
    every_case(|case| {
        let short = case.ids[3..].to_vec();
        let run = case.run(&[case.ids.clone(), short], &Plan::capture(["logits"]));
        let off = difference(run.captures[1].array.values(), &case.reference["short_logits"].1);
        (off > 1e-4).then(|| format!("{}: the shorter row is off by {off}", case.name)).into_iter().collect()
    });
}

#[test]
fn every_native_family_has_a_golden_case() {
    let seen: Vec<String> =
        golden::all().iter().map(|case| case.loaded.model.program().architecture().family.clone()).collect();
    for family in families::native() {
        assert!(seen.iter().any(|s| s == family), "{family} is native but has no golden case");
    }
}

#[test]
fn generated_weights_have_the_bits_of_the_python_generator() {
    // tests/golden/weights.py asserts the same bits.
    let first = |seed, name: &str| {
        let values: Vec<f32> = golden::weights::standard(seed, name).take(1001).collect();
        [0, 1, 2, 1000].map(|index| values[index].to_bits())
    };
    assert_eq!(first(0, "model.norm.weight"), [0xBF1E_FF70, 0x3FAB_4034, 0x3F28_FA3B, 0x3FA9_C936]);
    assert_eq!(first(7, "h.0.attn.c_attn.weight"), [0x3F60_0B7A, 0xBECE_F44A, 0x3F34_8897, 0x3F9A_3B34]);
}

#[test]
fn committed_weights_equal_the_generated_ones() {
    let mut compared = 0;
    for name in golden::names() {
        let Some(case) = golden::committed(&name) else { continue };
        let files = std::fs::read_dir(&case).expect("a case").flatten().map(|entry| entry.file_name());
        for file in files.filter(|file| {
            file.to_string_lossy().starts_with("model") && file.to_string_lossy().ends_with(".safetensors")
        }) {
            let read = |path: std::path::PathBuf| std::fs::read(path.join(&file)).expect("weights");
            let (committed, generated) = (read(case.clone()), read(golden::weights::generate(&name)));
            let open = |bytes| safetensors::SafeTensors::deserialize(bytes).expect("a valid file");
            let (committed, generated) = (open(&committed), open(&generated));
            assert_eq!(committed.len(), generated.len(), "{name}");
            for (tensor, view) in committed.tensors() {
                assert_eq!(view, generated.tensor(&tensor).expect("the same tensors"), "{name}: {tensor}");
                compared += 1;
            }
        }
    }
    assert!(compared > 50 || std::env::var_os("PELLUCID_GOLDEN").is_some(), "some cases have committed weights");
}
