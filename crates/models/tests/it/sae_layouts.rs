//! Every layout in which SAEs are published is recognized at any directory depth, with its base
//! model and hook points.

use pellucid_models::inspect;
use pellucid_models::inspect::{Category, Support, detect_model_category, get_sae_base_model, is_sae_model};
use std::fs;
use std::path::Path;

const SAELENS: &str =
    r#"{"architecture": "jumprelu", "model_name": "gpt2-small", "hook_name": "blocks.8.hook_resid_pre", "d_in": 768}"#;
const SAELENS_6: &str = r#"{"architecture": "skip_transcoder", "d_in": 8, "metadata": {"model_name": "gemma-2-2b",
    "hook_name": "blocks.3.ln2.hook_normalized", "hook_name_out": "blocks.3.hook_mlp_out"}}"#;
const SCOPE_2: &str = r#"{"hf_hook_point_in": "model.layers.7.output", "width": 16384, "model_name": "google/gemma-3-1b-pt",
    "architecture": "jump_relu", "l0": 50, "type": "sae"}"#;
const LLAMA_SCOPE: &str = r#"{"hook_point_in": "blocks.5.hook_resid_post", "hook_point_out": "blocks.5.hook_resid_post",
    "act_fn": "jumprelu", "d_model": 4096, "dataset_average_activation_norm": {"in": 17.1}}"#;
const DICTIONARY: &str = r#"{"trainer": {"dict_class": "AutoEncoderTopK", "activation_dim": 512, "dict_size": 4096, "layer": 3,
    "lm_name": "EleutherAI/pythia-70m-deduped", "submodule_name": "resid_post_layer_3", "k": 32}, "buffer": {"ctx_len": 128}}"#;
const PLT: &str = "model_name: \"google/gemma-2-2b\"\nmodel_kind: transcoder_set\nfeature_input_hook: mlp.hook_in\nfeature_output_hook: mlp.hook_out\nscan: gemma\n";
const CLT: &str = "model_kind: cross_layer_transcoder\nmodel_name: 'meta-llama/Llama-3.2-1B'\nfeature_input_hook: hook_resid_mid\nfeature_output_hook: hook_mlp_out\n";

/// Layout name, files, base model, input hooks, output hooks, number of SAEs.
type Case = (
    &'static str,
    &'static [(&'static str, &'static str)],
    Option<&'static str>,
    &'static [&'static str],
    &'static [&'static str],
    usize,
);

