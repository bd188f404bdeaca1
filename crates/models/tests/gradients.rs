//! Gradients of one golden model of every type are those that torch computes.
#![allow(clippy::print_stdout)] // how far off the worst is, is worth knowing when all is well, too

#[allow(dead_code)] // each test file uses its own part of this module
mod golden;

use golden::Case;
use pellucid_engine::{GradOptions, Plan, Point, Seed, Site};

/// The scalar of `tests/golden/gradients.py`: all logits, each times a number that follows from the case's seed.
fn seed(case: &Case) -> Seed {
    let text = std::fs::read(golden::directory().join(&case.name).join("weights.json")).expect("a list of weights");
    let list: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let count = case.reference["logits"].1.len();
    let numbers = golden::weights::standard(list["seed"].as_u64().expect("a seed"), "gradient").take(count);
    Seed {
        site: Site::model(Point::Logits),
        row: 0,
        positions: (0..case.ids.len()).collect(),
        values: numbers.collect(),
    }
}

fn length(x: impl Iterator<Item = f32>) -> f64 {
    x.map(|x| x as f64 * x as f64).sum::<f64>().sqrt()
}

#[test]
fn gradients_agree_with_torch() {
    let (mut faults, mut worst, mut all) = (Vec::new(), (0.0, String::new()), Vec::new());
    for name in golden::one_per_type() {
        let case = golden::case(&name);
        let file = golden::directory().join(&name).join("gradients.safetensors");
        let Ok(bytes) = std::fs::read(&file) else {
            faults.push(format!("{name} has no gradients"));
            continue;
        };
        let file = safetensors::SafeTensors::deserialize(&bytes).expect("a valid file");
        let mut names: Vec<&str> = file.names();
        names.sort();
        let site = |tensor: &str| {
            let (point, layer) = tensor.split_once('.').expect("a layer");
            case.site(&format!("layers.{layer}.{point}"))
        };
        let sites: Vec<Site> = names.iter().map(|tensor| site(tensor)).collect();
        let ids = std::slice::from_ref(&case.ids);
        let gradients = |recompute| {
            let options = GradOptions { recompute };
            case.loaded.model.vjp(ids, &Plan::default(), &[seed(&case)], &sites, &options).expect("gradients")
        };
        let ours = gradients(false);
        for (tensor, capture) in names.iter().zip(&ours) {
            let bytes = file.tensor(tensor).expect("a tensor").data();
            let truth: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            assert_eq!(capture.array.values().len(), truth.len(), "{name}: {tensor}");
            let off =
                length(capture.array.values().iter().zip(&truth).map(|(a, b)| a - b)) / length(truth.iter().copied());
            if off.is_nan() || off >= 1e-3 {
                faults.push(format!("{name}: {tensor} is off by {off:.2e}"));
            }
            if off > worst.0 {
                worst = (off, format!("{name} {tensor}"));
            }
            all.push(off);
        }
        // Layers that run again give the same bits.
        if gradients(true).iter().zip(&ours).any(|(a, b)| a.array.values() != b.array.values()) {
            faults.push(format!("{name}: layers that run again give other gradients"));
        }
    }
    all.sort_by(f64::total_cmp);
    println!(
        "{} gradients, the middle one off by {:.1e}, the worst by {:.1e}: {}",
        all.len(),
        all[all.len() / 2],
        worst.0,
        worst.1
    );
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
    assert!(all[all.len() / 2] < 1e-5, "typical gradients agree to five digits");
}

#[test]
fn other_scalars_have_other_gradients() {
    // The control of the comparison: it would notice a seed that is a little different.
    let case = golden::case("llama");
    let off = |change: &dyn Fn(&mut Seed)| {
        let mut other = seed(&case);
        change(&mut other);
        let ids = std::slice::from_ref(&case.ids);
        let [ours, theirs] = [seed(&case), other].map(|seed| {
            let to = [case.site("layers.0.resid_post")];
            let options = GradOptions::default();
            case.loaded.model.vjp(ids, &Plan::default(), &[seed], &to, &options).expect("gradients").remove(0).array
        });
        length(ours.values().iter().zip(theirs.values()).map(|(a, b)| a - b)) / length(ours.values().iter().copied())
    };
    assert_eq!(off(&|_| {}), 0.0);
    assert!(off(&|seed| seed.values[40] += 1.0) > 1e-3);
    assert!(off(&|seed| seed.positions.swap(0, 1)) > 1e-1);
}
