//! Tokenizers in formats other than tokenizer.json give the ids of their own libraries
//! (tests/golden/tokenizer_forms.py). Adapters and SAEs use the tokenizer of their base model.

use pellucid_models::load_tokenizer;
use pellucid_models::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn forms() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizers")
}

/// Copies the files of a directory.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory").flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

fn copy_of(form: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    copy(&forms().join(form), dir.path());
    dir
}

fn refusal(dir: &Path) -> String {
    let error = load_tokenizer(dir).map(|_| ()).expect_err("refused");
    assert!(error.remedy().is_some_and(|remedy| remedy.to_string().len() > 10), "{error}");
    error.to_string()
}

fn read(file: &str) -> Value {
    serde_json::from_slice(&std::fs::read(forms().join(file)).expect("the expectations")).expect("JSON")
}

/// Lists where a tokenizer differs from its own library on these texts.
fn differences(name: &str, dir: &Path, texts: &[&str], case: &Value) -> Vec<String> {
    let tokenizer = match load_tokenizer(dir) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return vec![format!("{name}: {error}")],
    };
    let mut wrong = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let ids = tokenizer.encode(text, true).expect("encodes");
        if json!(ids) != case["ids"][index] {
            wrong.push(format!("{name}: {text:?} is {ids:?}, not {}", case["ids"][index]));
        }
        if let Some(decoded) = case["decoded"][index].as_str()
            && tokenizer.decode(&ids, true) != decoded
        {
            wrong.push(format!("{name}: {ids:?} decodes to {:?}, not {decoded:?}", tokenizer.decode(&ids, true)));
        }
    }
    let special = tokenizer.special();
    for (role, id) in case["special"].as_object().into_iter().flatten() {
        let ours = match role.as_str() {
            "bos" => special.bos,
            "eos" => special.eos.first().copied(),
            "unk" => special.unk,
            _ => special.pad.filter(|_| !special.pad_from_eos),
        };
        if json!(ours) != *id {
            wrong.push(format!("{name}: {role} is {ours:?}, not {id}"));
        }
    }
    wrong
}

/// Compares every case of a file with the tokenizer in the directory that `prepare` returns for it.
fn compare<T>(file: &str, min_cases: usize, prepare: impl Fn(&str, &Value) -> T, path: impl Fn(&T) -> &Path) {
    let expected = read(file);
    let texts: Vec<&str> = expected["texts"].as_array().expect("texts").iter().filter_map(Value::as_str).collect();
    let cases = expected["cases"].as_object().expect("cases");
    assert!(cases.len() >= min_cases && texts.len() >= 28, "cases are missing");
    let wrong: Vec<String> = cases
        .iter()
        .flat_map(|(name, case)| {
            let dir = prepare(name, case);
            differences(name, path(&dir), &texts, case)
        })
        .collect();
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
}

#[test]
fn every_form_gives_the_ids_of_its_own_library() {
    compare("expected.json", 16, |name, _| forms().join(name), PathBuf::as_path);
}

#[test]
fn every_class_of_a_known_form_gives_the_ids_of_transformers() {
    let prepare = |_: &str, case: &Value| {
        let dir = copy_of(case["form"].as_str().expect("a form"));
        for file in ["tokenizer_config.json", "config.json"] {
            let path = dir.path().join(file);
            match case.get(file) {
                Some(settings) => std::fs::write(path, settings.to_string()).expect("written"),
                None if path.exists() => std::fs::remove_file(path).expect("removed"),
                None => {}
            }
        }
        dir
    };
    compare("classes.json", 13, prepare, TempDir::path);
}

#[test]
fn eos_is_the_pad_token_unless_another_is_configured() {
    for (form, pad, from_eos) in
        [("gpt2", Some(0), true), ("llama", Some(2), true), ("opt", Some(1), false), ("bert", Some(0), false)]
    {
        let special = load_tokenizer(&forms().join(form)).expect("a tokenizer").special().clone();
        assert_eq!((special.pad, special.pad_from_eos), (pad, from_eos), "{form}");
    }
}

#[test]
fn a_tokenizer_knows_the_file_it_came_from() {
    for (form, file) in [
        ("llama", "tokenizer.model"),
        ("gpt2", "vocab.json"),
        ("tekken", "tekken.json"),
        ("qwen-tiktoken", "qwen.tiktoken"),
    ] {
        let tokenizer = load_tokenizer(&forms().join(form)).expect("a tokenizer");
        assert_eq!((tokenizer.origin(), tokenizer.base()), (forms().join(form).join(file).as_path(), None));
    }
}

