//! Files and names that a model's author chose: what they may not do to the terminal, the process
//! and the user's time. Tests are named for the findings of the security test.

use crate::commands::{pellucid, refused, stdout};
use golden::temp_models;
use serde_json::json;
use std::path::Path;
use std::process::{Command, Output};

/// A golden Llama with a tokenizer whose decoders are nested.
fn with_decoders(depth: usize) -> tempfile::TempDir {
    let dir = temp_models::copy("llama");
    // As text: a value of this depth would overflow the stack of the test.
    let (open, close) = (r#"{"type": "Sequence", "decoders": ["#.repeat(depth), "]}".repeat(depth));
    let file = format!(
        r#"{{"version": "1.0", "added_tokens": [], "decoder": {open}{{"type": "Fuse"}}{close},
        "model": {{"type": "WordLevel", "unk_token": "a", "vocab": {{"a": 0, "b": 1}}}}}}"#
    );
    std::fs::write(dir.path().join("tokenizer.json"), file).expect("written");
    dir
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn f23_a_fault_of_the_tokenizers_library_is_an_error_without_its_message() {
    let mut codes = Vec::new();
    for depth in [50, 100, 121, 130, 5000] {
        let dir = with_decoders(depth);
        for command in ["inspect", "run"] {
            let args = match command {
                "inspect" => vec!["inspect", text(dir.path())],
                _ => vec!["run", "--model", text(dir.path()), "--tokens", "1,2"],
            };
            let mut command = Command::new(env!("CARGO_BIN_EXE_pellucid"));
            let output = command.args(args).env("RUST_BACKTRACE", "1").output().expect("the binary runs");
            let stderr = stderr(&output);
            assert!(!stderr.contains("panicked") && !stderr.contains("backtrace"), "{depth}: {stderr}");
            codes.push(output.status.code());
        }
    }
    assert!(codes.iter().all(|code| matches!(code, Some(0..=2))), "{codes:?}");
    assert!(codes.contains(&Some(0)) && codes.contains(&Some(2)), "{codes:?}");
}

/// A Llama whose first tensor has this name and dtype.
fn with_tensor(name: &str, dtype: &str) -> tempfile::TempDir {
    let dir = temp_models::copy("llama");
    let file = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&file).expect("weights");
    let (length, rest) = bytes.split_first_chunk::<8>().expect("a header");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: serde_json::Value = serde_json::from_slice(header).expect("JSON");
    let entry = json!({"dtype": dtype, "shape": [1], "data_offsets": [data.len(), data.len() + 4]});
    header[name] = entry;
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(&file, [&length[..], header.as_bytes(), data, &[0; 4]].concat()).expect("written");
    dir
}

#[test]
fn f24_names_of_files_and_plans_send_no_escape_sequences() {
    let evil = "\u{1b}]0;title\u{7}\u{9b}31m\u{202e}";
    let plan = tempfile::NamedTempFile::new().expect("a file");
    let taps = json!({"taps": [{"site": format!("layers.0.{evil}"), "capture": true}]});
    std::fs::write(plan.path(), taps.to_string()).expect("written");
    let named = with_tensor(&format!("model.{evil}"), "F32");
    let typed = with_tensor("model.extra", evil);
    let site = format!("layers.0.{evil}");
    let mut shown = 0;
    for args in [
        vec!["run", "hi", "--plan", text(plan.path())],
        vec!["run", "hi", "--capture", &site],
        vec!["generate", "hi", "--plan", text(plan.path())],
        vec!["run", "--model", text(named.path()), "--tokens", "1"],
        vec!["run", "--model", text(typed.path()), "--tokens", "1"],
        vec!["inspect", text(named.path())],
        vec!["inspect", text(typed.path())],
        vec!["run", "hi", "--model", evil],
        vec!["sites", "--model", evil],
    ] {
        let output = pellucid(&args);
        assert_eq!(output.status.success(), args[0] == "inspect", "{args:?}");
        let all = stderr(&output) + &String::from_utf8_lossy(&output.stdout);
        let acts = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!all.contains(acts), "{args:?}: {all:?}");
        shown += usize::from(all.contains("title"));
    }
    assert!(shown >= 6, "the names are shown, escaped");
}