const CASES: &[Case] = &[
    (
        "saelens",
        &[("cfg.json", SAELENS), ("sae_weights.safetensors", "")],
        Some("gpt2-small"),
        &["blocks.8.hook_resid_pre"],
        &[],
        1,
    ),
    (
        "saelens",
        &[("blocks.3/cfg.json", SAELENS_6), ("blocks.3/sae_weights.safetensors", "")],
        Some("gemma-2-2b"),
        &["blocks.3.ln2.hook_normalized"],
        &["blocks.3.hook_mlp_out"],
        1,
    ),
    (
        "gemma_scope",
        &[("gemma-scope-2b-pt-res/layer_12/width_16k/average_l0_82/params.npz", "")],
        Some("google/gemma-2-2b"),
        &["blocks.12.hook_resid_post"],
        &[],
        1,
    ),
    (
        "gemma_scope",
        &[("gemma-scope-9b-it-transcoders/layer_4/width_16k/average_l0_5/params.npz", "")],
        Some("google/gemma-2-9b-it"),
        &["blocks.4.ln2.hook_normalized"],
        &["blocks.4.hook_mlp_out"],
        1,
    ),
    (
        "gemma_scope2",
        &[
            ("resid_post/layer_7_width_16k_l0_small/config.json", SCOPE_2),
            ("resid_post/layer_7_width_16k_l0_small/params.safetensors", ""),
            ("resid_post/layer_7_width_64k_l0_small/config.json", SCOPE_2),
            ("resid_post/layer_7_width_64k_l0_small/params.safetensors", ""),
        ],
        Some("google/gemma-3-1b-pt"),
        &["model.layers.7.output"],
        &[],
        2,
    ),
    (
        "llama_scope",
        &[
            ("Llama3_1-8B-Base-L5R-8x/hyperparams.json", LLAMA_SCOPE),
            ("Llama3_1-8B-Base-L5R-8x/checkpoints/final.safetensors", ""),
        ],
        Some("meta-llama/Llama-3.1-8B"),
        &["blocks.5.hook_resid_post"],
        &["blocks.5.hook_resid_post"],
        1,
    ),
    (
        "dictionary_learning",
        &[("a/b/c/trainer_0/config.json", DICTIONARY), ("a/b/c/trainer_0/ae.pt", "")],
        Some("EleutherAI/pythia-70m-deduped"),
        &["resid_post_layer_3"],
        &[],
        1,
    ),
    (
        "sparsify",
        &[
            ("config.json", r#"{"model": "EleutherAI/pythia-160m", "dataset": "x"}"#),
            ("layers.5.mlp/cfg.json", r#"{"num_latents": 64, "k": 32, "activation": "topk", "transcode": true}"#),
            ("layers.5.mlp/sae.safetensors", ""),
        ],
        Some("EleutherAI/pythia-160m"),
        &["layers.5.mlp"],
        &["layers.5.mlp"],
        1,
    ),
    (
        "circuit_tracer_plt",
        &[("config.yaml", PLT), ("layer_0.safetensors", ""), ("layer_1.safetensors", "")],
        Some("google/gemma-2-2b"),
        &["blocks.0.mlp.hook_in", "blocks.1.mlp.hook_in"],
        &["blocks.0.mlp.hook_out", "blocks.1.mlp.hook_out"],
        2,
    ),
    (
        "circuit_tracer_clt",
        &[("config.yaml", CLT), ("W_enc_0.safetensors", ""), ("W_dec_0.safetensors", "")],
        Some("meta-llama/Llama-3.2-1B"),
        &["blocks.0.hook_resid_mid"],
        &["blocks.0.hook_mlp_out"],
        1,
    ),
    (
        "hook_z",
        &[
            ("gpt2-small_L5_Hcat_z_v9.pt", ""),
            ("gpt2-small_L5_Hcat_z_v9_cfg.json", r#"{"act_name": "blocks.5.attn.hook_z", "act_size": 768}"#),
        ],
        Some("gpt2-small"),
        &["blocks.5.attn.hook_z"],
        &[],
        1,
    ),
];

fn write(dir: &Path, files: &[(&str, &str)]) {
    for (name, contents) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("created");
        fs::write(path, contents).expect("written");
    }
}

#[test]
fn every_layout_is_described_with_base_model_and_hooks() {
    for (layout, files, base, reads, writes, count) in CASES {
        // As published, and inside other directories.
        for parent in ["", "mine/of/2025"] {
            let dir = tempfile::tempdir().expect("a directory");
            write(&dir.path().join(parent), files);
            assert!(is_sae_model(dir.path()), "{layout}: {parent}");
            assert_eq!(get_sae_base_model(dir.path()).as_deref(), *base, "{layout}: {parent}");
            let report = inspect(dir.path()).expect("a report");
            assert_eq!((report.category, report.support), (Category::Sae, Support::InspectOnly), "{layout}");
            let sae = report.sae.as_ref().expect("described");
            assert_eq!(sae.layouts.iter().map(|layout| layout.name()).collect::<Vec<_>>(), [*layout]);
            assert_eq!(
                (sae.hooks.as_slice(), sae.hooks_out.as_slice()),
                (&owned(reads)[..], &owned(writes)[..]),
                "{layout}"
            );
            assert_eq!((sae.count, sae.more), (*count, false), "{layout}");
            assert_eq!(report.base_model, owned(&base.iter().copied().collect::<Vec<_>>()), "{layout}");
            assert!(report.card().contains(layout), "{}", report.card());
        }
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| text.to_string()).collect()
}

#[test]
fn a_model_directory_with_sae_like_files_stays_a_model() {
    // The model's configuration has precedence over directories named after sites.
    let dir = tempfile::tempdir().expect("a directory");
    write(
        dir.path(),
        &[
            ("config.json", r#"{"model_type": "llama", "width": 3}"#),
            ("resid_post/x.txt", ""),
            ("params.safetensors", ""),
        ],
    );
    assert_eq!(detect_model_category(dir.path()), Category::Transformers);
    assert!(get_sae_base_model(dir.path()).is_none());
}

#[cfg(unix)]
#[test]
fn cyclic_symlinks_are_not_followed_and_others_are() {
    let (dir, other) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    fs::create_dir_all(dir.path().join("a/b")).expect("created");
    for (to, from) in [("..", "a/up"), ("../..", "a/b/top"), (".", "a/b/self"), ("loop", "loop")] {
        std::os::unix::fs::symlink(to, dir.path().join(from)).expect("linked");
    }
    assert_eq!(detect_model_category(dir.path()), Category::Unknown);
    write(other.path(), &[("x/cfg.json", SAELENS), ("x/sae_weights.safetensors", "")]);
    std::os::unix::fs::symlink(other.path(), dir.path().join("a/b/release")).expect("linked");
    assert!(is_sae_model(dir.path()));
    assert_eq!(get_sae_base_model(dir.path()).as_deref(), Some("gpt2-small"));
    assert_eq!(inspect(dir.path()).expect("a report").sae.expect("described").count, 1);
}

#[test]
fn control_vectors_are_described_by_their_header() {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let value = |key: &str, value: &str| [&text(key)[..], &8u32.to_le_bytes(), &text(value)].concat();
    let tensor = |layer: u32, at: u64| {
        [
            &text(&format!("direction.{layer}"))[..],
            &1u32.to_le_bytes(),
            &4u64.to_le_bytes(),
            &0u32.to_le_bytes(),
            &at.to_le_bytes(),
        ]
        .concat()
    };
    let mut file = [b"GGUF", &3u32.to_le_bytes()[..], &2u64.to_le_bytes(), &2u64.to_le_bytes()].concat();
    file.extend([value("general.architecture", "controlvector"), value("controlvector.model_hint", "llama")].concat());
    file.extend([tensor(2, 0), tensor(1, 32)].concat());
    file.resize(file.len().next_multiple_of(32) + 64, 0);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("happy.gguf");
    fs::write(&path, file).expect("written");
    for path in [path.as_path(), dir.path()] {
        assert!(is_sae_model(path), "{}", path.display());
        assert_eq!(get_sae_base_model(path).as_deref(), Some("llama"));
        let sae = inspect(path).expect("a report").sae.expect("described");
        assert_eq!(sae.hooks, ["direction.1", "direction.2"]);
    }
}
