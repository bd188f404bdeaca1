//! Generates the weights of a golden case from their names and a seed, bit-identically to
//! tests/golden/weights.py.

use crate::CaseFile;
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Generates the model directory of a case, unless it is cached in cargo's target directory.
pub fn generate(name: &str) -> PathBuf {
    let case = CaseFile::read(name);
    let config = format!("{:#}\n", case.config);
    let key = [include_str!("weights.rs"), &config, &case.manifest.to_string()].concat();
    let key = fnv1a(key.bytes());
    let cache = target_directory().unwrap_or_else(std::env::temp_dir).join("tmp/golden");
    // The last path component is the case's name, because results show it.
    let there = cache.join(format!("{key:016x}")).join(name);
    if !there.exists() {
        let parent = there.parent().expect("a parent");
        std::fs::create_dir_all(parent).expect("a directory");
        let new = tempfile::tempdir_in(parent).expect("a directory");
        std::fs::write(new.path().join("config.json"), config).expect("written");
        write_files(&case, new.path());
        // Tests run in parallel; a test that loses the race uses the winner's identical directory.
        if std::fs::rename(new.path(), &there).is_err() {
            assert!(there.exists(), "{} cannot be created", there.display());
        }
    }
    there
}

/// Cargo's target directory of this executable, which has a `CACHEDIR.TAG`.
fn target_directory() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    program.ancestors().find(|directory| directory.join("CACHEDIR.TAG").exists()).map(Path::to_owned)
}

fn write_files(case: &CaseFile, to: &Path) {
    let seed = case.seed();
    let files = case.manifest["files"].as_object().expect("files");
    let (mut map, mut total) = (serde_json::Map::new(), 0);
    for (file, lines) in files {
        let tensors: Vec<Tensor> = lines.as_array().expect("lines").iter().map(|line| tensor(seed, line)).collect();
        for (name, _, _, bytes) in &tensors {
            map.insert(name.clone(), json!(file));
            total += bytes.len();
        }
        let view = |(name, dtype, shape, bytes)| (name, TensorView::new(dtype, shape, bytes).expect("a tensor"));
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| view((name, *dtype, shape.clone(), bytes)));
        let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let bytes = safetensors::serialize(views.collect::<Vec<_>>(), Some(about)).expect("a file");
        std::fs::write(to.join(file), bytes).expect("written");
    }
    if files.len() > 1 {
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        std::fs::write(to.join("model.safetensors.index.json"), index.to_string()).expect("written");
    }
}

type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

/// Generates the tensor of a manifest line: name, dtype, shape, and either mean and deviation or
/// the values.
fn tensor(seed: u64, line: &Value) -> Tensor {
    let name = line[0].as_str().expect("a name").to_owned();
    let shape: Vec<usize> = line[2].as_array().expect("a shape").iter().map(|n| n.as_u64().unwrap() as usize).collect();
    let single = |value: &Value| value.as_f64().expect("a number") as f32;
    let values: Vec<f32> = match &line[3] {
        Value::Array(values) => values.iter().map(single).collect(),
        mean => {
            let (mean, deviation) = (single(mean), single(&line[4]));
            standard(seed, &name).take(shape.iter().product()).map(|x| mean + deviation * x).collect()
        }
    };
    let (dtype, bytes) = match line[1].as_str() {
        Some("F32") => (Dtype::F32, values.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Some("F16") => (Dtype::F16, values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect()),
        Some("BF16") => (Dtype::BF16, values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect()),
        other => panic!("{name}: {other:?}"),
    };
    (name, dtype, shape, bytes)
}

/// Random floats of mean 0 and standard deviation 1, determined by seed and name.
pub fn standard(seed: u64, name: &str) -> impl Iterator<Item = f32> {
    let mut state = fnv1a(format!("{seed}:{name}").bytes());
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let bits = z ^ (z >> 31);
        let parts: u64 = [0, 16, 32, 48].iter().map(|shift| (bits >> shift) & 0xFFFF).sum();
        (parts as f32 - 131_070.0) / 37837.0
    })
}

fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}