#[test]
fn an_unknown_class_is_refused_by_name() {
    let dir = copy_of("llama");
    std::fs::write(dir.path().join("tokenizer_config.json"), r#"{"tokenizer_class": "AcmeTokenizer"}"#)
        .expect("written");
    assert!(refusal(dir.path()).contains("cannot be read as a tokenizer of class `AcmeTokenizer`"));
    std::fs::remove_file(dir.path().join("tokenizer_config.json")).expect("removed");
    assert!(refusal(dir.path()).contains("neither tokenizer_config.json nor config.json names one"));
    // A class that needs files of another format.
    std::fs::write(dir.path().join("tokenizer_config.json"), r#"{"tokenizer_class": "GPT2Tokenizer"}"#)
        .expect("written");
    assert!(refusal(dir.path()).contains("`GPT2Tokenizer`"));
}

#[test]
fn classes_that_cannot_be_converted_exactly_are_refused_by_name() {
    for (form, class) in [
        ("gpt2", "WhisperTokenizer"),
        ("gpt2", "CLIPTokenizer"),
        ("roberta", "BlenderbotTokenizer"),
        ("xlm-roberta", "MBartTokenizer"),
        ("xlm-roberta", "XGLMTokenizer"),
        ("xlm-roberta", "MarianTokenizer"),
    ] {
        let dir = copy_of(form);
        std::fs::write(dir.path().join("tokenizer_config.json"), json!({"tokenizer_class": class}).to_string())
            .expect("written");
        let text = refusal(dir.path());
        assert!(text.contains(&format!("cannot be read as a tokenizer of class `{class}`")), "{text}");
    }
}

#[test]
fn truncated_and_inconsistent_files_are_refused() {
    for form in ["llama", "t5", "gpt2", "llama3", "tekken", "bert"] {
        let source = forms().join(form);
        for entry in std::fs::read_dir(&source).expect("files").flatten() {
            let name = entry.file_name();
            if name == "tokenizer_config.json" {
                continue;
            }
            let whole = std::fs::read(entry.path()).expect("a file");
            let dir = copy_of(form);
            for length in [0, 1, 7, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
                std::fs::write(dir.path().join(&name), &whole[..length]).expect("written");
                // Some truncations leave a smaller, valid file; none may panic.
                if let Ok(tokenizer) = load_tokenizer(dir.path()) {
                    let _ = tokenizer.encode("Hello world\n", true);
                }
            }
            std::fs::write(dir.path().join(&name), "version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
                .expect("written");
            let text = refusal(dir.path());
            assert!(text.contains("Git LFS pointer") || name == "merges.txt", "{form}: {text}");
        }
    }
    let dir = copy_of("llama3");
    std::fs::write(dir.path().join("tokenizer.model"), "IQ== 0\nIQ== 1\n").expect("written");
    assert!(refusal(dir.path()).contains("occurs twice"));
    std::fs::write(dir.path().join("tokenizer.model"), "IQ== 0\n").expect("written");
    assert!(refusal(dir.path()).contains("not every byte has a token"));
    let dir = copy_of("gpt2");
    std::fs::write(dir.path().join("merges.txt"), "#version: 0.2\nt h e\n").expect("written");
    assert!(refusal(dir.path()).contains("merges.txt: line 2 is not two tokens"));
    std::fs::remove_file(dir.path().join("merges.txt")).expect("removed");
    assert!(refusal(dir.path()).contains("looked for tokenizer.json, tekken.json, tokenizer.model"));
}

#[test]
fn an_adapter_uses_and_names_the_tokenizer_of_its_base_model() {
    let home = tempfile::tempdir().expect("a directory");
    let adapter = home.path().join("adapters/mine");
    std::fs::create_dir_all(&adapter).expect("a directory");
    let settings = |base: &str| json!({"peft_type": "LORA", "base_model_name_or_path": base}).to_string();
    std::fs::write(adapter.join("adapter_config.json"), settings("acme/tiny")).expect("written");
    let text = refusal(&adapter);
    assert!(text.contains("base model `acme/tiny`") && text.contains("adapters/tiny"), "{text}");
    assert!(text.contains("looked for tokenizer.json"), "{text}");
    // A sibling directory with the last part of the base model's name.
    copy(&forms().join("gpt2"), &home.path().join("adapters/tiny"));
    let tokenizer = load_tokenizer(&adapter).expect("the base model's");
    assert_eq!(tokenizer.base(), Some("acme/tiny"));
    assert!(tokenizer.origin().ends_with("adapters/tiny/vocab.json"));
    // The adapter's own tokenizer has precedence.
    copy(&forms().join("llama"), &adapter);
    let own: Tokenizer = load_tokenizer(&adapter).expect("its own");
    assert_eq!((own.base(), own.origin()), (None, adapter.join("tokenizer.model").as_path()));
}

#[test]
fn an_sae_directory_uses_the_tokenizer_of_its_base_model() {
    let home = tempfile::tempdir().expect("a directory");
    let folder = home.path().join("scope");
    let inner = folder.join("resid_post/layer_3_width_16k_l0_small");
    std::fs::create_dir_all(&inner).expect("a directory");
    std::fs::write(inner.join("config.json"), r#"{"model_name": "acme/tiny", "width": 16384}"#).expect("written");
    assert!(refusal(&folder).contains("base model `acme/tiny`"));
    copy(&forms().join("gemma"), &folder.join("acme/tiny"));
    let tokenizer = load_tokenizer(&folder).expect("the base model's");
    assert_eq!(tokenizer.base(), Some("acme/tiny"));
    assert!(tokenizer.adds_bos());
}

#[test]
fn the_tokenizer_of_another_model_is_never_used() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = refusal(dir.path());
    assert!(text.contains("there is no tokenizer here") && text.contains("vocab.json with merges.txt"), "{text}");
    assert!(
        load_tokenizer(&dir.path().join("nowhere"))
            .map(|_| ())
            .expect_err("nothing")
            .to_string()
            .contains("there is nothing at")
    );
    let file = dir.path().join("x.gguf");
    std::fs::write(&file, "GGUF").expect("written");
    assert!(load_tokenizer(&file).is_err());
}