#[test]
fn f25_a_bad_lora_alpha_blames_the_adapters_file() {
    let dir = tempfile::tempdir().expect("a directory");
    for (alpha, ok) in [(json!("many"), false), (json!(null), false), (json!(4), true)] {
        let settings = json!({"peft_type": "LORA", "r": 2, "lora_alpha": alpha, "target_modules": ["q_proj"],
            "base_model_name_or_path": crate::golden_path("llama")});
        std::fs::write(dir.path().join("adapter_config.json"), settings.to_string()).expect("written");
        let module = "base_model.model.model.layers.0.self_attn.q_proj";
        let factor = |shape: [usize; 2]| (safetensors::Dtype::F32, shape.to_vec(), vec![0; 4 * shape[0] * shape[1]]);
        let factors = [
            (format!("{module}.lora_A.weight"), factor([2, 32])),
            (format!("{module}.lora_B.weight"), factor([32, 2])),
        ];
        temp_models::write(&dir.path().join("adapter_model.safetensors"), &factors.into_iter().collect());
        let args = ["run", "--model", text(dir.path()), "--tokens", "1,2"];
        match ok {
            true => drop(stdout(&pellucid(&args))),
            false => refused(&args, 2, "adapter_config.json: `lora_alpha` is not a number", ""),
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn f25_paths_that_are_not_utf_8_are_models() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().expect("a directory");
    let model = dir.path().join(std::ffi::OsStr::from_bytes(b"mod\xffel"));
    std::fs::create_dir(&model).expect("created");
    for entry in std::fs::read_dir(crate::golden_path("llama")).expect("a model").flatten() {
        std::fs::copy(entry.path(), model.join(entry.file_name())).expect("copied");
    }
    let run = |args: &[&str], path: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pellucid"));
        command.args(args).arg(path).env("NO_COLOR", "1").output().expect("the binary runs")
    };
    for args in [
        &["run", "--tokens", "1,2", "--model"][..],
        &["generate", "--tokens", "1,2", "--max-new", "2", "--json", "--model"],
        &["sites", "--model"],
        &["profile", "--tokens", "1,2", "--model"],
        &["inspect"],
    ] {
        let output = run(args, &model);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    }
    let missing =
        run(&["run", "--tokens", "1", "--model"], &model.with_file_name(std::ffi::OsStr::from_bytes(b"no\xff")));
    assert_eq!(missing.status.code(), Some(2), "{}", stderr(&missing));
}

#[test]
fn f25_missing_shards_make_a_short_error() {
    let dir = temp_models::copy("llama");
    std::fs::remove_file(dir.path().join("model.safetensors")).expect("removed");
    let shards = (0..200_000).map(|shard| (format!("t{shard}"), json!(format!("model-{shard:06}.safetensors"))));
    let index = json!({"weight_map": shards.collect::<serde_json::Map<_, _>>()});
    std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).expect("written");
    for args in [&["run", "--tokens", "1", "--model", text(dir.path())][..], &["inspect", text(dir.path())]] {
        let output = pellucid(args);
        let all = stderr(&output) + &String::from_utf8_lossy(&output.stdout);
        assert!(all.contains("200000 of 200000 shards are missing"), "{all:.2000}");
        assert!(all.len() < 5000, "{} bytes", all.len());
    }
}

/// A file of Q2_K weights, which have no fast kernels.
#[path = "../../../models/tests/it/gguf_files.rs"]
#[allow(dead_code, reason = "the tests of the models use more of it")]
mod gguf_files;

#[test]
fn r14_weights_without_fast_kernels_are_reported_with_the_remedy() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, gguf_files::in_place_llama()).expect("written");
    let note = |more: &[&str]| {
        let output = pellucid(&[&["run", "--model", text(&path), "--tokens", "1,2"], more].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let stored = note(&[]);
    assert!(stored.contains("note: Q2_K weights have no fast kernels; --dtype q8 or bf16"), "{stored}");
    assert!(!note(&["--dtype", "q8"]).contains("fast kernels"));
}

#[test]
fn r13_a_file_of_messages_has_a_system_prompt_turns_variables_and_a_start_of_the_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
                    {% if add_generation_prompt %}{{ name | default('assistant') }}:{% endif %}";
    let write = |name: &str, value: serde_json::Value| {
        let path = dir.path().join(name);
        std::fs::write(&path, value.to_string()).expect("written");
        text(&path).to_owned()
    };
    let turns = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tom saw a dog."},
        {"role": "assistant", "content": "The dog"}]);
    let asked =
        write("asked.json", json!({"messages": [turns[0], turns[1]], "chat_template": template, "name": "Lily"}));
    let continued =
        write("continued.json", json!({"messages": turns, "chat_template": template, "continue_final_message": true}));
    let rendered = |path: &str| {
        let shown = crate::commands::json(&["tokens", "--messages", path, "--json"]);
        let tokens = shown["rows"][0]["tokens"].as_array().expect("tokens").clone();
        tokens.iter().map(|token| token["token"].as_str().expect("text")).collect::<String>()
    };
    assert_eq!(rendered(&asked), "system: Be brief.\nuser: Tom saw a dog.\nLily:");
    assert_eq!(rendered(&continued), "system: Be brief.\nuser: Tom saw a dog.\nassistant: The dog");
    // Several conversations and prompts are rows of one call.
    let generate = |args: &[&str]| crate::commands::json(&[&["generate", "--max-new", "4", "--json"], args].concat());
    let all = generate(&["Tom saw a dog. The", "--messages", &asked, "--messages", &continued]);
    let alone =
        [generate(&["Tom saw a dog. The"]), generate(&["--messages", &asked]), generate(&["--messages", &continued])];
    for (row, alone) in alone.iter().enumerate() {
        assert_eq!(all["rows"][row]["tokens"], alone["tokens"]);
        assert_eq!(all["rows"][row]["prompt_tokens"], alone["prompt_tokens"]);
    }
}
